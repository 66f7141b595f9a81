"""Results of tasks that describe the whole image: classes, class maps, depth maps."""
