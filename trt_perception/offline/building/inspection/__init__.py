"""What a built engine contains: its layers, their ONNX nodes and times."""
