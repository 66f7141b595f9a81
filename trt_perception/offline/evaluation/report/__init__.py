# SPDX-License-Identifier: Apache-2.0
"""Plots and pictures of evaluation results."""
