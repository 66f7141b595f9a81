# SPDX-License-Identifier: Apache-2.0
"""Finds the cameras of a bag: topics of colour images, their names, and their calibrations."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from trt_perception.bags.bag import BagMessage
from trt_perception.bags.file_bag import FileBag
from trt_perception.errors import ConfigError, ImageError
from trt_perception.files.plain_text import closest_words, join_first_items, short_repr
from trt_perception.images.bag_images import COMPRESSED, RAW
from trt_perception.model.tasks.table import OUTPUT_IMAGE_SUFFIXES
from trt_perception.model.tasks.task import LABEL_INFO
from trt_perception.offline.bags.image_reading import ImageTopic
from trt_perception.offline.bags.part import BagCamera
from trt_perception.parameters.rules import cameras_mistake

_INFO_TYPE: Final = 'sensor_msgs/msg/CameraInfo'
_SUFFIX: Final = '/compressed'


@dataclass(frozen=True)
class FoundCameras:
    """The cameras of a bag.

    Attributes:
        cameras: in the order of their names.
        image_wh: width and height of the first image of the first camera.
        remarks: one sentence for each topic of images that is left out.
    """

    cameras: tuple[BagCamera, ...]
    image_wh: tuple[int, int]
    remarks: tuple[str, ...] = ()


def find_cameras(
    bag: FileBag,
    path: str,
    given: Mapping[str, str],
    values: Mapping[str, Any],
    *,
    prefers_compressed: bool,
) -> FoundCameras:
    """Return the cameras whose images a model should see.

    Args:
        path: path of the bag, for error messages.
        given: topics by name of the camera, as the user gave them; empty to find them.
        values: parameters of the node by name. ``cameras`` limits the cameras that are found, and
            ``image_transport`` decides between raw and compressed images.
        prefers_compressed: whether ``auto`` means compressed images.

    Raises:
        ConfigError: a camera has no images, the bag has no colour images, or their topics give no
            different and valid names.
    """
    if given:
        return _use_given_cameras(bag, path, given)
    wanted = values.get('cameras', ())
    remarks: list[str] = []
    found: dict[str, tuple[BagCamera, tuple[int, int]]] = {}
    for topic in sorted(bag.topics):
        if bag.topics[topic].type not in (RAW, COMPRESSED):
            continue
        camera = _camera(bag, '', topic)
        if _is_published_by_detector(bag, topic):
            remarks.append(f'{topic} is left out: a detector published these images')
        elif (first := next(bag.messages([topic]), None)) is None:
            remarks.append(f'{topic} is left out: {_without_messages(bag)}')
        else:
            try:
                found[topic] = camera, _size_of(camera, first)
            except ImageError as error:
                remarks.append(f'{topic} is left out: {error}')
    kept = _choose_transports(found, values, prefers_compressed, remarks)
    named = _name_cameras(kept, path, wanted)
    if wanted:
        missing = [name for name in wanted if name not in named]
        if missing:
            raise ConfigError(
                f'{path}: camera {missing[0]!r}',
                'has no topic of this name',
                expected=f'one of {join_first_items([name or repr("") for name in named])}',
                fix=f'name its topic: --camera {missing[0]}=TOPIC',
            )
        remarks += [
            f'{named[name].topic} is left out: the parameter cameras does not name {name!r}'
            for name in named
            if name not in wanted
        ]
        named = {name: named[name] for name in wanted}
    if not named:
        if not remarks:
            topics = join_first_items(sorted(bag.topics)) or 'none'
            raise ConfigError(path, f'has no topic of images; its topics: {topics}')
        raise ConfigError(
            path,
            'has no colour images' + ''.join(f'; {remark}' for remark in remarks),
            fix='name a topic: --camera NAME=TOPIC',
        )
    cameras = [replace(camera, name=name) for name, camera in sorted(named.items())]
    return FoundCameras(tuple(cameras), found[cameras[0].topic][1], tuple(remarks))


def _without_messages(bag: FileBag) -> str:
    """Return why a topic has no messages, after the bag was read."""
    if bag.losses:
        return f'no message can be read; {bag.losses[0]}'
    return 'there are no messages'


def _choose_transports(
    found: Mapping[str, tuple[BagCamera, tuple[int, int]]],
    values: Mapping[str, Any],
    prefers_compressed: bool,
    remarks: list[str],
) -> list[BagCamera]:
    """Return one topic for each camera that has raw and compressed images, as the node would."""
    kept = []
    for topic, (camera, _) in found.items():
        is_pair = (
            topic.removesuffix(_SUFFIX) if camera.is_compressed else topic + _SUFFIX
        ) in found
        value = values.get(
            f'camera.{_derived_name(topic)}.image_transport', values.get('image_transport', 'raw')
        )
        wants_compressed = value == 'compressed' or (value == 'auto' and prefers_compressed)
        if is_pair and camera.is_compressed != wants_compressed:
            other = 'compressed' if wants_compressed else 'raw'
            remarks.append(f'{topic} is left out: {other} images are used (image_transport)')
            continue
        kept.append(camera)
    return kept


def _derived_name(topic: str) -> str:
    """Return the name of a camera: ``front`` for ``/front/image_raw``, ``''`` for ``/image``."""
    return '_'.join(topic.removesuffix(_SUFFIX).strip('/').split('/')[:-1])


def _name_cameras(
    cameras: Sequence[BagCamera], path: str, wanted: Sequence[str]
) -> dict[str, BagCamera]:
    """Return cameras by different names. The only camera may have the name ``''``.

    Args:
        wanted: names of the cameras to use; empty for all. The names of others may be invalid.

    Raises:
        ConfigError: a topic gives no valid name, or two topics give one name.
    """
    counts = Counter(_derived_name(camera.topic) for camera in cameras)
    named: dict[str, BagCamera] = {}
    fix = 'choose the topics, and name their cameras: --camera NAME=TOPIC'
    for camera in cameras:
        name = _derived_name(camera.topic)
        if counts[name] > 1 or (not name and len(cameras) > 1):
            name = '_'.join(camera.topic.removesuffix(_SUFFIX).strip('/').split('/'))
        subject = f'{path}: {short_repr(camera.topic)}'
        is_used = not wanted or name in wanted
        if name and is_used and (mistake := cameras_mistake([name])):
            raise ConfigError(subject, f'would be the camera {mistake["found"]}', fix=fix)
        if name in named and is_used:
            found = f'would be the camera {name}, as {short_repr(named[name].topic)}'
            raise ConfigError(subject, found, fix=fix)
        named[name] = camera
    return named


def _use_given_cameras(bag: FileBag, path: str, given: Mapping[str, str]) -> FoundCameras:
    cameras = [_given_camera(bag, path, name, topic) for name, topic in given.items()]
    sizes = []
    for camera in cameras:
        first = next(bag.messages([camera.topic]), None)
        if first is None:
            raise ConfigError(f'{path}: {camera.topic}', _without_messages(bag))
        with contextlib.suppress(ImageError):  # the report of the part has the reason
            sizes.append(_size_of(camera, first))
    return FoundCameras(tuple(cameras), sizes[0] if sizes else (0, 0))


def _given_camera(bag: FileBag, path: str, name: str, topic: str) -> BagCamera:
    known = bag.topics.get(topic)
    if known is None or known.type not in (RAW, COMPRESSED):
        images = [each.name for each in bag.topics.values() if each.type in (RAW, COMPRESSED)]
        close = closest_words(topic, images)
        raise ConfigError(
            f'{path}: --camera {name}={topic}',
            'no such topic' if known is None else known.type,
            expected=f'a topic of images: {join_first_items(images) or "none"}',
            fix=f'did you mean {close[0]}' if close else '',
        )
    return _camera(bag, name, topic)


def _camera(bag: FileBag, name: str, topic: str) -> BagCamera:
    """Return a camera with the calibration next to its images, if the bag has it."""
    is_compressed = bag.topics[topic].type == COMPRESSED
    base = topic.removesuffix(_SUFFIX) if is_compressed else topic
    info = f'{base.rpartition("/")[0]}/camera_info'
    known = bag.topics.get(info)
    has_info = known is not None and known.type == _INFO_TYPE
    return BagCamera(name, topic, is_compressed, info if has_info else '')


def _is_published_by_detector(bag: FileBag, topic: str) -> bool:
    base = topic.removesuffix(_SUFFIX)
    return any(
        base.endswith(suffix) and f'{base.removesuffix(suffix)}/{LABEL_INFO.name}' in bag.topics
        for suffix in OUTPUT_IMAGE_SUFFIXES
    )


def _size_of(camera: BagCamera, message: BagMessage) -> tuple[int, int]:
    """Return width and height of an image; 0 if it cannot be read, because others may be readable.

    Raises:
        ImageError: the topic has no colour images.
    """
    reader = ImageTopic('', is_compressed=camera.is_compressed, decodes_jpeg=False)
    try:
        _, frame = reader.read(message.data)
    except ImageError as error:
        if error.reason == 'unknown_encoding':
            raise
        return 0, 0
    return frame.width, frame.height
