"""Describes models: tensors, preprocessing, decoders, tasks, manifest and files."""
