# SPDX-License-Identifier: Apache-2.0
"""Common parts of all programs: command line, signals and standard output."""
