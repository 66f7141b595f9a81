# SPDX-License-Identifier: Apache-2.0
"""Environment variables for the cheap transport of large images, and fixes for lost images.

The command ``scripts/bench transport`` measures their effect.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Final

#: Variables with the path of a Fast DDS profile. Jazzy and older releases read only the first, and
#: Kilted and newer releases read only the second.
PROFILE_VARIABLES: Final = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')

#: Fast DDS profiles in the package's share folder: for senders of large images, and for the node.
CAMERA_PROFILE: Final = 'config/fastdds_large_images.xml'
NODE_PROFILE: Final = 'config/fastdds_node.xml'

#: Smaller messages arrive reliably even with the default transport.
LARGE_MESSAGE_BYTES: Final = 100_000

# Each image is allocated and freed. If glibc returns the memory to the kernel each time, page
# faults are half of the cost of receiving. The C library reads these variables at process start.
_ALLOCATOR: Final = {
    'MALLOC_MMAP_THRESHOLD_': '1073741824',
    'MALLOC_TRIM_THRESHOLD_': '1073741824',
    'MALLOC_TOP_PAD_': '67108864',
}
# The options of mallopt(3) with the effect of these variables.
_MALLOPT_OPTIONS: Final = {
    'MALLOC_MMAP_THRESHOLD_': -3,
    'MALLOC_TRIM_THRESHOLD_': -1,
    'MALLOC_TOP_PAD_': -2,
}


def transport_environment(
    profile: str, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return the variables that a receiver of images needs and `environment` does not set.

    Args:
        profile: path of a Fast DDS profile, where ``~`` is the home folder; empty or ``none`` sets
            no profile.
        environment: variables that are set; the user's values are kept.
    """
    wanted = dict(_ALLOCATOR)
    if profile not in ('', 'none'):
        wanted.update(dict.fromkeys(PROFILE_VARIABLES, os.path.expanduser(profile)))
    return {name: value for name, value in wanted.items() if name not in environment}


def keep_freed_memory() -> None:
    """Set the options of the allocator that ``detect.launch.py`` sets for a node.

    Variables that the user set are kept. Only glibc has these settings.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in transport_environment('').items():
            mallopt(_MALLOPT_OPTIONS[name], int(value))


def node_profile_environment(share: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that select the node's Fast DDS profile. A user's own profile stays.

    Fast DDS reads the profile once, with the first participant of a process.

    Args:
        environment: environment of the node's process.
    """
    return {
        name: str(share / NODE_PROFILE)
        for name in PROFILE_VARIABLES
        if name not in environment or _shipped_profile(environment[name]) == CAMERA_PROFILE
    }


def has_node_profile(environment: Mapping[str, str]) -> bool:
    """Return whether the process uses the node's Fast DDS profile, with little shared memory."""
    return all(
        _shipped_profile(environment.get(name, '')) == NODE_PROFILE for name in PROFILE_VARIABLES
    )


def _shipped_profile(path: str) -> str:
    """Return NODE_PROFILE or CAMERA_PROFILE if a path names this file; else an empty text.

    The file may be of any installation of the package, such as an underlay, and the path may be a
    link. With ``colcon build --symlink-install``, the installed file itself is a link.
    """
    paths = (path, os.path.realpath(path))
    return next(
        (
            profile
            for profile in (NODE_PROFILE, CAMERA_PROFILE)
            if any(each.endswith(f'/trt_perception/{profile}') for each in paths)
        ),
        '',
    )


#: The image topic in advice that cannot name the right topic.
SOME_TOPIC: Final = '/its/topic'


def start_arguments(image: str = '', transport: str = '', camera: str = '') -> str:
    """Return the arguments of the start command for another image topic or transport.

    The transport of one of several cameras is a line of the parameter file, which the launch file
    and the node read.

    Args:
        image: the new topic; empty leaves the topic unchanged.
        transport: ``raw`` or ``compressed``; empty leaves the transport unchanged.
        camera: name of the camera; empty if the node has only one camera.
    """
    if camera and not image:
        return f'camera.{camera}.image_transport: {transport} (parameter file)'
    launch, node = [], ['--ros-args']
    if image:
        launch.append(f'image_topic:={image}')
        node.append(f'-r {camera}/image:={image}' if camera else f'-r image:={image}')
    if transport:
        launch.append(f'image_transport:={transport}')
        of_camera = f'camera.{camera}.' if camera else ''
        node.append(f'-p {of_camera}image_transport:={transport}')
    typed = f'{" ".join(node)} (detector_node)'
    if not camera:
        return f'{" ".join(launch)} (detect.launch.py) or {typed}'
    # Arguments of the launch file are for all cameras.
    for_all = ", or for all cameras image_topic:='/{camera}/its_topic' (detect.launch.py)"
    return typed + for_all if image == SOME_TOPIC else typed


def may_be_camera(topic: str) -> bool:
    """Return whether a camera may publish this topic. Detectors publish debug images and masks."""
    return not topic.removesuffix('/compressed').endswith(('/debug_image', '/masks'))


def suggest_image_topic(
    topics: Mapping[str, str], image: str, transport: str, camera: str = ''
) -> str:
    """Return a sentence with the published image topics and the arguments for the nearest one.

    Args:
        topics: type of each published topic, without the topics of the node itself.
        image: the node's topic of raw images.
        transport: the node's transport, ``raw`` or ``compressed``.
        camera: name of the camera; empty if the node has only one camera.

    Returns:
        The sentence; empty if no images are published.
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
    # Nearest first: the other transport of this topic; the raw topic, if `image` ends with
    # /compressed; topics with most leading parts in common; topics with the camera's name.
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
    """Return the number of equal parts at the beginning of two topics."""
    pairs = zip(topic.split('/'), other.split('/'), strict=False)
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))


def loss_fix(
    share: Path,
    reliability: str,
    environment: Mapping[str, str] = os.environ,
    *,
    camera: str = '',
    on_this_machine: bool | None = None,
) -> str:
    """Return the fix for large images that are lost on the way to this process.

    Args:
        reliability: reliability of the subscription, ``reliable`` or ``best_effort``.
        environment: environment of this process.
        camera: name of the camera; empty if the node has only one camera.
        on_this_machine: whether the camera runs on this machine; None gives both fixes.
    """
    middleware = environment.get('RMW_IMPLEMENTATION') or 'rmw_fastrtps_cpp'
    own = next(filter(None, map(environment.get, PROFILE_VARIABLES)), '')
    is_shipped = not own or bool(_shipped_profile(own))
    local = f'configure {middleware} with larger buffers or shared memory'
    network = (
        'raise net.core.rmem_max on both machines, lower the rate of the camera, or use '
        f'compressed images with {start_arguments(transport="compressed", camera=camera)}'
    )
    if middleware in ('rmw_fastrtps_cpp', 'rmw_fastrtps_dynamic_cpp'):
        profile = str(share / CAMERA_PROFILE) if is_shipped else own
        which = 'for large images' if is_shipped else 'of the node'
        where = 'was started' if on_this_machine else 'runs on this machine'
        assignments = ' '.join(f'{name}={shlex.quote(profile)}' for name in PROFILE_VARIABLES)
        local = (
            f'if the camera {where} without the profile {which}, start it in a shell after '
            f'export {assignments}'
        )
    if on_this_machine is None:
        cure = f'{local}; if the camera runs on another machine, {network}'
    else:
        cure = local if on_this_machine else network
    if reliability == 'best_effort':
        cure += '; a camera with reliable QoS loses fewer images'
    return cure
