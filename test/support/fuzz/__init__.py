"""Hostile input: damaged files and messages, bad frames, untrusted engines."""
