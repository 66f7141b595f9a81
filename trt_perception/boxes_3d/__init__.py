# SPDX-License-Identifier: Apache-2.0
"""Boxes of visible surfaces in space, from boxes in an image and its depth."""
