"""What build_engine can be told: one table of options, its values and where they come from."""
