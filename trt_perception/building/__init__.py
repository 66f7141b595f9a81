"""Build a verified engine with its manifest from an ONNX model."""
