# SPDX-License-Identifier: Apache-2.0
"""The command doctor, with its checks of the ROS graph and of parameters."""
