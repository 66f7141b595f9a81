"""Decoders: one module for each family of outputs, and the table of all decoders."""
