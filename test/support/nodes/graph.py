# SPDX-License-Identifier: Apache-2.0
"""Run a detector in a separate process and its client in this process, over real DDS.

This module measures no times. All waits have a condition, and a deadline that only a failure
reaches.
graph_fixtures.py defines the fixtures.
"""

import array
import contextlib
import itertools
import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    SetParameters,
    SetParametersAtomically,
)
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter, parameter_value_to_python
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_msgs.msg import Header
from vision_msgs.msg import Classification, Detection2DArray

from support.nodes.patient_publisher import PatientNode
from support.programs import DEADLINE_S, Program, executable
from support.waiting import WaitTimeoutError

HANDSHAKE = 'handshake'
CAMERA_QOS = QoSProfile(depth=10)
TRANSITIONS = {
    'configure': Transition.TRANSITION_CONFIGURE,
    'activate': Transition.TRANSITION_ACTIVATE,
    'deactivate': Transition.TRANSITION_DEACTIVATE,
    'cleanup': Transition.TRANSITION_CLEANUP,
    'shutdown from unconfigured': Transition.TRANSITION_UNCONFIGURED_SHUTDOWN,
    'shutdown from inactive': Transition.TRANSITION_INACTIVE_SHUTDOWN,
    'shutdown from active': Transition.TRANSITION_ACTIVE_SHUTDOWN,
}
#: Transitions with the state that follows.
TWO_LIFECYCLES = 2 * (
    ('configure', 'inactive'),
    ('activate', 'active'),
    ('deactivate', 'inactive'),
    ('activate', 'active'),
    ('deactivate', 'inactive'),
    ('cleanup', 'unconfigured'),
)
SERVICES = {
    'change_state': ChangeState,
    'set_parameters': SetParameters,
    'set_parameters_atomically': SetParametersAtomically,
    'get_parameters': GetParameters,
    'describe_parameters': DescribeParameters,
    'get_state': GetState,
}
#: Log severities by the levels of diagnostics.
SEVERITIES = {
    DiagnosticStatus.OK: 'INFO',
    DiagnosticStatus.WARN: 'WARN',
    DiagnosticStatus.ERROR: 'ERROR',
}
_numbers = itertools.count()


class Client:
    """The node of this process. It spins only in `spin_until`, so the order of events is fixed."""

    def __init__(self):
        self.detectors = set()  # the detectors that use this client
        self._open()

    def _open(self):
        self.outdated = False
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self.node = PatientNode('test_client', context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)

    def renew(self):
        """Replace the DDS participant if it is outdated and no detector uses it.

        A process that ends without closing its ports leaves them in shared memory. Fast DDS
        replaces them when another process gets their number. A participant that knew the old
        ports may send to them for good, so the two never discover each other's services.
        """
        if self.outdated and not self.detectors and len(self._executor.get_nodes()) == 1:
            self.close()
            self._open()

    @property
    def context(self):
        return self._context

    def spin_until(self, condition, what, seconds=DEADLINE_S):
        end = time.monotonic() + seconds
        while not (answer := condition()):
            if time.monotonic() > end:
                raise WaitTimeoutError(f'expected within {seconds} s: {what}')
            self._executor.spin_once(timeout_sec=0.05)
        return answer

    def spin_for(self, seconds):
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)

    def add(self, node):
        """Let `spin_until` also spin another node of this process."""
        self._executor.add_node(node)

    def remove(self, node):
        self._executor.remove_node(node)

    def subscribe(self, kind, topic, qos=None, *, raw=False):
        """Return a list that receives the topic's messages, and the subscription."""
        messages = []
        qos = qos or QoSProfile(depth=100)
        return messages, self.node.create_subscription(kind, topic, messages.append, qos, raw=raw)

    def publish_until_answered(self, publisher, picture, answers):
        """Publish a picture until an answer with its frame_id arrives; return whether it did.

        Answers to earlier pictures may still arrive.
        """

        def is_answered():
            return any(m.header.frame_id == picture.header.frame_id for m in answers)

        end = time.monotonic() + DEADLINE_S
        answers.clear()
        while not is_answered() and time.monotonic() < end:
            publisher.publish(picture)
            with contextlib.suppress(WaitTimeoutError):
                self.spin_until(is_answered, 'an answer', seconds=0.5)
        if not is_answered():
            print('subscriptions to the images:', publisher.get_subscription_count())
            print('ports:', *sorted(path.name for path in Path('/dev/shm').glob('fast*port*')))
        return is_answered()

    def close(self):
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)


