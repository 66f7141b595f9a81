"""Run nodes in separate processes, and provide their clients, cameras and faults."""
