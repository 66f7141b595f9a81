# SPDX-License-Identifier: Apache-2.0
"""Writes models for a Triton server."""