class Detector:
    """Starts a detector_node in its own namespace, and uses its services, topics and diagnostics.

    Args:
        client: the client that talks to the node.
        parameters: parameter overrides.
        command: the program; detector_node by default.
        arguments: additional ROS arguments.
        start: starts another program in the given namespace, instead of the above.
        camera_qos: QoS of the publisher of images. With None, the test makes the publisher: a
            node may still list a publisher that was destroyed soon after its creation.
    """

    def __init__(
        self,
        client,
        parameters=None,
        *,
        command=None,
        arguments=(),
        start=None,
        camera_qos=CAMERA_QOS,
    ):
        self.client = client
        client.detectors.add(self)
        self.namespace = f'/test_{os.getpid()}_{next(_numbers)}'
        self.name = f'{self.namespace}/detector'
        if start is None:
            settings = {'diagnostics_period_s': 0.1, **(parameters or {})}
            ros_arguments = ['--ros-args', '-r', f'__ns:={self.namespace}', *arguments]
            for name, value in settings.items():
                ros_arguments += ['-p', f'{name}:={json.dumps(value)}']
            self.program = Program([*(command or [executable('detector_node')]), *ros_arguments])
        else:
            self.program = start(self.namespace)
        self._subscriptions = []
        # Results of another task than detection, if the model's manifest names this task.
        self.detections = self.subscribe(*result_topic((parameters or {}).get('engine_path', '')))
        self._statuses = []  # (sending time by this machine's clock in nanoseconds, message)
        self._subscriptions.append(
            client.node.create_subscription(
                DiagnosticArray, '/diagnostics', self._keep_status, QoSProfile(depth=100)
            )
        )
        self.camera = camera_qos and self.create_camera(camera_qos)
        # get_state comes last, because _get_ready depends on it.
        self._services = {
            service: client.node.create_client(kind, f'{self.name}/{service}')
            for service, kind in SERVICES.items()
        }
        self._known = False

    def topic(self, name):
        return name if name.startswith('/') else f'{self.namespace}/{name}'

    def create_camera(self, qos):
        return self.client.node.create_publisher(Image, self.topic('image'), qos)

    def destroy_camera(self):
        if self.camera is not None:
            self.client.node.destroy_publisher(self.camera)
            self.camera = None

    def subscribe(self, kind, topic, qos=None):
        messages, subscription = self.client.subscribe(kind, self.topic(topic), qos)
        self._subscriptions.append(subscription)
        return messages

    def close(self):
        self.client.detectors.discard(self)
        try:
            self.program.close()
        finally:
            self._wait_for_departure()
            for subscription in self._subscriptions:
                self.client.node.destroy_subscription(subscription)
            for service in self._services.values():
                self.client.node.destroy_client(service)
            self.destroy_camera()

    def _wait_for_departure(self):
        """Wait until the client no longer knows the node, or one second if it was killed.

        Fast DDS of Kilted may wait for itself forever while it removes the publishers of a process
        that ended, as docs/reliability.md says. Each timer that is destroyed meanwhile wakes the
        thread that the removal waits for. So destroy nothing before the removal has finished.
        """
        own = 'detector', self.namespace
        names = self.client.node.get_node_names_and_namespaces
        with contextlib.suppress(WaitTimeoutError):
            self.client.spin_until(lambda: own not in names(), 'the end of the node', seconds=1)
        self.client.spin_for(0.05)

    # Calls of services.

    def call(self, service, **fields):
        """Call a service of the node and return the response."""
        self._get_ready()
        future = self._send(service, **fields)
        self.client.spin_until(future.done, f'an answer from {self.name}/{service}')
        return future.result()

    def _send(self, service, **fields):
        return self._services[service].call_async(SERVICES[service].Request(**fields))

    def _get_ready(self):
        """Wait until the node answers a service call, once.

        A service that has not discovered its client sends no response (rmw_fastrtps gives up
        after 100 ms). A participant discovers the others' endpoints in their order of creation.
        So a node that answers get_state has discovered all earlier endpoints of this client.
        """
        if self._known:
            return
        end = time.monotonic() + DEADLINE_S
        while not self._known:
            if time.monotonic() > end:
                raise WaitTimeoutError(f'{self.name} does not answer')
            self.client.spin_until(
                lambda: all(s.service_is_ready() for s in self._services.values()),
                f'services of {self.name}',
            )
            future = self._send('get_state')
            with contextlib.suppress(WaitTimeoutError):
                self._known = self.client.spin_until(future.done, 'an answer', seconds=1.0)

    def wait_for_discovery(self):
        """Wait until the node knows which publishers of this client exist.

        A participant learns in order which publishers of another participant come and go. So a
        node that answers a new client has learned everything before.
        """
        service = self.client.node.create_client(GetState, f'{self.name}/get_state')
        futures = []

        def is_answered():
            futures.append(service.call_async(GetState.Request()))
            with contextlib.suppress(WaitTimeoutError):
                self.client.spin_until(futures[-1].done, 'an answer', seconds=1.0)
            return any(future.done() for future in futures)

        try:
            self.client.spin_until(service.service_is_ready, f'get_state of {self.name}')
            self.client.spin_until(is_answered, f'an answer from {self.name}')
        finally:
            self.client.node.destroy_client(service)

    def state(self):
        return self.call('get_state').current_state.label

    def change_state(self, name):
        request = Transition(id=TRANSITIONS[name])
        return self.call('change_state', transition=request).success

    def request_transition(self, name):
        """Request a transition without waiting for the answer."""
        self._get_ready()
        self._send('change_state', transition=Transition(id=TRANSITIONS[name]))

    def transition(self, *names):
        """Request transitions, and check that each succeeds."""
        for name in names:
            assert self.change_state(name), f'{name} failed'

    def bring_to(self, state):
        """Bring the node from unconfigured, inactive or active to another of these states."""
        states = ['unconfigured', 'inactive', 'active']
        at, goal = states.index(self.state()), states.index(state)
        self.transition(*['configure', 'activate'][at:goal])
        self.transition(*['cleanup', 'deactivate'][goal:at][::-1])

    def set(self, values, kind=None):
        """Set parameters one after the other; return (successful, reason) of each."""
        answer = self.call('set_parameters', parameters=parameter_messages(values, kind))
        return [(result.successful, result.reason) for result in answer.results]

    def set_at_once(self, values):
        """Set all parameters or none of them; return (successful, reason)."""
        answer = self.call('set_parameters_atomically', parameters=parameter_messages(values))
        return answer.result.successful, answer.result.reason

    def set_or_fail(self, **values):
        results = self.set(values)
        assert all(successful for successful, _ in results), results

    def get(self, name):
        values = self.call('get_parameters', names=[name]).values
        return parameter_value_to_python(values[0])

    def describe(self, names):
        return self.call('describe_parameters', names=names).descriptors

    # Waits for diagnostics and log lines.

    def _keep_status(self, message, info):
        self._statuses.append((info['source_timestamp'], message))

    def take_statuses(self, seen=None, since_ns=0, of='detector'):
        """Return the values of new statuses that were sent at ``since_ns`` or later.

        ``of`` is 'detector' for the node's statuses, or the name of a camera or GPU.
        """
        name = f'{self.name}: {of}'
        messages = [message for sent_ns, message in self._statuses if sent_ns >= since_ns]
        statuses = [s for message in messages for s in message.status if s.name == name]
        self._statuses.clear()
        if seen is not None:
            seen += statuses
        return [{pair.key: pair.value for pair in status.values} for status in statuses]

    def wait_for_status(self, accepts, what, *, from_now=True, of='detector'):
        """Return the first status that ``accepts`` accepts, and its values as a dict.

        With ``from_now``, ignore statuses that were sent before the call, because the middleware
        may deliver a status late.
        """
        since_ns = time.time_ns() if from_now else 0
        last = []

        def find():
            statuses = []
            for values in self.take_statuses(statuses, since_ns, of):
                status = statuses.pop(0)
                last[:] = [status]
                if accepts(status, values):
                    return status, values
            return None

        try:
            return self.client.spin_until(find, what)
        except WaitTimeoutError:
            print('last status:', last or 'none came')
            raise

    def wait_for_report(self, level, part='', *, publish=lambda: None, of='detector'):
        """Wait until the diagnostics and the log report a problem.

        Args:
            level: level of the status and of the log line.
            part: a name or value that the status and the log line contain.
            publish: function that is called for each status during the wait.
            of: the node, or a camera by its name.
        """

        def find(status, _):
            publish()
            return status.level == level and part in status.message

        self.wait_for_status(find, f'{SEVERITIES[level]}, {part!r}', of=of)
        self.wait_for_log(SEVERITIES[level], part, of=of)

    def wait_for_log(self, severity, part='', *, of='detector'):
        """Return the text of the first log line with this severity and part.

        Args:
            severity: severity as written in the log.
            part: a name or value in the line.
            of: the node, or a camera by its name.
        """
        logger = r'detector' if of == 'detector' else rf'detector\.{of}'
        pattern = rf'\[{severity}\] .*?{logger}\]: (.*{re.escape(part)}.*)$'
        return without_numbers(self.program.wait_for_line(pattern)[1])

    def settled_counts(self, of='detector'):
        """Wait until nothing is in flight, and return the counts in the diagnostics as numbers."""
        _, values = self.wait_for_status(
            lambda _, values: values['in flight'] == '0', 'a status with nothing in flight', of=of
        )
        return frame_counts(values)

    # Published images and their answers.

    def ask(self, image, publisher=None):
        """Publish one image and return its detections."""
        self.detections.clear()
        (publisher or self.camera).publish(image)

        def answer():
            others = [m for m in self.detections if m.header.frame_id != HANDSHAKE]
            return others[0] if others else None

        return self.client.spin_until(answer, 'detections of the image')

    def enqueue(self, *numbers, stamp=0):
        """Publish commands to scripted_node, each when its pipeline has the previous one."""
        for number in numbers:
            line = f'enqueue {number}\n'
            before = self.program.count(line)
            self.camera.publish(command_image(number, stamp))
            self.program.wait_for_output(line, before + 1)

    def connect(self, picture=None, publisher=None):
        """Publish images until one is answered, so that all participants are discovered."""
        picture = picture or picture_of((0, 0, 0), frame_id=HANDSHAKE)
        publisher = publisher or self.camera
        if not self.client.publish_until_answered(publisher, picture, self.detections):
            graph = self.client.node
            print('state:', self.state(), 'last status:', self.take_statuses()[-1:])
            print('publishers of detections:', graph.count_publishers(self.topic('detections')))
            raise WaitTimeoutError('images or detections do not arrive')


