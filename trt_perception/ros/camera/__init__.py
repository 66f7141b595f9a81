"""The topics of one camera: images in, detections and debug images out; and its monitor."""
