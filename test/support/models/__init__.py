# SPDX-License-Identifier: Apache-2.0
"""Make models for tests, and read models that exporters wrote."""