def result_topic(model):
    """Return type and name of the topic with the results of a model, as its manifest says."""
    path = Path(f'{model}.json')
    manifest = json.loads(path.read_text()) if path.is_file() else {}
    is_metric = manifest.get('decoder', {}).get('is_metric')
    return {
        'classify': (Classification, 'classification'),
        'semantic': (Image, 'segmentation/mask'),
        'depth': (Image, 'depth' if is_metric else 'relative_depth'),
    }.get(manifest.get('task'), (Detection2DArray, 'detections'))


def parameter_messages(values, kind=None):
    return [
        Parameter(
            name, kind or Parameter.Type.from_parameter_value(value), value
        ).to_parameter_msg()
        for name, value in values.items()
    ]


def without_numbers(text):
    """Return text with N instead of each number, because times, rates and counts differ."""
    return re.sub(r'(?<![^\s(\[])\d+(\.\d+)?(?![\w-])', 'N', text)


def frame_counts(values):
    """Return the counts of a status: received, published, failed, in flight and dropped."""
    names = ('received', 'published', 'failed', 'in flight')
    counts = {name: int(values[name]) for name in names}
    counts['dropped'] = {
        key.removeprefix('dropped: '): int(value)
        for key, value in values.items()
        if key.startswith('dropped: ')
    }
    return counts


