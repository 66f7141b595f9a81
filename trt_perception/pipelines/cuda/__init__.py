# SPDX-License-Identifier: Apache-2.0
"""The pipeline on the GPU: slots, frames in device memory, and results."""
