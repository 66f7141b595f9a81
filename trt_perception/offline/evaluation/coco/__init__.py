# SPDX-License-Identifier: Apache-2.0
"""COCO annotation files: images, classes and masks."""
