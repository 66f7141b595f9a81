# SPDX-License-Identifier: Apache-2.0
"""Pipelines that preprocess and decode in host memory."""
