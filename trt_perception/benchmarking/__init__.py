"""Measuring models and their steps: what benchmark_engine does."""
