# SPDX-License-Identifier: Apache-2.0
"""Compute expected results independently of the package."""
