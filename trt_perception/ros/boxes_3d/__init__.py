# SPDX-License-Identifier: Apache-2.0
"""The node detections_3d: boxes of visible surfaces in space."""
