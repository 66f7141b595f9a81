"""Measures the speed of models, and reports the results."""
