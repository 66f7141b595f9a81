# SPDX-License-Identifier: Apache-2.0
"""Reads and checks model files before a runtime loads them."""
