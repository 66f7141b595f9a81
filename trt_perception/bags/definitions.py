# SPDX-License-Identifier: Apache-2.0
"""Message definitions, type hashes and QoS for the topics that the package writes to bags.

message_definitions.json has the definitions of ROS 2 Jazzy without comments; Kilted has the same.
scripts/message_definitions.py writes it.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Mapping
from typing import Final, TypedDict, cast

from trt_perception.bags.bag import BagTopic
from trt_perception.bags.qos import offered_qos

# rosbag2 puts this line in front of the definition of each type that another definition uses.
_SEPARATOR: Final = '=' * 80
_FIELD_TYPE: Final = re.compile(r'(?:(\w+)/)?([A-Z]\w*)')


class _Definition(TypedDict):
    type_hash: str
    lines: list[str]


@functools.cache
def _definitions() -> Mapping[str, _Definition]:
    file = importlib.resources.files('trt_perception.bags').joinpath('message_definitions.json')
    return cast('Mapping[str, _Definition]', json.loads(file.read_text(encoding='utf-8')))


def bag_topic(
    name: str, message: str, *, depth: int = 10, is_latched: bool = False, is_reliable: bool = True
) -> BagTopic:
    """Return a topic of a known message type, with the QoS of a publisher.

    Args:
        name: such as ``/front/detections``.
        message: package and name of the message type, such as ``sensor_msgs/Image``.
        depth: number of messages that the publisher keeps for a slow subscriber.
        is_latched: new subscribers get the last messages (transient local durability), as those of
            ``label_info`` and ``/tf_static``.
        is_reliable: whether the publisher repeats lost messages.

    Raises:
        KeyError: the package has no definition of the message type.
    """
    package, _, type_name = message.partition('/')
    full_name = f'{package}/msg/{type_name.removeprefix("msg/")}'
    return BagTopic(
        name,
        full_name,
        _full_text(full_name),
        _definitions()[full_name]['type_hash'],
        offered_qos(depth=depth, is_latched=is_latched, is_reliable=is_reliable),
    )


@functools.cache
def _full_text(full_name: str) -> str:
    """Return a definition with all definitions that it uses, as MCAP's ``ros2msg`` defines it."""
    names = [full_name]
    for name in names:  # grows by the types that it uses
        names += [used for used in _field_types(name) if used not in names]
    parts = [
        f'{_SEPARATOR}\nMSG: {name.replace("/msg/", "/")}\n' * (name != full_name)
        + ''.join(f'{line}\n' for line in _definitions()[name]['lines'])
        for name in names
    ]
    return ''.join(parts)


def _field_types(full_name: str) -> list[str]:
    """Return the message types of a type's fields, each one once."""
    package = full_name.partition('/')[0]
    matches = map(_FIELD_TYPE.match, _definitions()[full_name]['lines'])
    found = [f'{match[1] or package}/msg/{match[2]}' for match in matches if match]
    return list(dict.fromkeys(found))
