"""Serialised messages and rcl's C interface: the only place in ros/ that knows ctypes."""
