# SPDX-License-Identifier: Apache-2.0
"""Tracking of objects over the images of one camera: ByteTrack. Independent of CUDA and ROS."""
