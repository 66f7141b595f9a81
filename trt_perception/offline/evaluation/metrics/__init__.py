# SPDX-License-Identifier: Apache-2.0
"""Accuracy of models: average precision, mistakes, agreement, and the similarity of objects."""
