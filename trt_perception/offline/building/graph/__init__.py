"""ONNX graphs: reading, simplifying, rewriting and checking them."""
