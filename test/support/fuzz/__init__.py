"""Make hostile input: damaged files and messages, invalid frames, untrusted engines."""
