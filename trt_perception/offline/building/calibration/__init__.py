# SPDX-License-Identifier: Apache-2.0
"""Calibration: its images, the ranges of activations, and the cache of ranges."""
