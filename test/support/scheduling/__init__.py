"""Simulate cameras and pipelines on a simulated clock, and run the detector with them."""
