# SPDX-License-Identifier: Apache-2.0
"""Exported models on a real Triton server, whose Python backend replaces the real backends.

The server itself checks the configuration that export_triton wrote.
"""

import shutil
import signal
import time
from dataclasses import replace

import cv2
import grpc
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from support.gpu.fake_tensorrt import PLAN
from support.models.batch_models import write_digits_twin
from support.models.digits import DIGITS, SCENES
from support.models.open_model import open_by_parameters
from support.optional_packages import needs
from support.triton_server import TritonServer, replace_backend
from trt_perception.errors import ServerError
from trt_perception.images.frame import frame_from_bgr
from trt_perception.model.build_record import (
    BuildRecord,
    PrecisionRecord,
    ProfileRange,
    TensorRtRecord,
)
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.model.files.triton_address import parse_triton_address
from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.building.triton.model_repository import (
    ServerOptions,
    write_served_model,
)
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.stages.triton.connection import MANIFEST_PARAMETER
from trt_perception.stages.triton.model import TritonModel

pytestmark = needs('onnx', 'tritonclient')

SHAPE = (3, 480, 640)


def export(repository, name, file, *, uint8=False, before='', **options):
    """Export a digits model, and let the Python backend run it."""
    model = read_model_file(file)
    folder = repository / name
    write_served_model(model, model.manifest, folder, 1, ServerOptions(**options), uint8=uint8)
    replace_backend(folder, before=before)


def export_engine(repository, name, onnx_file):
    """Export an engine, and let the Python backend run its ONNX file."""
    profile = {'images': ProfileRange((1, *SHAPE), (5, *SHAPE), (5, *SHAPE))}
    build = BuildRecord(
        *(TensorRtRecord('tensorrt', '10.13.3.9'), None, None, {}, (profile,)),
        PrecisionRecord('fp16'),
    )
    manifest = replace(read_model_file(onnx_file).manifest, build=build)
    engine = ModelFile(repository / 'digits.engine', PLAN, '', manifest)
    options = ServerOptions(cuda_graphs=True, queue_delay_ms=3, queue_timeout_ms=700)
    write_served_model(engine, engine.manifest, repository / name, 1, options, uint8=False)
    assert (repository / name / '1/model.plan').read_bytes() == PLAN
    replace_backend(repository / name, onnx_file)


@pytest.fixture(scope='module', name='server')
def _server(tmp_path_factory):
    folder = tmp_path_factory.mktemp('exports')
    repository, calls = folder / 'models', folder / 'calls'
    repository.mkdir()
    twin = write_digits_twin(folder / 'twin.onnx', 0)
    export(repository, 'fixed', DIGITS)
    export(repository, 'fixed_uint8', DIGITS, uint8=True)
    export(repository, 'open_uint8', twin, uint8=True, max_batch=3)
    before = f"open({str(calls)!r}, 'a').write(str(self.batch))"
    export(repository, 'open', twin, before=before, max_batch=4)
    slow = f'while not pathlib.Path({str(folder / "gate")!r}).exists(): time.sleep(0.01)'
    export(repository, 'slow', DIGITS, before=slow, queue_timeout_ms=100, warm_up=False)
    export(
        repository,
        'patient',
        twin,
        max_batch=2,
        queue_delay_ms=60_000,
        queue_timeout_ms=0,
        warm_up=False,
    )
    export(repository, 'copies', DIGITS, instances=2)
    shutil.copytree(repository / 'copies/1', repository / 'copies/2')
    export_engine(repository, 'engine', twin)
    server = TritonServer(repository).start()
    server.warm_up_batches = set(calls.read_text())
    server.gate = folder / 'gate'
    yield server
    # After a failed test, the process of the slow model ends only with its request and its server.
    server.gate.touch()
    server.end(signal.SIGTERM)


