"""Writes models for a Triton server."""
