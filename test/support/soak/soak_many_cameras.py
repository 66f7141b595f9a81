# SPDX-License-Identifier: Apache-2.0
"""Run a soak of one node with several cameras that start, stop, change, or send invalid images.

The cameras send more than the node can process, so the scheduler must choose all the time. Each
image is filled with its number, and its frame_id is the name of its camera.
"""

import contextlib
import json
import random
import signal
import statistics
import struct
import time
from collections import Counter
from pathlib import Path

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from vision_msgs.msg import Detection2DArray

from support.nodes.graph import Detector, frame_counts, picture_of
from support.programs import Program, script
from support.soak.soaks import Figure, balanced
from support.waiting import WaitTimeoutError
from trt_perception.transport.shared_memory import unfinished_ports

#: Two cameras with equal, steady rates. The names of the others describe their behaviour.
EQUAL_CAMERAS = ('left', 'right')
CAMERAS = (*EQUAL_CAMERAS, 'sizes', 'restarted', 'rubbish', 'switched')
RATE_HZ = 20
#: Frames per batch and milliseconds per batch. The throughput is half of the cameras' total rate.
PIPELINE = '2 of 40 ms'
SIZES = {'sizes': ('320x240', '64x48', '640x480')}
RELIABILITIES = ('reliable', 'best_effort')


