# SPDX-License-Identifier: Apache-2.0
"""The steps of processing a frame: preprocessing, running the network, and decoding."""
