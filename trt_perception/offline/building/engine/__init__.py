"""TensorRT: network, builder settings, calibrator, the build, the check of the engine."""
