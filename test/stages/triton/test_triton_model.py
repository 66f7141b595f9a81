# SPDX-License-Identifier: Apache-2.0
"""Tests of a model on a Triton server: a real server on the CPU, and its faults."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

import trt_perception as tp
from support.fake_triton import PATIENCE, be_patient
from support.models.digits import DIGITS
from support.models.open_model import open_by_parameters
from support.models.support_models import HEIGHT, WIDTH, tiny_onnx
from support.optional_packages import needs
from support.triton_server import TritonServer, config_with_manifest, write_model
from trt_perception.errors import EngineError, ServerError, ServerTimeoutError
from trt_perception.images.frame import Frame
from trt_perception.model.files.triton_address import parse_triton_address
from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.stages.triton import connection
from trt_perception.stages.triton.model import TritonModel

pytestmark = needs('onnx', 'tritonclient')

DEADLINE_S = 60.0
TINY = {
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
    'model.decoder': 'dense',
    'model.class_names': ['cat', 'dog'],
}
# A white pixel in the last corner makes the server sleep before its answer.
SLOW = "if tensors['images'].flat[-1] > 0.5: time.sleep(0.6)"


def identity_model(path, dtype, shape):
    from onnx import TensorProto, helper, save

    kind = TensorProto.DataType.Value(dtype)
    graph = helper.make_graph(
        [helper.make_node('Identity', ['images'], ['copy'])],
        'identity',
        [helper.make_tensor_value_info('images', kind, shape)],
        [helper.make_tensor_value_info('copy', kind, shape)],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9), path)
    return path


def write_tiny(repository, **changes):
    file = repository.parent / 'tiny.onnx'
    file.write_bytes(tiny_onnx())
    write_model(repository, 'tiny', file, **changes)


@pytest.fixture(autouse=True)
def _patient_client(monkeypatch):
    be_patient(monkeypatch.setattr)


@pytest.fixture(scope='module', name='server')
def _server(tmp_path_factory):
    """A server that no test disturbs."""
    repository = tmp_path_factory.mktemp('triton') / 'models'
    config = config_with_manifest(f'{DIGITS}.json')
    write_model(repository, 'digits', DIGITS, config=config)
    write_tiny(repository, before=SLOW)
    for dtype in ('FLOAT', 'FLOAT16', 'UINT8'):
        file = identity_model(repository.parent / f'{dtype}.onnx', dtype, [1, 3, 640, 640])
        write_model(repository, dtype, file)
    server = TritonServer(repository).start()
    yield server
    server.end()


@pytest.fixture(name='own_server')
def _own_server(tmp_path):
    """A server with the tiny model, for one test."""
    write_tiny(tmp_path / 'models')
    server = TritonServer(tmp_path / 'models').start()
    yield server
    server.end()


@pytest.fixture(name='open_model')
def _open_model():
    """Return a function that opens a pipeline for a model of a server."""
    opened = []

    def open_model(server, name, **values):
        address = f'triton://{server.address}/{name}'
        known = {'engine_path': address, 'triton.timeout_ms': 1e3 * DEADLINE_S, **values}
        opened.append(open_by_parameters(ParameterValues.from_values(known)))
        return opened[-1]

    yield open_model
    for pipeline in opened:
        pipeline.close()


def numbered_frame(number, *, slow=False):
    """Return a frame in which the tiny model finds one box, whose centre tells the number."""
    rgb = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    rgb[0, 0] = 20 + number, 20, 255
    rgb[-1, -1] = 255 if slow else 0
    return Frame.view(rgb, width=WIDTH, height=HEIGHT, step=3 * WIDTH, encoding='rgb8')


def number_in(result):
    (box,) = result.detections.xyxy
    return round((box[0] + box[2]) / 2 * 255 / WIDTH) - 20


def answered_number(pipeline, number):
    return number_in(detect_one(pipeline, numbered_frame(number), Thresholds()))


def failure(pipeline):
    """Send a frame. Return the error that the server caused; None if it answered correctly."""
    try:
        assert answered_number(pipeline, 7) == 7
    except ServerError as error:
        return error
    return None


def wait_for_answer(pipeline):
    """Send frames until the server answers. Return the number of frames without an answer."""
    end = time.monotonic() + DEADLINE_S
    failures = 0
    while (error := failure(pipeline)) is not None:
        assert time.monotonic() < end, error
        failures += 1
        time.sleep(0.02)
    return failures


@pytest.mark.parametrize('shared_memory', [True, False])
def test_boxes_of_the_server_equal_local_boxes(server, shared_memory):
    address = f'triton://{server.address}/digits'
    with tp.load(address, triton_shared_memory=shared_memory) as served, tp.load(DIGITS) as local:
        assert served.class_names == local.class_names
        for scene in range(3):
            image = cv2.imread(str(DIGITS.parents[1] / f'demo/scenes/scene_{scene:03}.jpg'))
            found, expected = served(image), local(image)
            assert len(expected.scores) > 0
            np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=0.01)
            np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
            np.testing.assert_array_equal(found.class_ids, expected.class_ids)


@pytest.mark.parametrize('shared_memory', [True, False])
@pytest.mark.parametrize('dtype', ['FLOAT', 'FLOAT16', 'UINT8'])
def test_tensors_above_the_usual_limit_of_messages_arrive_unchanged(server, dtype, shared_memory):
    address = parse_triton_address(f'triton://{server.address}/{dtype}')
    model = TritonModel(address, TritonOptions(DEADLINE_S, shared_memory=shared_memory))
    try:
        model.use_shared_memory(1, 1)
        assert bool(model._watch.regions) is shared_memory
        images = np.random.default_rng(3).integers(0, 255, (1, 3, 640, 640))
        images = images.astype(model.inputs[0].dtype)
        (copy,) = model.run({'images': images})
        np.testing.assert_array_equal(copy, images)
    finally:
        model.close()


def test_late_answers_never_become_results_of_other_frames(server, open_model):
    # The limit is half of the time that the server sleeps.
    pipeline = open_model(server, 'tiny', **TINY, pipeline_depth=2, **{'triton.timeout_ms': 300.0})
    assert answered_number(pipeline, 3) == 3
    served = pipeline._served
    results, waiting = [], []
    for number in range(40):
        slot = number % 2
        if len(waiting) == 2:
            results.append((waiting[0], *pipeline.collect(waiting.pop(0) % 2)))
        frame = numbered_frame(number, slow=number % 10 == 4)
        pipeline.enqueue(slot, [frame], [Thresholds()])
        waiting.append(number)
    results += [(number, *pipeline.collect(number % 2)) for number in waiting]
    assert [number for number, _ in results] == list(range(40))
    errors = {number: found for number, found in results if isinstance(found, ServerError)}
    assert errors
    for number, found in results:
        if number not in errors:
            assert number_in(found) == number
    assert {type(error) for error in errors.values()} == {ServerTimeoutError}
    end = time.monotonic() + DEADLINE_S
    while len(served._watch.free_regions) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    assert len(served._watch.free_regions) == 4  # the late answers freed their regions


def test_frames_fail_while_the_server_is_killed_and_succeed_after_its_restart(
    own_server, open_model
):
    pipeline = open_model(own_server, 'tiny', **TINY)
    for _ in range(2):
        assert answered_number(pipeline, 3) == 3
        own_server.end()
        with pytest.raises(ServerError):
            answered_number(pipeline, 4)
        own_server.start(wait=False)
        assert wait_for_answer(pipeline) > 0
    # The regions are registered with the new process, at the latest by a later check.
    names = {region.name for region in pipeline._served._watch.regions}
    end = time.monotonic() + DEADLINE_S
    while not names <= pipeline._served._connection.known_regions():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_programs_of_models_end_with_the_server(own_server):
    tasks = Path(f'/proc/{own_server.process.pid}/task')
    children = ' '.join(path.read_text() for path in tasks.glob('*/children')).split()
    assert children
    processes = [os.pidfd_open(int(number)) for number in children]
    for number in children:
        os.kill(int(number), signal.SIGSTOP)  # they cannot notice the end of the server
    own_server.end()
    for process in processes:
        assert select.select([process], [], [], DEADLINE_S)[0]
        os.close(process)


def test_frames_are_late_while_the_server_is_stopped(own_server, open_model):
    pipeline = open_model(own_server, 'tiny', **TINY, **{'triton.timeout_ms': 1000.0})
    assert answered_number(pipeline, 3) == 3
    own_server.send_signal(signal.SIGSTOP)
    with pytest.raises(ServerTimeoutError):
        answered_number(pipeline, 4)
    own_server.send_signal(signal.SIGCONT)
    wait_for_answer(pipeline)


def test_server_accepts_the_pings_during_a_long_request(tmp_path, open_model, monkeypatch):
    options = {**dict(connection._CHANNEL_OPTIONS), 'grpc.keepalive_time_ms': 1000}
    monkeypatch.setattr(connection, '_CHANNEL_OPTIONS', tuple(options.items()))
    write_tiny(tmp_path / 'models', before='time.sleep(6)')
    server = TritonServer(tmp_path / 'models').start()
    try:
        # 6 periods of pings, as in a request of 30 s with the usual period.
        assert answered_number(open_model(server, 'tiny', **TINY), 3) == 3
    finally:
        server.end()


def test_the_server_answers_again_after_an_outage_of_a_minute(own_server, open_model):
    pipeline = open_model(own_server, 'tiny', **TINY)
    assert answered_number(pipeline, 3) == 3
    own_server.end()
    end = time.monotonic() + 60.0
    while time.monotonic() < end:
        assert failure(pipeline) is not None
        time.sleep(0.1)
    own_server.start()
    wait_for_answer(pipeline)


def test_other_tensors_under_the_same_name_are_a_fault(own_server, open_model, tmp_path):
    pipeline = open_model(own_server, 'tiny', **TINY)
    assert answered_number(pipeline, 3) == 3
    own_server.end()
    file = identity_model(tmp_path / 'identity.onnx', 'FLOAT', [1, 3, HEIGHT, WIDTH])
    write_model(tmp_path / 'models', 'tiny', file)
    own_server.start()
    with pytest.raises(EngineError) as caught:
        wait_for_answer(pipeline)
    assert not isinstance(caught.value, ServerError)


def test_shared_memory_of_a_killed_process_is_removed(server, open_model):
    program = (
        'import sys, time\n'
        'from trt_perception.model.files.triton_address import parse_triton_address\n'
        'from trt_perception.model.pipeline_options import TritonOptions\n'
        'from trt_perception.stages.triton.model import TritonModel\n'
        'model = TritonModel(parse_triton_address(sys.argv[1]), TritonOptions())\n'
        'model.use_shared_memory(1, 1)\n'
        'print(*(region.name for region in model._watch.regions), flush=True)\n'
        'time.sleep(60)\n'
    )
    address = f'triton://{server.address}/tiny'
    child = subprocess.Popen(
        [sys.executable, '-c', PATIENCE + program, address], stdout=subprocess.PIPE
    )
    names = set(child.stdout.readline().decode().split())
    child.kill()
    child.wait()
    assert len(names) == 2
    assert all(os.path.exists(f'/dev/shm/{name}') for name in names)
    pipeline = open_model(server, 'tiny', **TINY)
    assert not any(os.path.exists(f'/dev/shm/{name}') for name in names)
    end = time.monotonic() + DEADLINE_S
    while pipeline._served._connection.known_regions() & names and time.monotonic() < end:
        time.sleep(0.05)
    assert not pipeline._served._connection.known_regions() & names


def test_closed_pipeline_leaves_no_shared_memory(server, open_model):
    pipeline = open_model(server, 'tiny', **TINY)
    assert answered_number(pipeline, 3) == 3
    names = {region.name for region in pipeline._served._watch.regions}
    assert names
    connection = pipeline._served._connection
    assert names <= connection.known_regions()
    pipeline.close()
    assert not any(os.path.exists(f'/dev/shm/{name}') for name in names)
    other = open_model(server, 'tiny', **TINY)
    assert not other._served._connection.known_regions() & names


@pytest.mark.parametrize('address', ['triton://{}/missing', 'triton://127.0.0.1:1/tiny'])
def test_missing_model_or_server_is_an_error_of_configure(server, open_model, address):
    values = {'engine_path': address.format(server.address)}
    with pytest.raises(EngineError):
        open_by_parameters(ParameterValues.from_values(values))
