"""Soaks: promises that need time to be seen."""
