"""Accuracy shown to people: plots, and the images with most mistakes."""
