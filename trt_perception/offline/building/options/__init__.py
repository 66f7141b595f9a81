# SPDX-License-Identifier: Apache-2.0
"""The options of build_engine: table, readers of values, and their sources.

The sources are the options file and the command line.
"""
