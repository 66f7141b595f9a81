# SPDX-License-Identifier: Apache-2.0
"""ONNX graphs: reading, simplifying, rewriting and checking them."""
