# SPDX-License-Identifier: Apache-2.0
"""One measurement of `scripts/bench cameras`: one side of a comparison, for some seconds."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass
from pathlib import Path

import gpus
from cameras_report import match, side_figures
from cameras_roles import DRAIN_S, READY_LINE, Schedule
from children import Children
from common import SHARE, launch_environment
from host import cpu_seconds, memory_mib, shared_memory_mib

from trt_perception.parameters.launch_arguments import node_shares

ROLES = Path(__file__).with_name('cameras_roles.py')
NODE = SHARE.parents[1] / 'lib' / 'trt_perception' / 'detector_node'
#: Seconds for starting all processes. The first start compiles the model for the GPU.
START_S = 300.0
#: The cameras go on for this time after the window. The memory is read in this time.
TAIL_S = 1.0
#: More detections per second would make a client the bottleneck.
CLIENT_HZ = 250.0


@dataclass(frozen=True)
class Case:
    """What the cameras send.

    Attributes:
        image: ``raw`` or ``jpeg``.
        count: number of cameras.
        timing: ``random`` or ``triggered``.
    """

    image: str
    count: int
    timing: str

    @property
    def cameras(self):
        """The names of the cameras."""
        return [f'camera_{number}' for number in range(self.count)]

    def __str__(self):
        return f'{self.image}, {self.count} cameras, {self.timing}'


def start_node(children, options, case, side, cameras, arguments=(), log=None):
    """Start a detector_node of a side for some cameras; return its Child.

    Args:
        arguments: further ROS arguments of this node.
        log: file for the node's log, with lines of level INFO; None keeps no file.
    """
    parameters = {
        'engine_path': options.model.resolve(),
        'autostart': 'true',
        'image_transport': 'compressed' if case.image == 'jpeg' else 'raw',
    }
    words = ['--ros-args', '--log-level', 'info' if log else 'warn']
    for parameter in (*(f'{n}:={v}' for n, v in parameters.items()), *options.parameter):
        words += ['-p', parameter]
    words += arguments
    if len(cameras) == 1 and side != 'two':
        words += ['-r', f'__ns:=/{cameras[0]}']
    else:
        words += ['-p', f'cameras:=[{",".join(cameras)}]']
    if side != 'other':
        return children.start(
            NODE, *words, environment=launch_environment(), answers=False, log=log
        )
    # Python finds the modules of the working folder first.
    return children.start(
        *('-c', options.other_node_program, *words),
        environment=launch_environment(),
        folder=options.other,
        answers=False,
        log=log,
    )


def two_nodes(options, cameras):
    """Return cameras and ROS arguments of two nodes, as detect.launch.py nodes:=2 shares them."""
    given = dict(text.split(':=', 1) for text in options.parameter if ':=' in text)
    devices = [int(number) for number in re.findall(r'\d+', given.get('device_ids', ''))]
    nodes = node_shares({}, 2, cameras, devices)
    return [
        (node.cameras, ['-r', f'__node:={node.name}', *_shared_parameters(node.parameters)])
        for node in nodes
    ]


def _shared_parameters(parameters):
    for name in ('nodes_on_this_machine', 'device_ids'):
        yield from ('-p', f'{name}:={parameters[name]}')


def other_node_program(folder):
    """Return a Python program that runs the detector_node of an unpacked version of the package.

    Raises:
        ValueError: the folder does not contain the package.
    """
    setup = folder / 'setup.py'
    found = re.search(
        r"'detector_node = ([\w.]+):(\w+)'", setup.read_text() if setup.is_file() else ''
    )
    if not found:
        raise ValueError(f'{setup} does not exist, or does not define detector_node')
    return f'import sys; from {found[1]} import {found[2]} as main; sys.exit(main())'


def groups(cameras, most):
    """Return groups of nearly equal size, each at most ``most`` cameras."""
    number = -(-len(cameras) // most)
    bounds = [len(cameras) * index // number for index in range(number + 1)]
    return [cameras[first:end] for first, end in itertools.pairwise(bounds)]


def start_nodes(children, options, case, side, number):
    """Start the nodes of a side for a round. Return their Children."""
    environment = launch_environment()
    if side in ('intake', 'relay'):
        words = side, *case.cameras, *image_words(options, case), '--topic', options.topic
        return [children.start(ROLES, *words, environment=environment)]
    shares = {
        'many': [([name], []) for name in case.cameras],
        'two': two_nodes(options, case.cameras) if side == 'two' else [],
    }.get(side, [(case.cameras, [])])
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
        name = f'{case.image}_{case.count}_{case.timing}_{side}_{number}'
        shares = [
            (*share, options.logs / f'{name}_{index}.log') for index, share in enumerate(shares)
        ]
    return [start_node(children, options, case, side, *share) for share in shares]


def image_words(options, case):
    """Return the arguments of a role for the images of the cameras."""
    return '--image', case.image, '--size', options.size


def measure(options, case, side, number, start=start_nodes):
    """Run cameras, nodes and clients once.

    Args:
        options: of the command line. ``pictures`` has the files of the pictures that the cameras
            send, in turn; empty for a picture of random detail.
        case: what the cameras send.
        side: ``intake``, or a side that ``start`` knows.
        number: of the round. Rounds with the same number have the same camera phases.
        start: starts the nodes of a side. Called as start_nodes.

    Returns:
        The figures.
    """
    before_mib = gpus.used_mib()
    environment = launch_environment()
    with Children() as children:

        def role(name, cameras, *words):
            return children.start(ROLES, name, *cameras, *words, environment=environment)

        nodes = receivers = start(children, options, case, side, number)
        if side != 'intake':
            most = max(1, int(CLIENT_HZ / options.rate))
            receivers = [
                role('client', names, '--topic', options.topic)
                for names in groups(case.cameras, most)
            ]
        pictures = itertools.cycle([('--picture', each) for each in options.pictures] or [()])
        cameras = [
            role('camera', [name], *image_words(options, case), *picture)
            for name, picture in zip(case.cameras, pictures)  # noqa: B905 (pictures never end)
        ]
        viewers = [role('viewer', case.cameras, '--view', options.view)] * bool(
            options.view and side != 'intake'
        )
        children.wait_for(READY_LINE, [*cameras, *receivers, *viewers], START_S)
        start_s = time.time() + 0.5
        first_s = start_s + options.warm_up
        end_s = first_s + options.seconds
        schedule = Schedule(start_s, end_s + TAIL_S, options.rate, case.timing, number)
        for child in (*cameras, *receivers):
            child.tell(schedule.line())
        children.sleep_until(first_s)
        begun_s, cpu_s = time.monotonic(), sum(cpu_seconds(node.pid) for node in nodes)
        children.sleep_until(end_s)
        cpu_s = sum(cpu_seconds(node.pid) for node in nodes) - cpu_s
        cpu_share = cpu_s / (time.monotonic() - begun_s)
        memory = memory_figures(nodes, before_mib)
        limit_s = TAIL_S + DRAIN_S + 30
        sent, arrivals, objects, missed = {}, {}, {}, 0
        for camera in cameras:
            sent.update(camera.result(limit_s))
        for receiver in receivers:
            result = receiver.result(limit_s)
            arrivals.update(result['arrivals'])
            objects.update(result['objects'])
            missed += result['missed']
        for node in nodes:
            if node not in receivers:
                node.check()
        lines = itertools.chain.from_iterable(node.log_lines() for node in nodes)
        warnings = [line for line in lines if line.startswith('[WARN]')]
    window_ns = (round(first_s * 1e9), round(end_s * 1e9))
    latencies_ns = {name: match(sent[name], arrivals[name], *window_ns) for name in case.cameras}
    figures = side_figures(latencies_ns, cpu_share * options.seconds, options.seconds)
    counts = {'missed_by_clients': missed, 'objects': objects}
    return {**figures, **memory, **counts, 'warnings': warnings}


def memory_figures(nodes, gpu_before_mib):
    """Return the memory of the nodes, and the increase of GPU memory, in MiB."""
    rss_mib, pss_mib = map(sum, zip(*(memory_mib(node.pid) for node in nodes), strict=True))
    return {
        'rss_mib': rss_mib,
        'pss_mib': pss_mib,
        'shared_mib': sum(shared_memory_mib(node.pid) for node in nodes),
        'gpu_mib': None if gpu_before_mib is None else gpus.used_mib() - gpu_before_mib,
    }
