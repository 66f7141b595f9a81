"""The node's parameters: table, checks, camera parameters, YAML sections, launch arguments."""
