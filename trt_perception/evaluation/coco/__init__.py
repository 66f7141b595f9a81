"""COCO's annotation files: images, classes and masks."""
