"""Nodes in separate processes, their clients, cameras and faults."""
