"""Measures how accurate a model is, against annotated images or against another model."""
