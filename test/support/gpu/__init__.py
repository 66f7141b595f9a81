"""Stand-ins for a GPU and its libraries, kernels on the CPU, and pipelines on a real GPU."""
