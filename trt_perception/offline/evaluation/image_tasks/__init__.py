"""Accuracy and agreement of models that describe the whole image."""
