"""Command lines: thin shells over typed functions."""
