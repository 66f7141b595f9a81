"""Expected results, computed in other ways than in the package."""
