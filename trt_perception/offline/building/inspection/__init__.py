# SPDX-License-Identifier: Apache-2.0
"""What a built engine contains: its layers, their ONNX nodes and times."""
