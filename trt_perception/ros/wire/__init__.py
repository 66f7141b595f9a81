# SPDX-License-Identifier: Apache-2.0
"""rcl's C interface. No other module of ros/ uses ctypes."""
