# SPDX-License-Identifier: Apache-2.0
"""The images of a bag as paths, so that tools use them like image files.

The path of an image is ``BAG#TOPIC@TIME.png``. TOPIC has dots instead of slashes, and TIME is the
log time in ns. No file has this path: `read_bag_image` reads the message from the bag. Paths sort
by topic and time, and are unique: ``+1`` follows TIME for a second image with the same time.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.bags.bag import BagMessage
from trt_perception.bags.file_bag import FileBag
from trt_perception.bags.open_bag import is_bag, open_bag
from trt_perception.errors import ConfigError, ImageError
from trt_perception.files.plain_text import join_first_items
from trt_perception.images.bag_selection import BagSelection
from trt_perception.images.encodings import check_has_colors, read_compressed_format
from trt_perception.images.frame_pixels import frame_to_bgr
from trt_perception.wire.cdr import read_compressed, read_image
from trt_perception.wire.frames import read_compressed_frame, read_image_frame

IMAGE_SUFFIXES: Final = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm')
RAW: Final = 'sensor_msgs/msg/Image'
COMPRESSED: Final = 'sensor_msgs/msg/CompressedImage'

_NAME: Final = re.compile(r'(?s)(.+)#([^#]+)@([0-9]{1,20})(?:\+([0-9]{1,9}))?\.png')
# 19 digits reach to the year 2286, so that names of this length also sort as texts.
_TIME_DIGITS: Final = 19


class BagImageName(NamedTuple):
    """What the path of an image in a bag says.

    Attributes:
        bag: path of the bag.
        topic: name of the topic with dots instead of slashes.
        log_ns: log time in ns.
        repeat: number of earlier images of the topic with this log time.
    """

    bag: Path
    topic: str
    log_ns: int
    repeat: int


def parse_bag_image(path: Path) -> BagImageName | None:
    """Return what a path says about an image in a bag; None for other paths."""
    match = _NAME.fullmatch(path.name)
    if match is None or os.path.lexists(path):
        return None
    bag, topic, log_ns, repeat = match.groups()
    return BagImageName(path.with_name(bag), topic, int(log_ns), int(repeat or 0))


def sequence_name(name: str) -> str:
    """Return the part of an image's name that all images of its sequence share.

    This is the topic of a bag, or the folder of an image file.
    """
    match = _NAME.fullmatch(name)
    return name[: name.rindex('@')] if match else name.rpartition('/')[0]


def find_bag_images(source: str | Path, selection: BagSelection) -> list[Path]:
    """Return the paths of the selected images of a bag, sorted by log time.

    Raises:
        ConfigError: the bag cannot be read, or does not have exactly one topic to choose.
    """
    path = Path(os.path.expanduser(source))
    return [image for image, _ in read_bag_images(path, selection)]


def read_bag_images(path: Path, selection: BagSelection) -> Iterator[tuple[Path, BagMessage]]:
    """Yield path and message of the selected images of a bag, sorted by log time.

    Raises:
        ConfigError: the bag cannot be read, has no image, or does not have exactly one topic to
            choose.
    """
    bag = _opened(path)
    topic = choose_topic(bag, path, selection.topic)
    count = 0
    for image, message in _named_messages(bag, path, topic):
        if count % selection.every == 0:
            yield image, message
        count += 1
    if not count:
        raise ConfigError(f'{path}, topic {topic}', 'no image', fix='choose another --topic')


def _named_messages(bag: FileBag, path: Path, topic: str) -> Iterator[tuple[Path, BagMessage]]:
    path = path if path.name else path.absolute()  # the folder . has no name
    last_ns, repeat = -1, 0
    for message in bag.messages([topic]):
        repeat = repeat + 1 if message.log_ns == last_ns else 0
        last_ns = message.log_ns
        suffix = f'+{repeat}' if repeat else ''
        name = f'{path.name}#{_short_topic(topic)}@{last_ns:0{_TIME_DIGITS}d}{suffix}.png'
        yield path.with_name(name), message


def _short_topic(topic: str) -> str:
    return topic.strip('/').replace('/', '.').replace('#', '.')


def choose_topic(bag: FileBag, path: Path, topic: str = '') -> str:
    """Return the topic to read: the given one, or the only one with colour images.

    Raises:
        ConfigError: the topic has no images, or there is no or more than one topic to choose.
    """
    if topic:
        known = bag.topics.get(topic)
        if known is None:
            bag.messages([topic])  # raises the error that explains why
        elif known.type not in (RAW, COMPRESSED):
            fix = f'choose one of {_names(image_topics(bag))}'
            raise ConfigError(
                f'{path}, topic {topic}', known.type, expected=f'{RAW} or {COMPRESSED}', fix=fix
            )
        return topic
    found = image_topics(bag)
    if len(found) == 1:
        return found[0]
    if not found:
        raise ConfigError(
            str(path),
            f'no topic with colour images ({_names(sorted(bag.topics))})',
            expected=f'a topic of {RAW} or {COMPRESSED}',
        )
    raise ConfigError(
        str(path),
        f'{len(found)} topics with colour images: {_names(found)}',
        fix=f'choose one: --topic {found[0]}',
    )


def _names(topics: list[str]) -> str:
    return join_first_items(topics, 20) or 'none'


def image_topics(bag: FileBag) -> list[str]:
    """Return the topics whose first image has colours or brightness, sorted. Depth is left out."""
    found = [name for name, topic in bag.topics.items() if topic.type in (RAW, COMPRESSED)]
    return sorted(name for name in found if _has_colors(bag, name))


def _has_colors(bag: FileBag, topic: str) -> bool:
    message = next(bag.messages([topic]), None)
    if message is None:
        return False
    data = np.frombuffer(message.data, np.uint8)
    try:
        if bag.topics[topic].type == RAW:
            check_has_colors(read_image(data).encoding)
        else:
            read_compressed_format(read_compressed(data).format)
    except ImageError as error:
        # A damaged first image does not make the topic one of depth.
        return error.reason != 'unknown_encoding'
    return True


def check_bag_images(path: Path, selection: BagSelection) -> None:
    """Check that a bag has an image of the selection. Raises as `read_bag_images`."""
    next(read_bag_images(path, selection))


def decode_bag_images(
    path: Path, selection: BagSelection
) -> Iterator[tuple[Path, Callable[[], npt.NDArray[np.uint8]]]]:
    """Yield paths of the selected images of a bag, each with a function that decodes the image.

    Raises:
        ConfigError: as `read_bag_images`. The functions raise ImageError.
    """
    bag = _opened(path)
    kind = bag.topics[choose_topic(bag, path, selection.topic)].type
    for image, message in read_bag_images(path, selection):
        yield image, functools.partial(decode_bag_image, kind, message, image)


def decode_bag_image(kind: str, message: BagMessage, path: Path) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image message, as the node reads them.

    Args:
        kind: type of the topic.
        path: path of the image, for errors.

    Returns:
        uint8 (height, width, 3), BGR.

    Raises:
        ImageError: the message cannot be read as an image with colours.
    """
    read = read_image_frame if kind == RAW else read_compressed_frame
    try:
        return frame_to_bgr(read(message.data)[1])
    except ImageError as error:
        found = f'cannot be decoded as an image: {error}'
        raise ImageError(error.reason, str(path), found) from error


