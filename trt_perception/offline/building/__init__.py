"""Builds an engine and its manifest from an ONNX model, and checks both."""
