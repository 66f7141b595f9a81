# SPDX-License-Identifier: Apache-2.0
"""Make hostile input: damaged files and messages, invalid frames, untrusted engines."""
