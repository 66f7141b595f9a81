"""Frames and encodings, letterbox geometry, JPEG and PNG, image files, and detections."""
