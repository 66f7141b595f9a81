# SPDX-License-Identifier: Apache-2.0
"""Serialised messages, read and written without ROS."""
