# SPDX-License-Identifier: Apache-2.0
"""Replace a GPU and its libraries, run kernels on the CPU, and run pipelines on a real GPU."""
