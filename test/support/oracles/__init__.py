"""Compute expected results independently of the package."""
