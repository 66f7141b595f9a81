"""The node detections_3d: boxes of visible surfaces in space."""
