# SPDX-License-Identifier: Apache-2.0
"""Run nodes in separate processes, and provide their clients, cameras and faults."""
