# SPDX-License-Identifier: Apache-2.0
"""Decoders: one module for each family of outputs, and the table of all decoders."""
