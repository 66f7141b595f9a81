"""What every program needs: its command line, signals and standard output."""
