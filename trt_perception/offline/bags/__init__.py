"""Runs a model on the images of bags, and writes bags of the node's messages."""
