# SPDX-License-Identifier: Apache-2.0
"""Pipelines: all the work on one frame, on the CPU or on the GPU, behind one small interface."""
