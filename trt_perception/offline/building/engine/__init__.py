# SPDX-License-Identifier: Apache-2.0
"""TensorRT: network, builder settings, calibrator, the build, the check of the engine."""
