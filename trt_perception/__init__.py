"""Object detection for ROS 2: on TensorRT, and on ONNX Runtime where there is no GPU."""

__version__ = '0.1.0'
