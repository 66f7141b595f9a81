"""Expected results, worked out in another way than the package does."""
