# SPDX-License-Identifier: Apache-2.0
"""Checks of doctor that need no ROS: machine, shell, software, model and cameras."""
