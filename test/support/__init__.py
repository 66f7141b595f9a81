# SPDX-License-Identifier: Apache-2.0
"""Provide code that several test files share."""
