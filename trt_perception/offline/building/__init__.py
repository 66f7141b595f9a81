# SPDX-License-Identifier: Apache-2.0
"""Builds an engine and its manifest from an ONNX model, and checks both."""
