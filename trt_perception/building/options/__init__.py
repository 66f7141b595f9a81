"""The options of build_engine: one table of options, its values and where they come from."""
