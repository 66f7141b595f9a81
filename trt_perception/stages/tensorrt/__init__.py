# SPDX-License-Identifier: Apache-2.0
"""The runtime of TensorRT engines: loading, plugins, and messages of TensorRT."""
