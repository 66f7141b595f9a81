# SPDX-License-Identifier: Apache-2.0
"""Tasks: one class for each kind of output, such as boxes with keypoints or boxes with masks."""
