# SPDX-License-Identifier: Apache-2.0
"""The QoS of a topic, as rosbag2 writes it: the YAML text ``offered_qos_profiles``.

Since Jazzy, rosbag2 writes policies by name. Older releases wrote numbers, which Jazzy misreads in
a bag of its own version. So the writer replaces numbers by names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trt_perception.bags.bag import BagTopic
from trt_perception.errors import ConfigError
from trt_perception.files.yaml_text import read_yaml

# Names by number: the enumerations of rmw/types.h.
_POLICIES: Final[Mapping[str, tuple[str, ...]]] = {
    'history': ('system_default', 'keep_last', 'keep_all', 'unknown'),
    'reliability': ('system_default', 'reliable', 'best_effort', 'unknown', 'best_available'),
    'durability': ('system_default', 'transient_local', 'volatile', 'unknown', 'best_available'),
    'liveliness': (
        *('system_default', 'automatic', 'manual_by_node', 'manual_by_topic', 'unknown'),
        'best_available',
    ),
}
# rmw's infinite duration: 2^63 - 1 ns.
_INFINITE: Final = {'sec': 9223372036, 'nsec': 854775807}
# All values of a profile, in rosbag2's order.
_DEFAULT: Final[Mapping[str, Any]] = {
    'history': 'keep_last',
    'depth': 10,
    'reliability': 'reliable',
    'durability': 'volatile',
    'deadline': _INFINITE,
    'lifespan': _INFINITE,
    'liveliness': 'automatic',
    'liveliness_lease_duration': _INFINITE,
    'avoid_ros_namespace_conventions': False,
}
_EXPECTED: Final = 'a list of QoS profiles of rosbag2'


def offered_qos(*, depth: int, is_latched: bool, is_reliable: bool) -> str:
    """Return the text for one publisher that keeps the last messages.

    Args:
        depth: number of messages that the publisher keeps for a slow subscriber.
        is_latched: new subscribers get the last messages (transient local durability).
        is_reliable: whether the publisher repeats lost messages.
    """
    profile = {
        **_DEFAULT,
        'depth': depth,
        'reliability': 'reliable' if is_reliable else 'best_effort',
        'durability': 'transient_local' if is_latched else 'volatile',
    }
    return _profiles_text([profile])


def jazzy_qos(topic: BagTopic) -> str:
    """Return the QoS of a topic with policies by name; empty if the topic has none.

    Raises:
        ConfigError: the text is not a list of QoS profiles.
    """
    if not topic.qos:
        return ''
    try:
        content, _ = read_yaml(topic.qos, topic.name)
    except ConfigError as error:
        raise _qos_error(topic, error.found) from error
    if not isinstance(content, list):
        raise _qos_error(topic, 'no list')
    return _profiles_text([_checked_profile(topic, profile) for profile in content])


def _checked_profile(topic: BagTopic, profile: Any) -> dict[str, Any]:
    if not isinstance(profile, dict):
        raise _qos_error(topic, 'an entry that is no mapping')
    checked: dict[str, Any] = {}
    for key, default in _DEFAULT.items():
        if key not in profile:
            raise _qos_error(topic, f'a profile without {key}')
        checked[key] = _checked_value(key, default, profile[key])
        if checked[key] is None:
            raise _qos_error(topic, f'an unknown value of {key}')
    return checked


def _checked_value(key: str, default: Any, value: Any) -> Any:
    """Return a value of a profile, with a policy by name; None if it is invalid."""
    if names := _POLICIES.get(key):
        if type(value) is int and 0 <= value < len(names):
            return names[value]
        return value if value in names else None
    if isinstance(default, dict):
        is_duration = isinstance(value, dict) and all(_is_count(value.get(k)) for k in default)
        return {unit: value[unit] for unit in default} if is_duration else None
    if type(value) is not type(default) or (type(value) is int and not _is_count(value)):
        return None
    return value


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _profiles_text(profiles: list[dict[str, Any]]) -> str:
    """Return the YAML text of profiles, in the layout of rosbag2."""
    lines = ['[]'] if not profiles else []
    for profile in profiles:
        bullet = '- '
        for key, value in profile.items():
            if isinstance(value, dict):
                lines.append(f'{bullet}{key}:')
                lines += [f'    {unit}: {number}' for unit, number in value.items()]
            else:
                text = str(value).lower() if isinstance(value, bool) else value
                lines.append(f'{bullet}{key}: {text}')
            bullet = '  '
    return '\n'.join(lines)


def _qos_error(topic: BagTopic, found: str) -> ConfigError:
    return ConfigError(
        f'QoS of topic {topic.name}', found, expected=_EXPECTED, fix='leave this topic out'
    )
