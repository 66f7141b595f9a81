"""Calibration: its images, the ranges of activations, and the cache of ranges."""
