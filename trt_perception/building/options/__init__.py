"""The options of build_engine: the table of options, readers of values, and the two sources."""
