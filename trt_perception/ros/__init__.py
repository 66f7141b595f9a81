# SPDX-License-Identifier: Apache-2.0
"""The ROS shell: the only place that imports rclpy or messages."""
