"""Measures of accuracy: overlap, average precision, mistakes, agreement."""
