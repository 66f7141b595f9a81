"""A frame and its encodings, letterbox geometry, JPEG and PNG, images from files, detections."""
