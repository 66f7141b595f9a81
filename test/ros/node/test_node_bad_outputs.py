# SPDX-License-Identifier: Apache-2.0
"""Tests of images for which the model's output is invalid: the node drops only these images."""

from contextlib import closing

import pytest
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.parameter import Parameter
from sensor_msgs.msg import Image

from support.models.output_models import write_label_model
from support.nodes import scripted_node
from support.nodes.camera_of_many import NAMES, CameraOfMany
from support.nodes.graph import picture_of
from trt_perception.errors import ImageError, OutputError
from trt_perception.images.memory import NumpyMemory
from trt_perception.ros.detector_node import DetectorNode
from trt_perception.ros.runtime.executor import GuardedExecutor

pytest_plugins = ['support.nodes.many_cameras_fixtures']

ERROR = DiagnosticStatus.ERROR
GREY, WHITE = picture_of((114, 114, 114)), picture_of((255, 255, 255))
LARGE_BYTES = 1920 * 480
BLACK = Image(width=640, height=480, step=1920, encoding='bgr8', data=bytes(LARGE_BYTES))
UNKNOWN = Image(width=640, height=480, step=1920, encoding='none', data=bytes(LARGE_BYTES))


def test_bad_output_of_one_camera_affects_no_other(start_detector, model):
    # A white image has scores of 1.5.
    settings = {'engine_path': str(model), 'model.scale': 1.5 / 255}
    settings |= {'cameras': list(NAMES), 'autostart': True}
    detector = start_detector(settings, camera_qos=None)
    cameras = front, rear, left = [CameraOfMany(detector, name) for name in NAMES]
    for camera in cameras:
        camera.connect()
    before = rear.counts()

    for number in range(1, 6):
        rear.publisher.publish(WHITE)
        for camera in (front, left):
            assert len(camera.ask(picture_of((114, 114, 114), stamp=(number, 0))).detections) == 4
    rear.wait_for_report(ERROR, 'bad_output', publish=lambda: rear.publisher.publish(WHITE))
    detector.wait_for_log('WARN', '(bad_output)', of='rear')
    assert len(rear.ask(GREY).detections) == 4

    counts = rear.counts()
    assert counts['dropped'].keys() <= {'bad_output', 'replaced'}
    assert counts['published'] == before['published'] + 1
    for camera in (front, left):
        assert camera.counts()['dropped'].keys() <= {'replaced'}
    for camera in cameras:
        camera.destroy_publisher()


def test_class_without_a_name_is_an_error_until_cleanup(start_detector, tmp_path):
    parameters = {
        'engine_path': str(write_label_model(tmp_path / 'labels.onnx')),
        'autostart': True,
        'model.decoder': 'end_to_end',
        'model.class_names': ['red', 'green', 'blue'],
        'model.resize': 'letterbox',
        'model.color_order': 'rgb',
        'model.scale': 1 / 255,
    }
    detector = start_detector(parameters)
    detector.connect()

    def wait_for_state(state, level):
        detector.wait_for_status(
            lambda status, values: values['state'] == state and status.level == level, state
        )

    detector.camera.publish(WHITE)
    detector.wait_for_report(ERROR, 'model.class_names')
    assert len(detector.ask(GREY).detections) == 1
    wait_for_state('active', ERROR)
    detector.transition('deactivate')
    wait_for_state('inactive', ERROR)
    detector.transition('activate')
    wait_for_state('active', ERROR)
    detector.transition('deactivate', 'cleanup')
    wait_for_state('unconfigured', DiagnosticStatus.OK)


class ScriptedNode:
    """A node of this process whose pipeline returns an error for black images.

    Attributes:
        node: the active node.
        allocated: sizes of all allocations in bytes.
        open: sizes of the allocations that are not freed.
    """

    def __init__(self, client, namespace, error=None):
        allocated, is_open = self.allocated, self.open = [], []

        class Memory(NumpyMemory):
            def __init__(self, size):
                super().__init__(size)
                allocated.append(size)
                is_open.append(size)

            def close(self):
                is_open.remove(self.size)
                super().close()

        class Pipeline(scripted_node.ScriptedPipeline):
            allocate = Memory

            def collect(self, slot):
                (result,) = super().collect(slot)
                is_black = not result.frame.data.any()
                return [error if is_black else result]

        self._client = client
        self.node = DetectorNode(
            open_pipeline=Pipeline,
            context=client.context,
            namespace=namespace,
            parameter_overrides=[Parameter('engine_path', value='none')],
        )
        self._executor = GuardedExecutor(self.node)
        self._camera = client.node.create_publisher(Image, f'/{namespace}/image', 1)
        self.node.trigger_configure()
        self.node.trigger_activate()
        client.spin_until(self._camera.get_subscription_count, 'a subscription')

    def drop(self, image, reason, count):
        """Publish an image repeatedly, each time after the previous one was dropped."""
        statistics = self.node._pool.statistics
        for number in range(1, count + 1):
            self._camera.publish(image)
            self._client.spin_until(
                lambda n=number: statistics()[0].dropped.get(reason) == n,
                f'{number} dropped images',
            )

    def close(self):
        self._client.node.destroy_publisher(self._camera)
        self.node.close()
        self._executor.shutdown()


@pytest.mark.parametrize(
    'error',
    [OutputError('model', 'is invalid'), ImageError('changed_size', 'image', 'another size')],
)
def test_readable_images_with_an_error_reuse_the_memory_of_earlier_images(client, error):
    # Page-locked memory of 1 MB takes about a millisecond, and stops the whole GPU meanwhile.
    with closing(ScriptedNode(client, error.reason, error)) as scripted:
        scripted.drop(BLACK, error.reason, 12)

        assert len([size for size in scripted.allocated if size > LARGE_BYTES]) <= 3
        assert any(size > LARGE_BYTES for size in scripted.open)
        scripted.node.trigger_deactivate()
        assert scripted.open == []


def test_refused_images_leave_no_memory(client):
    with closing(ScriptedNode(client, 'refused')) as scripted:
        scripted.drop(UNKNOWN, 'unknown_encoding', 12)

        assert len([size for size in scripted.allocated if size > LARGE_BYTES]) >= 12
        assert all(size < LARGE_BYTES for size in scripted.open)
