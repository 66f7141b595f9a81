"""Reads and checks model files before a runtime loads them."""