def many_cameras(client, *, seconds=600.0, seed=0, intake='auto', limits=(5.0, 4.0)):
    """Serve all of CAMERAS with one node, and check each camera's output.

    ``limits`` are the largest difference in percent between two equal cameras, and the largest
    growth of memory in MB. The growth counts after the pools are full, which takes a minute.
    """
    rng = random.Random(seed)
    parameters = {
        'engine_path': PIPELINE,
        'cameras': list(CAMERAS),
        'image_intake': intake,
        # Best effort receives from all cameras. The soak of frames tests changes of the QoS.
        'image_qos.reliability': 'best_effort',
    }
    command = script('soak/soak_frames_node.py')
    detector = Detector(client, parameters, command=command, camera_qos=None)
    recorder = OutputRecorder(client, detector)
    rubbish = client.node.create_publisher(Image, detector.topic('rubbish/image'), 10)
    restarts, switches, memory = 0, 0, []
    with contextlib.ExitStack() as stack:
        stack.callback(detector.close)
        stack.callback(recorder.close)
        stack.callback(client.node.destroy_publisher, rubbish)
        detector.transition('configure', 'activate')
        programs = {name: camera(detector, name) for name in CAMERAS if name != 'rubbish'}
        stack.callback(lambda: [program.close() for program in programs.values()])
        recorder.wait_for(set(CAMERAS) - {'rubbish'})
        begun, before = time.monotonic(), Counter(recorder.answers)
        while time.monotonic() < begun + seconds:
            for _ in range(RATE_HZ // 4):
                publish_rubbish(rubbish, rng)
            client.spin_for(0.25)
            # Wait for 'up': a camera that is killed while it makes shared-memory ports would block
            # all others forever.
            if rng.random() < 0.1 and programs['restarted'].count('up'):
                restarts += 1
                programs['restarted'].send(signal.SIGKILL)
                programs['restarted'].close()
                programs['restarted'] = camera(detector, 'restarted', rng.choice(RELIABILITIES))
            if rng.random() < 0.2:
                switches += 1
                switch(detector, recorder, on=switches % 2 == 0)
            memory.append(own_mb(detector.program))
        answers = recorder.answers - before
        detector.transition('deactivate')
        last = recorder.settled()
        alive = detector.program.alive and 'Traceback' not in detector.program.output
        detector.program.send(signal.SIGTERM)
        code = detector.program.wait()
        node = json.loads(detector.program.output.splitlines()[-1])
    print(f'{dict(recorder.answers)}, {restarts} restarts, {switches} switches, {node}')
    print({name: frame_counts(values) for name, values in last.items()})
    return [
        *figures_of(recorder, last, restarts),
        *figures_of_equal_cameras(last, answers, limits[0]),
        *figures_of_node(node, memory, limits[1]),
        Figure('nodes lost, or with a traceback', 0, 0 if alive and not code else 1),
    ]


def switch(detector, recorder, *, on):
    """Switch a camera on or off. If the service does not answer, print the state of the node."""
    before = Counter(recorder.answers)
    try:
        [(well, why)] = detector.set({'camera.switched.enabled': on})
    except WaitTimeoutError:
        print('answers since:', dict(recorder.answers - before), detector.program.output[-2000:])
        print('unfinished shared-memory ports:', *unfinished_ports())
        for thread in Path(f'/proc/{detector.program.pid}/task').iterdir():
            print((thread / 'stat').read_text().split(')')[0], (thread / 'wchan').read_text())
        raise
    assert well, why


def camera(detector, name, reliability='reliable'):
    """Start a camera of the detector, whose images contain its name and their number."""
    topic = detector.topic(f'{name}/image')
    sizes = SIZES.get(name, ('320x240',))
    return Program(
        [*script('nodes/numbered_camera.py'), topic, reliability, 1, RATE_HZ, 0, *sizes]
    )


def publish_rubbish(publisher, rng):
    """Publish an image of unknown encoding, a truncated image, random bytes, or no byte."""
    kind = rng.randrange(3)
    if kind == 0:
        publisher.publish(rng.randbytes(rng.randrange(0, 400, 40)))
        return
    image = picture_of((1, 2, 3))
    if kind == 1:
        image.encoding = 'no_such_encoding'
    else:
        image.data = image.data[: rng.randrange(len(image.data))]
    publisher.publish(image)


class OutputRecorder:
    """Records the detector's output by camera and order, and its diagnostics."""

    def __init__(self, client, detector):
        self._client, self._detector = client, detector
        self.answers = Counter()
        self.foreign = self.unbalanced = self.unequal = self.statuses = 0
        self._newest = {}
        self.backwards = Counter()
        self._last = dict.fromkeys(CAMERAS, 0)
        kinds = {name: (Detection2DArray, f'{name}/detections') for name in CAMERAS}
        self._subscriptions = [
            client.node.create_subscription(
                kind,
                detector.topic(topic),
                lambda message, name=name: self._on_detections(name, message),
                QoSProfile(depth=1000),
                raw=True,
            )
            for name, (kind, topic) in kinds.items()
        ]
        self._subscriptions.append(
            client.node.create_subscription(
                DiagnosticArray, '/diagnostics', self._on_diagnostics, QoSProfile(depth=100)
            )
        )

    def _on_detections(self, name, message):
        number, _, length = struct.unpack_from('=iII', message, 4)
        owner = bytes(message[16 : 16 + length - 1]).decode()
        self.answers[name] += 1
        self.foreign += owner != name
        # A restarted camera numbers its images from 1 again.
        self.backwards[name] += number <= self._last[name]
        self._last[name] = number

    def _on_diagnostics(self, message):
        name = self._detector.name
        all_values = {
            status.name.removeprefix(f'{name}: '): {pair.key: pair.value for pair in status.values}
            for status in message.status
            if status.name.startswith(f'{name}: ')
        }
        if 'detector' not in all_values or all_values['detector'].get('state') != 'active':
            self._newest = all_values or self._newest
            return
        self.statuses += 1
        each = [all_values.get(camera) for camera in CAMERAS]
        self.unbalanced += not all(values and balanced(values) for values in each)
        if all(each):
            together = sum(int(values['received']) for values in each)
            self.unequal += together != int(all_values['detector']['received'])
        self._newest = all_values

    def wait_for(self, names):
        """Wait until detections of all these cameras have come."""
        self._client.spin_until(
            lambda: names <= set(self.answers), f'detections of {", ".join(sorted(names))}'
        )

    def settled(self):
        """Return the final status values of each camera, when the node is inactive."""

        def ended():
            state = self._newest.get('detector', {}).get('state')
            return state == 'inactive' and set(CAMERAS) <= set(self._newest)

        self._client.spin_until(ended, 'statuses of the inactive node')
        return {name: self._newest[name] for name in CAMERAS}

    def close(self):
        for subscription in self._subscriptions:
            self._client.node.destroy_subscription(subscription)


def figures_of(recorder, last, restarts):
    """Return the figures of each camera's output."""
    counts = {name: frame_counts(values) for name, values in last.items()}
    repeated = sum(recorder.backwards.values()) - min(restarts, recorder.backwards['restarted'])
    unbalanced = sum(not balanced(values) for values in last.values())
    disabled = counts['switched']['dropped'].get('disabled', 0)
    return [
        Figure('detections with the header of another camera', 0, recorder.foreign),
        Figure('detections that came twice, or out of order', 0, repeated),
        Figure('invalid images that were published', 0, counts['rubbish']['published']),
        Figure('no invalid image was received', 0, 0 if counts['rubbish']['received'] else 1),
        Figure('disabled cameras that dropped nothing', 0, 0 if disabled else 1),
        Figure(f'of {recorder.statuses} statuses, those with wrong sums', 0, recorder.unbalanced),
        Figure('statuses that are not the sum of their cameras', 0, recorder.unequal),
        Figure('in flight after deactivate', 0, sum(one['in flight'] for one in counts.values())),
        Figure('counts at the end that do not add up', 0, unbalanced),
    ]


def figures_of_equal_cameras(last, answers, limit):
    """Return the figures that compare the two cameras with equal rates.

    Args:
        last: final status values of each camera.
        answers: number of answers to each camera during the soak.
        limit: largest allowed difference between the two numbers, in percent.
    """
    counts = [answers[name] for name in EQUAL_CAMERAS]
    difference = 100 * (1 - min(counts) / max(counts))
    waited = any(frame_counts(last[name])['dropped'].get('replaced') for name in EQUAL_CAMERAS)
    return [
        Figure('difference between two equal cameras', limit, difference, '%'),
        Figure('equal cameras without contention', 0, 0 if waited else 1),
    ]


def figures_of_node(node, memory, growth_mb):
    """Return the node's own figures, and the growth of its memory."""
    # Ignore the first tenth, in which pools still fill and discovery continues.
    later = memory[len(memory) // 10 :]
    quarter = max(1, len(later) // 4)
    tenths = [memory[len(memory) * tenth // 10] for tenth in range(10)]
    print('memory at each tenth of the time:', *(f'{value:.1f}' for value in tenths), 'MB')
    growth = statistics.median(later[-quarter:]) - statistics.median(later[:quarter])
    return [
        Figure(f'of {node["frames"]} frames, those with a wrong pixel', 0, node['wrong']),
        Figure('sizes never seen', 0, max(0, 3 - len(node['sizes']))),
        Figure('memory growth', growth_mb, growth, 'MB'),
    ]


def own_mb(program):
    """Return a program's private memory in MB, without the segments shared with cameras."""
    for line in Path(f'/proc/{program.pid}/status').read_text().splitlines():
        if line.startswith('RssAnon'):
            return int(line.split()[1]) / 1024
    raise RuntimeError('the process is gone')