def read_bag_image(path: Path, name: BagImageName) -> npt.NDArray[np.uint8]:
    """Return the pixels of an image in a bag: uint8 (height, width, 3), BGR.

    Raises:
        ImageError: the message is missing, or cannot be read as an image with colours.
    """
    kind, message = _find_message(path, name)
    return decode_bag_image(kind, message, path)


def read_bag_message(path: Path, name: BagImageName) -> bytes:
    """Return the serialised message of an image in a bag.

    Raises:
        ImageError: the message is missing.
    """
    return _find_message(path, name)[1].data


def _find_message(path: Path, name: BagImageName) -> tuple[str, BagMessage]:
    try:
        bag = _opened(name.bag)
        for topic in bag.topics.values():
            if topic.type in (RAW, COMPRESSED) and _short_topic(topic.name) == name.topic:
                found = bag.messages([topic.name], name.log_ns, name.log_ns + 1)
                message = next(itertools.islice(found, name.repeat, None), None)
                if message is not None:
                    return topic.type, message
    except ConfigError as error:
        raise ImageError('not_decodable', str(path), f'cannot be read: {error}') from error
    raise ImageError('not_decodable', str(path), 'the bag has no such image')


def is_bag_source(source: str | Path) -> bool:
    """Return whether a source of images is a bag. A folder that has image files, too, is not."""
    path = Path(os.path.expanduser(source))
    if not is_bag(path):
        return False
    return not os.path.isdir(path) or not any(map(is_image_name, path.iterdir()))


def is_image_name(path: Path) -> bool:
    """Return whether a path has the suffix of an image file."""
    return path.suffix.lower() in IMAGE_SUFFIXES


def bag_losses(source: str | Path) -> list[str]:
    """Return a sentence for each part of a bag that could not be read so far.

    Empty for other sources.
    """
    path = Path(os.path.expanduser(source))
    return [str(loss) for loss in _opened(path).losses] if is_bag_source(path) else []


@functools.lru_cache(maxsize=8)
def _opened(path: Path) -> FileBag:
    """Return a bag, opened once, because images are read one by one."""
    return open_bag(path)
