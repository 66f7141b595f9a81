"""What a model says of each object next to its box: one record per task."""
