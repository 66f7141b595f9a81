"""Decoders: one file for each family of network outputs."""
