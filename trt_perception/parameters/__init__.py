# SPDX-License-Identifier: Apache-2.0
"""The node's parameters: table, checks, camera parameters, YAML sections, launch arguments."""
