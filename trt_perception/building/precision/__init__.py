"""Precision: calibration images and ranges, Q/DQ, FP16 and FP8 conversions."""
