# SPDX-License-Identifier: Apache-2.0
"""Support tests that build engines: fixtures, options, and stand-ins for TensorRT releases."""
