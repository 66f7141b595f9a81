"""COCO annotation files: images, classes and masks."""
