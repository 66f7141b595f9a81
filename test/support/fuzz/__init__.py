"""Hostile input: changed files and messages, bad frames, untrusted engines."""
