# SPDX-License-Identifier: Apache-2.0
"""Simulate cameras and pipelines on a simulated clock, and run the pool with them."""
