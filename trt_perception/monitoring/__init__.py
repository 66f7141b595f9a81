"""Counts, statistics and watchdog of a running node."""
