# SPDX-License-Identifier: Apache-2.0
"""Tests of the memory that a server's description of a model can make this process allocate."""

import os
import threading
from contextlib import ExitStack, closing

import numpy as np
import pytest

from support.fake_triton import answer, config, fake_triton, tensor
from support.models.open_model import open_by_parameters
from support.optional_packages import needs
from trt_perception.errors import EngineError
from trt_perception.model.files.triton_address import parse_triton_address
from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.model.tensors import MAX_TENSOR_VALUES, TensorSpec
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.host.triton_pipeline import MAX_REQUESTS_BYTES
from trt_perception.stages.triton import memory
from trt_perception.stages.triton.memory import MAX_SHARED_BYTES, open_regions
from trt_perception.stages.triton.model import TritonModel

pytestmark = needs('tritonclient')

MIB = 2**20
DENSE = {
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
    'model.decoder': 'dense',
    'model.class_names': ['cat', 'dog'],
    'triton.timeout_ms': 60_000.0,
}


@pytest.fixture(name='server')
def _server():
    with fake_triton() as server:
        yield server


@pytest.fixture(name='reserved')
def _reserved(monkeypatch):
    """Note the size of each region. The files are sparse, so that the tests need little memory."""
    sizes = []

    def reserve(file, _, size):
        sizes.append(size)
        os.ftruncate(file, size)

    monkeypatch.setattr(memory.os, 'posix_fallocate', reserve)
    return sizes


def image_model(width, height, kind='TYPE_FP32', boxes=6, batch=1):
    image, outputs = [batch, 3, height, width], [batch, 6, boxes]
    return config(inputs=[tensor('images', image, kind)], outputs=[tensor('output0', outputs)])


def open_pipeline(server, **values):
    values = {'engine_path': f'triton://{server.address}/tiny', **DENSE, **values}
    return open_by_parameters(ParameterValues.from_values(values))


# Inputs have 12 bytes a pixel as float32. There are two regions for each request in flight.
MODELS = {
    'small': (image_model(640, 640), 3, True),
    'large image': (image_model(8192, 4096), 1, False),
    'largest image': (image_model(8192, 8192), 1, False),
    'bytes': (image_model(8192, 4096, 'TYPE_UINT8'), 3, False),
    'large output': (image_model(64, 64, boxes=2**24), 3, False),
    'batch of 64': (image_model(1280, 640, batch=64), 1, False),
    'batch of 8': (image_model(640, 640, batch=8), 3, True),
}


@pytest.mark.parametrize('name', MODELS)
def test_large_tensors_are_sent_in_requests(server, name, reserved, caplog):
    caplog.set_level('INFO')
    server.config, depth, is_shared = MODELS[name]
    scale = 1.0 if name == 'bytes' else 1 / 255
    with closing(open_pipeline(server, **{'model.scale': scale})) as pipeline:
        assert bool(reserved) is is_shared
        assert sum(reserved) <= MAX_SHARED_BYTES
        assert pipeline.depth == pipeline.max_in_flight == depth
        size = pipeline.spec.input.size_bytes
        assert size * depth <= MAX_REQUESTS_BYTES or depth == 1
    # The log says it once, with what the user can do.
    records = [r for r in caplog.records if r.name == 'trt_perception.stages.triton.model']
    errors = [argument for r in records for argument in r.args if hasattr(argument, 'fix')]
    assert len(errors) == (0 if is_shared else 1)
    assert all(error.fix for error in errors)


def test_refused_size_leaves_no_region(server):
    server.config = image_model(8192, 4096)
    with closing(open_pipeline(server)) as pipeline:
        assert not pipeline._served._watch.regions
        assert server.calls['SystemSharedMemoryRegister'] == 0


def test_all_models_of_a_process_share_the_limit(server, monkeypatch):
    limit = 20 * MIB
    monkeypatch.setattr(memory, 'MAX_SHARED_BYTES', limit)
    server.config = image_model(512, 512, boxes=2)  # 3 MiB, in 2 regions
    address = parse_triton_address(f'triton://{server.address}/tiny')

    def open_model():
        model = opened.enter_context(closing(TritonModel(address, TritonOptions(60.0))))
        model.use_shared_memory(1, 1)
        return model

    with ExitStack() as opened:
        models = [open_model() for _ in range(4)]
        shares = [bool(model._watch.regions) for model in models]
        assert shares == [True, True, True, False]
        server.infer = answer(np.zeros((1, 6, 2), np.float32), shape=[1, 6, 2])
        for model in models:
            images = np.zeros((1, 3, 512, 512), np.float32)
            assert model.run({'images': images})[0].shape == (1, 6, 2)
        models[0].close()
        assert open_model()._watch.regions


def test_threads_together_keep_the_limit(monkeypatch):
    monkeypatch.setattr(memory, 'MAX_SHARED_BYTES', 10 * MIB)
    made = []

    def make():
        try:
            made.extend(open_regions([TensorSpec('a', (MIB,), 'uint8')], 3))
        except EngineError:
            return

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 9
    for region in made:
        region.close()


def test_failed_region_frees_the_others(monkeypatch):
    tensors = [TensorSpec('a', (MIB,), 'uint8')]
    before = memory._OPEN_REGIONS.copy()
    calls = []

    def fail(*_):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, 'No space left on device')

    monkeypatch.setattr(memory.os, 'posix_fallocate', fail)
    monkeypatch.setattr(memory.mmap, 'mmap', lambda *_: bytearray(MIB))
    with pytest.raises(OSError, match='No space'):
        open_regions(tensors, 4)
    assert before == memory._OPEN_REGIONS


# The batch or the sides of these inputs are open. The size comes from a parameter.
TOO_LARGE = {
    'batch of 64': ([64, 3, -1, -1], [4096, 4096]),
    'batch of 8, rows of pixels': ([8, -1, -1, 3], [4096, 4096]),
    'batch of 4': ([4, 3, -1, -1], [8192, 8192]),
}


@pytest.mark.parametrize('name', TOO_LARGE)
def test_size_of_a_parameter_does_not_exceed_the_limit_of_a_tensor(server, name):
    shape, size = TOO_LARGE[name]
    assert 3 * shape[0] * size[0] * size[1] > MAX_TENSOR_VALUES
    output = tensor('output0', [shape[0], 6, 6])
    server.config = config(inputs=[tensor('images', shape)], outputs=[output])
    with pytest.raises(EngineError):
        open_pipeline(server, **{'model.input_size': size})
