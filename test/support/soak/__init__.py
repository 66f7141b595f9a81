"""Soaks: tests of promises that show only after a long time."""
