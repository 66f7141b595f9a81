"""The runtime of TensorRT engines: loading, plugins, and messages of TensorRT."""
