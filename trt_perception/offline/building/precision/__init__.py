# SPDX-License-Identifier: Apache-2.0
"""Precision: Q/DQ, FP16 and FP8 conversions, and checks of quantised models."""
