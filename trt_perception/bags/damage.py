# SPDX-License-Identifier: Apache-2.0
"""The error that readers of bags raise for damaged data. It never leaves the package `bags`."""

from __future__ import annotations

from typing import Final

#: Largest message, chunk or record that is read, in bytes. As for messages in the node.
MAX_RECORD_BYTES: Final = 256 * 2**20


class DamageError(Exception):
    """Raised when a part of a bag cannot be read. The text is the reason of a `BagLoss`."""
