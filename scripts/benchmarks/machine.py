# SPDX-License-Identifier: Apache-2.0
"""Describe this computer in the records of benchmarks that need no ROS 2."""

from __future__ import annotations

import os
import platform

import gpus


def describe_machine():
    """Return the GPUs with their driver, the processor, the usable cores, Python and system."""
    return {
        'gpus': gpus.names(),
        'driver': gpus.driver(),
        'processor': platform.machine(),
        'cores': len(os.sched_getaffinity(0)),
        'python': platform.python_version(),
        'system': platform.platform(),
    }
