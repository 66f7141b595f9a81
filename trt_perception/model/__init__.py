# SPDX-License-Identifier: Apache-2.0
"""Describes models: tensors, preprocessing, decoders, tasks, manifest and files."""
