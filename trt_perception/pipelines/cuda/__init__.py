"""The pipeline on the GPU: slots, frames in device memory, and results."""
