# SPDX-License-Identifier: Apache-2.0
"""Runs a model on the images of bags, and writes bags of the node's messages."""
