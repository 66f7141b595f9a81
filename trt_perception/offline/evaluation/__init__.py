# SPDX-License-Identifier: Apache-2.0
"""Measures how accurate a model is, against annotated images or against another model."""
