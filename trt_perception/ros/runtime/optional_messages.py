# SPDX-License-Identifier: Apache-2.0
"""Checks message packages that may be missing."""

from __future__ import annotations

import contextlib
from typing import Any

from rclpy.type_support import check_for_type_support


def is_usable(message_type: Any) -> bool:
    """Return whether a message type is installed, and works with this Python and ROS 2.

    Args:
        message_type: the type; None if its import failed.
    """
    if message_type is None:
        return False
    # rclpy raises several types of errors for a package that was built for another distribution.
    with contextlib.suppress(Exception):
        check_for_type_support(message_type)
        return True
    return False
