# SPDX-License-Identifier: Apache-2.0
"""Accuracy and agreement of models that describe the whole image."""
