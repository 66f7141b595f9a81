"""Environment variables that make large images cheap to receive, and what to do without them.

Measured by scripts/bench transport.
"""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping
from typing import Final

__all__ = [
    *('LARGE_MESSAGE_BYTES', 'PROFILE_VARIABLES', 'loss_fix', 'may_be_camera', 'start_arguments'),
    *('suggest_image_topic', 'transport_environment'),
]

#: What names a Fast DDS profile: up to Jazzy only the first is read, since Kilted only the second.
PROFILE_VARIABLES: Final = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')

#: Smaller messages pass even an untuned transport.
LARGE_MESSAGE_BYTES: Final = 100_000

# Images are allocated and freed at the camera's rate. Where glibc returns the memory each time,
# page faults are half of what receiving costs. The C library reads these when a process starts.
_ALLOCATOR: Final = {
    'MALLOC_MMAP_THRESHOLD_': '1073741824',
    'MALLOC_TRIM_THRESHOLD_': '1073741824',
    'MALLOC_TOP_PAD_': '67108864',
}


def transport_environment(
    profile: str, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables to set for a process that receives images, without those already set.

    Args:
        profile: path of a Fast DDS profile; empty or ``none`` for none. ``~`` is the home folder.
        environment: what is set already; the user's values win.
    """
    wanted = dict(_ALLOCATOR)
    if profile not in ('', 'none'):
        wanted.update(dict.fromkeys(PROFILE_VARIABLES, os.path.expanduser(profile)))
    return {name: value for name, value in wanted.items() if name not in environment}


def start_arguments(image: str = '', transport: str = '', camera: str = '') -> str:
    """Return what to type behind the start command for another image topic or transport.

    Args:
        image: topic; empty: as it is.
        transport: ``raw`` or ``compressed``; empty: as it is.
        camera: which one, empty where there is only one.
    """
    launch, node = [], ['--ros-args']
    if image:
        launch.append(f'image_topic:={image}')
        node.append(f'-r {camera}/image:={image}' if camera else f'-r image:={image}')
    if transport:
        launch.append(f'image_transport:={transport}')
        of_camera = f'camera.{camera}.' if camera else ''
        node.append(f'-p {of_camera}image_transport:={transport}')
    typed = f'{" ".join(node)} (detector_node)'
    # Arguments of the launch file are for all cameras.
    return typed if camera else f'{" ".join(launch)} (detect.launch.py) or {typed}'


def may_be_camera(topic: str) -> bool:
    """Return whether a topic of images may be a camera's, and is not what a detector publishes."""
    return not topic.removesuffix('/compressed').endswith(('/debug_image', '/masks'))


def suggest_image_topic(
    topics: Mapping[str, str], image: str, transport: str, camera: str = ''
) -> str:
    """Return where images are published and what to type to take them, '' where none are.

    Args:
        topics: type of each topic that has a publisher, without the node's own.
        image: the node's topic of raw images.
        transport: what the node takes, ``raw`` or ``compressed``.
        camera: for which it takes them, empty where there is only one.
    """
    sources = []
    for name, kind in topics.items():
        base = name.removesuffix('/compressed')
        if not may_be_camera(name):
            continue
        if kind == 'sensor_msgs/msg/Image':
            sources.append((name, 'raw', name))
        elif kind == 'sensor_msgs/msg/CompressedImage' and base != name:
            sources.append((base, 'compressed', name))
    if not sources:
        return ''
    # The other transport of this topic first, then the topic whose /compressed was named, too,
    # then what is in the same namespace, and what is called like the camera.
    nearest = (image, image.removesuffix('/compressed'))
    sources.sort(
        key=lambda s: (
            *(s[0] != name for name in nearest),
            -_common_parts(s[0], image),
            camera not in s[0].split('/'),
            camera not in s[0],
            s[1] != transport,
            s[2],
        )
    )
    topic, other, _ = sources[0]
    start = start_arguments(
        '' if topic == image else topic, '' if other == transport else other, camera
    )
    return f'images are on {", ".join(name for *_, name in sources[:5])}: start with {start}'


def _common_parts(topic: str, other: str) -> int:
    """Return how many parts two topics begin with alike."""
    pairs = zip(topic.split('/'), other.split('/'), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def loss_fix(
    profile: str,
    reliability: str,
    environment: Mapping[str, str] = os.environ,
    *,
    camera: str = '',
) -> str:
    """Return what to do about large images that get lost on the way to this process.

    Args:
        profile: path of the Fast DDS profile for large images.
        reliability: what the subscription asks for, ``reliable`` or ``best_effort``.
        environment: of this process.
        camera: whose images they are, empty where there is only one.
    """
    middleware = environment.get('RMW_IMPLEMENTATION') or 'rmw_fastrtps_cpp'
    own = next(filter(None, map(environment.get, PROFILE_VARIABLES)), '')
    buffers = (
        'from another machine, raise net.core.rmem_max on both sides or send less: lower the '
        'rate of the camera, or take compressed images with '
        f'{start_arguments(transport="compressed", camera=camera)}'
    )
    if middleware not in ('rmw_fastrtps_cpp', 'rmw_fastrtps_dynamic_cpp'):
        cure = f'give {middleware} larger buffers or shared memory; {buffers}'
    elif not own:
        cure = (
            'the default transport holds no large image: start the node with detect.launch.py, '
            f'and the camera in a shell after {_export(profile)}'
        )
    else:
        cure = (
            'on this machine, give the camera the profile that the node has: start it in a shell '
            f'after {_export(own)}; {buffers}'
        )
    if reliability == 'best_effort':
        cure += '; a camera that offers reliable loses fewer'
    return cure


def _export(profile: str) -> str:
    return 'export ' + ' '.join(f'{name}={shlex.quote(profile)}' for name in PROFILE_VARIABLES)