def image_message(
    data, width, height, encoding, *, step, frame_id='camera', stamp=(1, 2), big_endian=False
):
    """Return an Image from bytes."""
    message = Image(encoding=encoding, width=width, height=height, step=step)
    message.is_bigendian = int(big_endian)
    message.header = Header(frame_id=frame_id)
    message.header.stamp.sec, message.header.stamp.nanosec = stamp
    message.data = array.array('B', bytes(data))
    return message


def picture_of(rgb, image_wh=(128, 96), frame_id='camera', stamp=(1, 2)):
    """Return a bgr8 Image of one colour."""
    width, height = image_wh
    bgr = np.empty((height, width, 3), np.uint8)
    bgr[...] = rgb[::-1]
    return image_message(
        bgr.tobytes(), width, height, 'bgr8', step=3 * width, frame_id=frame_id, stamp=stamp
    )


def command_image(number, stamp=0, frame_id='camera'):
    """Return a picture whose first byte is a command to scripted_node."""
    return picture_of((0, 0, number), stamp=(stamp, 0), frame_id=frame_id)


def found_in(message):
    """Return the content of a Detection2DArray in the form of tiny_model.expected_detections."""
    return [
        (
            detection.results[0].hypothesis.class_id,
            detection.results[0].hypothesis.score,
            (
                detection.bbox.center.position.x,
                detection.bbox.center.position.y,
                detection.bbox.size_x,
                detection.bbox.size_y,
            ),
        )
        for detection in message.detections
    ]


def assert_found(message, expected, score_tolerance=1e-5, **box_tolerance):
    """Assert that a Detection2DArray has the expected detections in this order.

    Args:
        message: the Detection2DArray.
        expected: detections in the form of tiny_model.expected_detections.
        score_tolerance: largest difference of a score.
        box_tolerance: arguments of pytest.approx for boxes; relative 1e-6 by default.
    """
    found = found_in(message)
    assert [name for name, _, _ in found] == [name for name, _, _ in expected]
    for (_, score, box), (_, expected_score, expected_box) in zip(found, expected, strict=True):
        assert score == pytest.approx(expected_score, abs=score_tolerance)
        assert box == pytest.approx(expected_box, **(box_tolerance or {'rel': 1e-6}))
