"""rcl's C interface. No other module of ros/ uses ctypes."""
