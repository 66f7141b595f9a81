# SPDX-License-Identifier: Apache-2.0
"""Counts, statistics and watchdog of a running node."""
