# SPDX-License-Identifier: Apache-2.0
"""Parts of each ROS program: command line, executor, services, timers, log and time limits."""
