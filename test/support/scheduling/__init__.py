"""Cameras and pipelines on a simulated clock, and runs of the detector."""
