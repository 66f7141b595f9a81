"""Pipelines that preprocess and decode in host memory."""
