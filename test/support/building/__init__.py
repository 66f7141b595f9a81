"""Support tests that build engines: fixtures, options, and stand-ins for TensorRT releases."""
