# SPDX-License-Identifier: Apache-2.0
"""Run soaks: each function keeps the node busy and returns promised and measured figures.

scripts/soak runs them for seconds to hours. ``intake`` is the node's parameter image_intake.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import signal
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from support.nodes.graph import (
    HANDSHAKE,
    TRANSITIONS,
    Detector,
    command_image,
    frame_counts,
    image_message,
    picture_of,
)
from support.nodes.scripted_node import SLOW
from support.programs import UNMEASURED, Program, executable, run_tied, script
from support.waiting import WaitTimeoutError
from trt_perception.images.encode import encode_bgr
from trt_perception.images.frame import PIXEL_FORMATS

TEST_FOLDER = Path(__file__).resolve().parents[2]
PICTURE = picture_of((0, 0, 0), frame_id=HANDSHAKE)


@dataclass(frozen=True)
class Figure:
    """Holds a promise and the value measured for it.

    Attributes:
        promise: the promise in words.
        limit: largest allowed value.
        value: measured value.
        unit: unit of both.
    """

    promise: str
    limit: float
    value: float
    unit: str = ''

    @property
    def is_within_limit(self) -> bool:
        return self.value <= self.limit


def lifecycle(model, *, warm_up=200, cycles=200, intake='auto'):
    """Configure, activate, deactivate and clean up repeatedly."""
    ended = run_tied(
        [*script('soak/soak_lifecycle_node.py'), model, warm_up, cycles, intake],
        timeout_s=120 + 2 * (warm_up + cycles),
    )
    ended.check_returncode()
    kept = json.loads(ended.stdout.splitlines()[-1])
    return [
        Figure('memory that one cycle does not free', 10.0, kept['rss_kb_per_cycle'], 'KB'),
        Figure(f'file descriptors kept by {cycles} cycles', 0, kept['descriptors']),
        Figure(f'threads kept by {cycles} cycles', 0, kept['threads']),
    ]


def balanced(values):
    """Return whether the counts of a status add up."""
    counts = frame_counts(values)
    ended = counts['published'] + sum(counts['dropped'].values()) + counts['failed']
    return counts['received'] == ended + counts['in flight']


def transitions(client, model=None, *, seconds=60.0, seed=0, intake='auto'):
    """Request transitions in any order, possible or not, and set parameters, while images arrive.

    Without a model, frames of scripted_node take 50 ms each, so most requests come during a frame.
    """
    rng = random.Random(seed)
    command = None if model else script('nodes/scripted_node.py')
    parameters = {'engine_path': str(model or 'none'), 'image_intake': intake}
    detector = Detector(client, parameters, command=command)
    picture = PICTURE if model else command_image(SLOW, frame_id=HANDSHAKE)
    names = [name for name in TRANSITIONS if 'shutdown' not in name]
    possible = {
        ('unconfigured', 'configure'): 'inactive',
        ('inactive', 'activate'): 'active',
        ('inactive', 'cleanup'): 'unconfigured',
        ('active', 'deactivate'): 'inactive',
    }
    asked = wrong = unbalanced = 0
    try:
        detector.bring_to('unconfigured')
        state, end = 'unconfigured', time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(rng.randrange(4)):
                detector.camera.publish(picture)
            if rng.random() < 0.3:
                # The threshold may change in every state, within its range. The rate may change
                # only while the node is unconfigured.
                threshold, rate_hz = rng.choice([0.1, 0.5, 0.9, 1.5]), rng.uniform(0, 50)
                answers = detector.set(
                    {'confidence_threshold': threshold, 'debug_image.max_rate_hz': rate_hz}
                )
                expected = [threshold <= 1, state == 'unconfigured']
                wrong += [successful for successful, _ in answers] != expected
            name = rng.choice(names)
            expected = possible.get((state, name))
            asked += 1
            wrong += detector.change_state(name) is not (expected is not None)
            state = expected or state
            wrong += detector.state() != state
            unbalanced += sum(not balanced(values) for values in detector.take_statuses())
        detector.bring_to('active')
        detector.connect()
        alive = detector.program.alive and 'Traceback' not in detector.program.output
    finally:
        detector.close()
    return [
        Figure(f'{asked} random transitions answered wrongly', 0, wrong),
        Figure('statuses whose counts do not add up', 0, unbalanced),
        Figure('nodes lost', 0, 0 if alive else 1),
    ]


def signals(model, *, count=200, seed=0, intake='auto'):
    """End nodes with two signals, at random times after their "node up" line."""
    rng = random.Random(seed)
    bad, seconds, beyond = [], [], []
    for index in range(count):
        parameters = {'engine_path': model, 'autostart': 'true', 'image_intake': intake}
        arguments = [
            part for pair in parameters.items() for part in ('-p', '{}:={}'.format(*pair))
        ]
        namespace = f'/signals_{index}'
        node = Program(
            [executable('detector_node'), '--ros-args', '-r', f'__ns:={namespace}', *arguments],
            UNMEASURED,
        )
        camera = None
        try:
            if index % 2:
                camera = small_camera(f'{namespace}/image', 200)
            node.wait_for_output('node up')
            # Half of the signals come during the first configure, the others during work.
            time.sleep(rng.choice([rng.uniform(0, 0.1), rng.uniform(0, 1.5)]))
            numbers = rng.choices([signal.SIGINT, signal.SIGTERM], k=2)
            # Launch, systemd and people leave such pauses between signals. Most nodes end within
            # 200 ms.
            apart = rng.uniform(0.001, rng.choice([0.16, 0.5]))
            begun = time.monotonic()
            node.send(numbers[0])
            second = threading.Timer(apart, node.send, [numbers[1]])
            second.start()
            # The node finishes the current frame or native call first.
            node.wait_for_output('ending')
            called = time.monotonic()
            code = node.wait()
            seconds.append(time.monotonic() - begun)
            beyond.append(time.monotonic() - called)
            second.join()
            if code or 'Traceback' in node.output:
                names = ' and '.join(number.name for number in numbers)
                bad.append(f'{names}, {1e3 * apart:.0f} ms apart: exit {code}\n{node.output}')
        finally:
            for program in (node, camera):
                if program is not None:
                    program.close()
    print(*bad, f'longest end after a signal: {max(seconds):.3f} s', sep='\n')
    return [
        Figure(f'of {count} pairs of signals, those with another exit code than 0', 0, len(bad)),
        Figure('time from signal to exit, 95th percentile', 1.0, percentile(seconds), 's'),
        Figure('longest time to exit after the call in progress', 1.0, max(beyond), 's'),
    ]


def small_camera(topic, rate_hz):
    """Start a camera with small images at a steady rate."""
    command = script('nodes/numbered_camera.py')
    return Program([*command, topic, 'reliable', 1, rate_hz, 0, '16x12'])


def resident_mb(program):
    for line in Path(f'/proc/{program.pid}/status').read_text().splitlines():
        if line.startswith('VmRSS'):
            return int(line.split()[1]) / 1024
    raise RuntimeError('the process is gone')


def overload(client, *, seconds=600.0, rate_hz=500.0, intake='auto'):
    """Send ten times more images than the pipeline can process."""
    command = script('soak/soak_overload_node.py')
    detector = Detector(client, {'image_intake': intake}, command=command, camera_qos=None)
    program = detector.program
    services = (
        detector.state,
        lambda: detector.get('confidence_threshold'),
        lambda: detector.set_or_fail(confidence_threshold=0.5),
    )
    camera = None
    calls, unbalanced, memory = [], 0, []
    try:
        detector.transition('configure', 'activate')
        camera = small_camera(detector.topic('image'), rate_hz)
        detector.client.spin_until(lambda: detector.detections, 'a first answer')
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for call in services:
                begun = time.monotonic()
                call()
                calls.append(time.monotonic() - begun)
            memory.append(resident_mb(program))
            _, values = detector.wait_for_status(lambda *_: True, 'a status')
            unbalanced += not balanced(values)
            # Free the received detections (50 per second) outside of the measured calls.
            detector.detections.clear()
        detector.transition('deactivate')
        _, values = detector.wait_for_status(
            lambda _, values: values['state'] == 'inactive', 'a status of the inactive node'
        )
        counts = frame_counts(values)
        unbalanced += not balanced(values)
        program.send(signal.SIGTERM)
        code = program.wait()
        node = json.loads(program.output.splitlines()[-1])
    finally:
        if camera is not None:
            camera.close()
        detector.close()
    throughput = node['published'] / node['seconds']
    # Ignore the first tenth, in which pools still fill and discovery continues.
    later = memory[len(memory) // 10 :]
    quarter = max(1, len(later) // 4)
    growth = statistics.median(later[-quarter:]) - statistics.median(later[:quarter])
    share = 100 * counts['published'] / counts['received']
    bound = node['depth'] / throughput + 1 / rate_hz
    print(f'{counts} {throughput:.1f} Hz published, {len(calls)} calls, {node}')
    return [
        Figure('images published, of images received', 20, share, '%'),
        Figure('age of detections, 95th percentile', 1e3 * bound, 1e3 * node['age_s'][1], 'ms'),
        Figure('memory growth', 2.0, growth, 'MB'),
        Figure('statuses whose counts do not add up', 0, unbalanced),
        Figure('in flight after deactivate', 0, counts['in flight']),
        Figure('response of a service, 95th percentile', 100, 1e3 * percentile(calls), 'ms'),
        Figure('response of a service, slowest', 100, 1e3 * max(calls), 'ms'),
        Figure('exit code', 0, code),
    ]


def percentile(values, share=95):
    return float(np.percentile(values, share))


SIZES = ((640, 480), (128, 96), (320, 240), (64, 48), (1280, 720))


def cameras(client, model, *, switches=100, images=10, seed=0, intake='auto'):
    """Change the size, encoding and rate of the images while the node runs."""
    rng = random.Random(seed)
    parameters = {'engine_path': str(model), 'autostart': True, 'image_intake': intake}
    detector = Detector(client, parameters)
    numbers = itertools.count(1)
    encodings = sorted({pixel_format.name for pixel_format in PIXEL_FORMATS.values()})
    lost = worst = 0
    try:
        detector.connect()
        for index in range(switches):
            width, height = rng.choice(SIZES)
            encoding = encodings[index % len(encodings)]
            rate_hz = rng.choice([5.0, 15.0, 30.0])
            rows = encode_bgr(np.full((height, width, 3), 90, np.uint8), encoding)
            stamps = []
            detector.detections.clear()
            for _ in range(images):
                stamps.append(next(numbers))
                message = image_message(
                    rows.tobytes(),
                    width,
                    height,
                    encoding,
                    step=rows.shape[1],
                    stamp=(stamps[-1], 0),
                )
                detector.camera.publish(message)
                detector.client.spin_for(1 / rate_hz)
            with contextlib.suppress(WaitTimeoutError):
                detector.client.spin_until(
                    lambda stamps=stamps: (
                        {m.header.stamp.sec for m in detector.detections} >= set(stamps)
                    ),
                    'all answers',
                    seconds=0.5,
                )
            missing = set(stamps) - {m.header.stamp.sec for m in detector.detections}
            worst, lost = max(worst, len(missing)), lost + len(missing)
        detector.connect()
        alive = detector.program.alive and detector.program.count('node up') == 1
    finally:
        detector.close()
    print(f'{lost} of {switches * images} images lost')
    return [
        Figure(f'images lost in the worst of {switches} switches', 1, worst),
        Figure('restarts', 0, 0 if alive else 1),
    ]


def faults():
    """Inject every fault of docs/errors.md; measure the time until its diagnostic."""
    command = [sys.executable, '-m', 'pytest', '-q', '-s', '-p', 'no:cacheprovider']
    output = run_tied(
        [*command, TEST_FOLDER / 'ros' / 'faults' / 'test_faults.py'], timeout_s=1200
    )
    figures = [
        Figure(f'reported: {name}', 1.0, float(seconds), 's')
        for name, seconds in (
            line.split('FIGURE ')[1].removesuffix(' s').split(': ')
            for line in output.stdout.splitlines()
            if 'FIGURE ' in line
        )
    ]
    return [*figures, Figure('faults with another outcome', 0, output.returncode)]
