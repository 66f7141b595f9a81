"""Plots and pictures of evaluation results."""