@pytest.fixture(name='stub')
def _stub(server):
    with grpc.insecure_channel(server.address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def configuration(stub, name):
    return stub.ModelConfig(service_pb2.ModelConfigRequest(name=name)).config


def send(stub, name):
    """Send a grey image without waiting for the answer."""
    request = service_pb2.ModelInferRequest(model_name=name)
    request.inputs.add(name='images', datatype='FP32', shape=(1, *SHAPE))
    request.raw_input_contents.append(np.zeros((1, *SHAPE), np.float32).tobytes())
    return stub.ModelInfer.future(request, timeout=60)


@pytest.mark.parametrize('name', ['fixed', 'fixed_uint8', 'open', 'open_uint8', 'engine'])
def test_client_without_parameters_finds_the_boxes_of_the_local_model(server, name):
    local = open_by_parameters(ParameterValues.from_values({'engine_path': str(DIGITS)}))
    address = f'triton://{server.address}/{name}'
    values = {'engine_path': address, 'triton.timeout_ms': 10_000.0}
    served = open_by_parameters(ParameterValues.from_values(values))
    try:
        assert served.spec.class_names == local.spec.class_names
        assert served.spec.input.dtype == ('uint8' if 'uint8' in name else 'float32')
        for scene in sorted(SCENES.glob('*.jpg'))[:3]:
            frame = frame_from_bgr(cv2.imread(str(scene)))
            found = detect_one(served, frame, Thresholds()).detections
            expected = detect_one(local, frame, Thresholds()).detections
            assert len(expected.scores) > 0
            np.testing.assert_allclose(found.xyxy, expected.xyxy, atol=0.01)
            np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
            np.testing.assert_array_equal(found.class_ids, expected.class_ids)
    finally:
        served.close()
        local.close()


def test_model_runs_the_smallest_and_the_largest_batch_before_it_is_ready(server):
    assert server.warm_up_batches == {'1', '4'}


@pytest.mark.parametrize(
    ('name', 'max_batch', 'dims'),
    [('fixed', 0, [1, *SHAPE]), ('open', 4, [*SHAPE]), ('engine', 5, [*SHAPE])],
)
def test_server_has_the_batch_of_the_model(stub, name, max_batch, dims):
    config = configuration(stub, name)
    assert config.max_batch_size == max_batch
    assert list(config.input[0].dims) == dims
    assert config.parameters[MANIFEST_PARAMETER].string_value.startswith('{')


def test_server_runs_only_the_version_that_the_manifest_describes(stub):
    metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name='copies'))
    assert list(metadata.versions) == ['1']


def test_server_waits_for_a_second_request_to_fill_the_batch(stub):
    futures = [send(stub, 'patient') for _ in range(2)]
    assert [future.exception() for future in futures] == [None, None]
    # The server counts a batch after its answers.
    sizes, end = [], time.monotonic() + 60.0
    while not sizes and time.monotonic() < end:
        statistics = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name='patient'))
        sizes = [each.batch_size for each in statistics.model_stats[0].batch_stats]
    assert sizes == [2]


def test_request_that_waited_too_long_is_refused_and_frees_its_shared_memory(server):
    address = parse_triton_address(f'triton://{server.address}/slow')
    model = TritonModel(address, TritonOptions(timeout_s=20.0))
    try:
        model.use_shared_memory(2, 1)
        for slot in range(2):
            model.start(slot, {'images': np.zeros((1, *SHAPE), np.float32)})
        # One request runs until the gate exists, so the first answer is the other's.
        while not any(model.is_done(slot) for slot in range(2)):
            time.sleep(0.01)
        server.gate.touch()
        errors = []
        for slot in range(2):
            try:
                model.result(slot)
            except ServerError as error:
                errors.append(type(error))
            model.release(slot)
        assert errors == [ServerError]
        assert len(model._watch.free_regions) == 4  # all
    finally:
        model.close()


def test_server_has_the_options_of_the_export(stub):
    engine = configuration(stub, 'engine')
    assert engine.optimization.cuda.graphs
    batching = engine.dynamic_batching
    assert batching.max_queue_delay_microseconds == 3000
    policy = batching.default_queue_policy
    assert policy.timeout_action == model_config_pb2.ModelQueuePolicy.REJECT
    assert policy.default_timeout_microseconds == 700_000
    assert [group.count for group in configuration(stub, 'copies').instance_group] == [2]
    assert configuration(stub, 'fixed').output[0].label_filename == 'labels.txt'
