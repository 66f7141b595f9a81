# SPDX-License-Identifier: Apache-2.0
"""Recognises models without a manifest."""
