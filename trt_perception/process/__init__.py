"""Common parts of all programs: command line, signals and standard output."""
