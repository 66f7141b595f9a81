"""Settings for the transport of large images, and shared memory that killed processes left."""
