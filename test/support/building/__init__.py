"""Building engines in tests: fixtures, options, and stand-ins for releases of TensorRT."""
