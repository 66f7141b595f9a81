# SPDX-License-Identifier: Apache-2.0
"""The options of tools that take images from bags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import short_repr
from trt_perception.images.bag_images import is_bag_source
from trt_perception.images.bag_selection import MAX_EVERY, BagSelection


def add_bag_options(parser: argparse.ArgumentParser) -> None:
    """Add the options --topic and --every."""
    parser.add_argument(
        '--topic',
        default='',
        metavar='NAME',
        help='topic of the images in a bag (default: the only topic with colour images)',
    )
    parser.add_argument(
        '--every',
        type=_positive_integer,
        default=1,
        metavar='N',
        help='use each N-th image of a bag (default: 1)',
    )


def read_bag_options(options: argparse.Namespace, sources: Sequence[str | Path]) -> BagSelection:
    """Return the selected images of bags, after a check that the options have an effect.

    Raises:
        ConfigError: an option is given, but no source is a bag.
    """
    selection = BagSelection(options.topic, options.every)
    check_bag_selection(selection, sources)
    return selection


def check_bag_selection(selection: BagSelection, sources: Sequence[str | Path]) -> None:
    """Check that the options --topic and --every are given only with a bag.

    Raises:
        ConfigError: an option is given, but no source is a bag.
    """
    given = {'--topic': selection.topic, '--every': selection.every != 1}
    for option, value in given.items():
        if value and not any(map(is_bag_source, sources)):
            found = 'has no effect, because the images are not in a bag'
            raise ConfigError(option, found, fix='leave it out')


def _positive_integer(text: str) -> int:
    if text.isdecimal() and len(text) <= len(str(MAX_EVERY)) and 1 <= int(text) <= MAX_EVERY:
        return int(text)
    raise argparse.ArgumentTypeError(
        f'expected a whole number from 1 to {MAX_EVERY} (got {short_repr(text)})'
    )
