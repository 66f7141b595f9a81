# SPDX-License-Identifier: Apache-2.0
"""Run soaks: tests of promises that can be checked only over a long time."""
