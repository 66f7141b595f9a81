# SPDX-License-Identifier: Apache-2.0
"""Command-line tools that need no ROS: each parses its options and calls typed functions."""
