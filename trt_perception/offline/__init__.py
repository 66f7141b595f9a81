# SPDX-License-Identifier: Apache-2.0
"""Builds, evaluates, benchmarks and inspects models. The node imports nothing from here."""
