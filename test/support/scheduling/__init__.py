"""Simulate cameras and pipelines on a simulated clock, and run the pool with them."""
