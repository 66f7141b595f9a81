"""The client of a model on a Triton server."""
