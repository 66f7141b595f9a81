# SPDX-License-Identifier: Apache-2.0
"""Measures the speed of models, and reports the results."""
