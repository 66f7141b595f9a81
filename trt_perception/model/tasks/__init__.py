"""Tasks: one class for each kind of output, such as boxes with keypoints or boxes with masks."""
