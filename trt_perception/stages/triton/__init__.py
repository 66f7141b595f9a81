# SPDX-License-Identifier: Apache-2.0
"""The client of a model on a Triton server."""
