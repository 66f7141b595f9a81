# SPDX-License-Identifier: Apache-2.0
"""Types of option values for argparse, shared by the programs in ros/."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Number = TypeVar('Number', int, float)


def number_between(lowest: Number, highest: Number) -> Callable[[str], Number]:
    """Return an argparse type for numbers of the limits' type. Both limits are allowed."""
    kind = type(lowest)

    def read(text: str) -> Number:
        with suppress(ValueError):
            if lowest <= kind(text) <= highest:
                return kind(text)
        what = 'a whole number' if kind is int else 'a number'
        raise argparse.ArgumentTypeError(
            f'expected {what} from {lowest:g} to {highest:g} (got {text!r})'
        )

    return read


def text_matching(pattern: str, expected: str) -> Callable[[str], str]:
    """Return an argparse type for texts that match a pattern completely.

    Args:
        pattern: regular expression.
        expected: description of a valid text, for the error message.
    """

    def read(text: str) -> str:
        if re.fullmatch(pattern, text):
            return text
        raise argparse.ArgumentTypeError(f'expected {expected} (got {text!r})')

    return read
