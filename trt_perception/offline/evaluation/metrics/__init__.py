"""Accuracy of models: average precision, mistakes, agreement, and the similarity of objects."""
