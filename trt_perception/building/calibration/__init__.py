"""Calibration: its images, the ranges of activations on them, and their cache."""
