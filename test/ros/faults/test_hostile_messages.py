# SPDX-License-Identifier: Apache-2.0
"""Tests with hostile messages and models, which must neither fill memory and log nor forge lines.

The sizes imitate an attack: 300 detections with a frame_id of 4 MB take more than 1 GB.
"""

import re

import numpy as np
import pytest
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import Header

from support.models.tiny_model import expected_detections, write_tiny_model
from support.nodes.graph import found_in, frame_counts, image_message, picture_of
from support.programs import Program, executable
from trt_perception.errors import ImageError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.ros.camera.messages import frame_from_compressed, frame_from_image
from trt_perception.ros.runtime.log import NodeLog
from trt_perception.stages.onnx_runtime import OnnxModel

pytest_plugins = ['support.nodes.graph_fixtures']

COLOR = (200, 120, 60)
GREY = bytes(96 * 128 * 3)
FORGED = 'x\n[ERROR] [0] [detector]: the GPU is on fire\x1b[2J'


def image(frame_id='camera', encoding='bgr8'):
    return image_message(GREY, 128, 96, encoding, step=384, frame_id=frame_id)


def refusal_reason(read, message):
    with pytest.raises(ImageError) as caught:
        read(message)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()
    return caught.value.reason


@pytest.mark.parametrize('frame_id', ['', 'x' * 256, 'é' * 128, 'größer als'])
def test_frame_id_of_up_to_256_printable_bytes_is_read(frame_id):
    assert frame_from_image(image(frame_id)).width == 128


@pytest.mark.parametrize(
    'frame_id',
    ['x' * 257, 'é' * 129, 'x' * 4_000_000, FORGED, '\x9b', 'a\r'],
    ids=['bytes', 'é', 'huge', 'forged', 'CSI', 'CR'],
)
@pytest.mark.parametrize('kind', ['raw', 'compressed'])
def test_long_or_unprintable_frame_id_is_refused(kind, frame_id):
    if kind == 'raw':
        assert refusal_reason(frame_from_image, image(frame_id)) == 'bad_frame_id'
    else:
        message = CompressedImage(format='jpeg', header=Header(frame_id=frame_id))
        assert refusal_reason(frame_from_compressed, message) == 'bad_frame_id'


@pytest.mark.parametrize(
    'encoding', ['x' * 65, 'é' * 33, 'x' * 5_000_000, FORGED], ids=['bytes', 'é', 'huge', 'forged']
)
def test_message_about_a_hostile_encoding_is_short(encoding):
    assert refusal_reason(frame_from_image, image(encoding=encoding)) == 'unknown_encoding'


@pytest.mark.parametrize('name', ['x' * 5_000_000, FORGED], ids=['huge', 'forged'])
def test_message_about_a_hostile_format_is_short(name):
    assert refusal_reason(frame_from_compressed, CompressedImage(format=name)) == 'not_decodable'


def publish_until_dropped(detector, message, reason):
    """Publish a message and wait until a message is dropped with this reason."""
    before = detector.settled_counts()['dropped'].get(reason, 0)
    detector.camera.publish(message)
    return detector.wait_for_status(
        lambda _, values: frame_counts(values)['dropped'].get(reason, 0) > before, reason
    )


def assert_log_is_clean(program):
    """Check that the log has no control characters, no forged line and no huge line."""
    assert not re.search('[\x00-\x08\x0b-\x1f\x7f-\x9f]', program.output)
    assert '\n[ERROR] [0] [detector]' not in program.output
    assert max(map(len, program.output.splitlines())) < 20_000


def test_node_drops_hostile_messages_and_continues(start_detector, model):
    detector = start_detector({'engine_path': str(model), 'autostart': True})
    detector.connect()
    detector.program.forget()
    for message, reason in (
        (image('x' * 4000), 'bad_frame_id'),
        (image('x' * 4_000_000), 'bad_message'),
        (image(FORGED), 'bad_frame_id'),
        (image(encoding='y' * 5_000_000), 'bad_message'),
        (image(encoding='y' * 4000), 'unknown_encoding'),
        (image(encoding=FORGED), 'unknown_encoding'),
    ):
        status, values = publish_until_dropped(detector, message, reason)
        texts = [status.message, status.hardware_id, *values.values()]
        assert sum(map(len, texts)) < 10_000
        answer = detector.ask(picture_of(COLOR))
        assert len(found_in(answer)) == len(expected_detections(COLOR, (128, 96)))
    detector.wait_for_log('WARN', '(bad_frame_id)')
    assert_log_is_clean(detector.program)


def write_forged_model(folder):
    """Write a model without manifest, whose output is named like a log line. Return its path."""
    import onnx

    path = write_tiny_model(folder / 'tiny.onnx', manifest=False)
    model = onnx.load(path)
    model.graph.output[0].name = model.graph.node[-1].output[0] = FORGED
    onnx.save(model, path)
    return path


def test_names_of_a_model_cannot_forge_log_lines(start_detector, tmp_path):
    detector = start_detector({'engine_path': str(write_forged_model(tmp_path))})
    assert not detector.change_state('configure')
    detector.wait_for_log('ERROR', 'the GPU is on fire')
    status, _ = detector.wait_for_status(lambda status, _: status.message, 'an error')
    assert 'the GPU is on fire' in status.message
    assert '\x1b' not in status.message
    assert_log_is_clean(detector.program)


@pytest.mark.parametrize(
    ('name', 'arguments'),
    [
        ('doctor', ['--seconds', '0']),
        ('detect_images', ['--source', '{folder}', '--output', '{folder}/found', '--engine']),
        ('benchmark_engine', []),
        ('inspect_engine', ['--no-gpu']),
        ('build_engine', ['--onnx']),
    ],
)
def test_names_of_a_model_cannot_forge_lines_of_commands(name, arguments, tmp_path):
    model = write_forged_model(tmp_path)
    given = [argument.format(folder=tmp_path) for argument in arguments]
    program = Program([executable(name), *given, model])
    assert program.wait() in (0, 1, 2)
    assert 'Traceback' not in program.output
    assert '\x1b' not in program.output
    assert '\n[ERROR] [0] [detector]' not in program.output


def test_onnx_runtime_itself_prints_nothing_about_a_model(tmp_path, capfd):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node('Reshape', ['images', 'shape'], ['output'], name=FORGED)]
    graph = helper.make_graph(
        nodes,
        'fails',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, ('n',))],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array([7]), 'shape')],
    )
    path = tmp_path / 'fails.onnx'
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)], ir_version=8), path
    )
    model = OnnxModel(read_model_file(path), 1)
    with pytest.raises(Exception, match='the GPU is on fire'):
        model.run({'images': np.zeros(3, np.float32)})
    assert capfd.readouterr() == ('', '')


class RecordingLogger:
    """A stand-in for the node's logger that keeps all lines."""

    def __init__(self):
        self.lines = []
        self.debug = self.info = self.warning = self.error = self.lines.append

    def get_effective_level(self):
        return 20


def test_lines_of_library_messages_are_indented_in_the_log():
    """TensorRT and ONNX Runtime quote names of the model in their messages."""
    import logging

    logger = RecordingLogger()
    log = NodeLog(logger)
    try:
        logging.getLogger('trt_perception.tensorrt').warning('layer %s is slow', FORGED)
        logging.getLogger('trt_perception.tensorrt').error('x' * 5_000_000)
    finally:
        log.close()
    assert logger.lines[0] == (
        'layer x\n    [ERROR] [0] [detector]: the GPU is on fire\\x1b[2J is slow'
    )
    assert len(logger.lines[1]) < 10_000
