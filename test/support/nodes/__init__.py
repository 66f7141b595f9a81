"""Nodes in processes of their own, their clients, cameras and faults."""
