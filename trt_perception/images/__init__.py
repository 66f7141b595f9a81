# SPDX-License-Identifier: Apache-2.0
"""Frames and encodings, letterbox geometry, JPEG and PNG, image files, and detections."""
