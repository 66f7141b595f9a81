# SPDX-License-Identifier: Apache-2.0
"""Bounds the memory for published images of results: masks, maps, debug images.

An image above MAX_RESULT_PIXELS is skipped. Threads of all cameras make larger images one at a
time. Smaller images never wait, so a camera with large images does not delay other cameras.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

from rclpy.impl.rcutils_logger import RcutilsLogger

from trt_perception.errors import ImageError
from trt_perception.images.results.image_limits import (
    MAX_RESULT_PIXELS,
    is_large_result,
    is_too_large_result,
)
from trt_perception.ros.runtime.log import log_text

# Held by the thread that makes a large image. Acquired before all other locks.
_turn: Final = threading.Lock()
_CHECK_CLOSED_S: Final = 0.1


@contextlib.contextmanager
def wait_for_turn(size_wh: tuple[int, int], is_closed: Callable[[], bool]) -> Iterator[bool]:
    """Wait until no other thread makes a large image. Does not wait for a small image.

    Args:
        size_wh: width and height of the image that the caller makes.
        is_closed: whether the caller's thread must end.

    Yields:
        False if the thread must end. The image must then not be made.
    """
    if not is_large_result(size_wh):
        yield True
        return
    while not _turn.acquire(timeout=_CHECK_CLOSED_S):
        if is_closed():
            yield False
            return
    try:
        yield True
    finally:
        _turn.release()


class SizeLimit:
    """Refuses images above MAX_RESULT_PIXELS on one topic, and logs the first one.

    Args:
        fix: what a user can do about large images.
    """

    def __init__(self, topic: str, fix: str, log: RcutilsLogger) -> None:
        self._topic = topic
        self._fix = fix
        self._log = log
        self._has_reported = False

    def allows(self, size_wh: tuple[int, int]) -> bool:
        """Return whether an image of this width and height may be made."""
        if not is_too_large_result(size_wh):
            return True
        if not self._has_reported:
            self._has_reported = True
            self._log.warning(log_text(too_large_error(self._topic, size_wh, self._fix)))
        return False


def too_large_error(topic: str, size_wh: tuple[int, int], fix: str) -> ImageError:
    """Return the reason why no image of this size is published."""
    width, height = size_wh
    return ImageError(
        'too_large',
        topic,
        f'{width} x {height} = {width * height} pixels',
        expected=f'at most {MAX_RESULT_PIXELS} pixels; larger images are skipped',
        fix=f'{fix}; /diagnostics counts skipped images as result_images_skipped',
    )
