"""Offline: from an ONNX model to a verified engine with its manifest."""
