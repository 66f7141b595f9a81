# SPDX-License-Identifier: Apache-2.0
"""Bags: recordings of ROS topics, read and written without ROS."""
