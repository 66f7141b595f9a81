"""Results of tasks that describe the whole image: classes, maps of classes, maps of depth."""
