"""TensorRT: network, builder settings, calibrator, the build, inspection of the engine."""
