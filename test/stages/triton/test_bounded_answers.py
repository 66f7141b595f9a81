# SPDX-License-Identifier: Apache-2.0
"""Tests that an answer of a Triton server needs little more memory than its bytes."""

import subprocess
import sys
import time
from contextlib import closing

import pytest

from support.fake_triton import PATIENCE, answer, config, fake_triton, tensor
from support.optional_packages import needs
from support.programs import DEADLINE_S
from trt_perception.errors import EngineError, ServerError
from trt_perception.model.files.triton_address import parse_triton_address
from trt_perception.model.pipeline_options import TritonOptions

pytestmark = needs('tritonclient')

MIB = 2**20
# Open dimensions allow answers of up to 256 MiB.
OPEN = config(outputs=[tensor('output0', [1, -1, 6])])
GARBAGE = {
    'no message': b'\xff' * 40,
    'truncated': answer().SerializeToString()[:-1],
    'truncated number': b'\x08\x80',
    'truncated length': b'\x2a\xff\xff\xff\xff\x0f',
    'group': b'\x0b\x0c',
    'field 0': b'\x02\x00',
}


def field(number, content):
    """Return a field with bytes, a text or a message, encoded as protocol buffers do."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number):
    low = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(byte | 0x80 for byte in low[:-1]), low[-1]])


def many(number, content=b''):
    """Return 1 MiB of a field."""
    one = field(number, content)
    return one * (MIB // len(one))


# By method: answers with fields that need far more memory than bytes. The numbers of the fields
# are those of Triton's grpc_service.proto and model_config.proto.
LARGE_IN_MEMORY = {
    'inputs': ('ModelConfig', field(1, many(5))),
    'outputs of a model': ('ModelConfig', field(1, many(6))),
    'dimensions': ('ModelConfig', field(1, field(5, field(4, b'\x01' * MIB)))),
    'dimensions one by one': ('ModelConfig', field(1, field(5, b'\x20\x01' * (MIB // 2)))),
    'parameters': ('ModelConfig', field(1, many(14))),
    'instances': ('ModelConfig', field(1, many(7))),
    'many configurations': ('ModelConfig', many(1)),
    'regions': ('SystemSharedMemoryStatus', many(1)),
    'named regions': ('SystemSharedMemoryStatus', many(1, field(1, b'name'))),
    'outputs': ('ModelInfer', many(5)),
    'shape': ('ModelInfer', field(5, field(3, b'\x01' * MIB))),
    'parameters of an output': ('ModelInfer', field(5, many(4))),
    'tensors': ('ModelInfer', many(6)),
    'tensors as lists': ('ModelInfer', field(5, field(5, field(1, b'\x01' * MIB)))),
    'texts of a tensor': ('ModelInfer', field(5, field(5, many(8)))),
}


@pytest.fixture(name='server')
def _server():
    with fake_triton() as server:
        yield server


def response_type(method):
    from tritonclient.grpc import service_pb2

    return getattr(service_pb2, f'{method}Response')


@pytest.mark.parametrize('name', LARGE_IN_MEMORY)
def test_answer_with_many_fields_is_refused_before_it_is_parsed(name):
    from trt_perception.stages.triton.bounded_parsing import parse_bounded

    method, content = LARGE_IN_MEMORY[name]
    # The message is valid, and its fields are known.
    assert response_type(method).FromString(content).ListFields()
    with pytest.raises(ValueError, match='fields'):
        parse_bounded(response_type(method), content)


@pytest.mark.parametrize('name', GARBAGE)
def test_malformed_message_is_refused(name):
    from trt_perception.stages.triton.bounded_parsing import parse_bounded

    with pytest.raises(ValueError, match='malformed'):
        parse_bounded(response_type('ModelInfer'), GARBAGE[name])


def test_large_valid_messages_are_parsed_unchanged():
    from tritonclient.grpc import service_pb2

    from trt_perception.stages.triton.bounded_parsing import parse_bounded

    manifest = 'x' * 4 * MIB
    tensors = [tensor(f'tensor{number}', [1, 2**40, -1, 640]) for number in range(64)]
    described = service_pb2.ModelConfigResponse(config=config(tensors, tensors, manifest))
    regions = service_pb2.SystemSharedMemoryStatusResponse()
    for number in range(1000):
        region = regions.regions[f'region{number}']
        region.name = region.key = f'region{number}'
        region.byte_size, region.offset = 2**40, 64
    unknown = answer(content=bytes(50 * MIB)).SerializeToString() + field(1000, bytes(MIB))
    for message in (described, regions, service_pb2.ModelInferResponse.FromString(unknown)):
        assert parse_bounded(type(message), message.SerializeToString()) == message


@pytest.mark.parametrize('name', [*LARGE_IN_MEMORY, *GARBAGE])
def test_refused_answer_is_an_error_of_its_call(server, name):
    from trt_perception.stages.triton.model import TritonModel

    method, content = LARGE_IN_MEMORY.get(name, ('ModelInfer', GARBAGE.get(name)))
    address = parse_triton_address(f'triton://{server.address}/tiny')
    if method == 'ModelConfig':
        server.config = content
        with pytest.raises(EngineError):
            TritonModel(address, TritonOptions())
        return
    server.config = OPEN
    with closing(TritonModel(address, TritonOptions(DEADLINE_S, shared_memory=False))) as model:
        if method == 'SystemSharedMemoryStatus':
            server.reports_regions = content
            with pytest.raises(EngineError):
                model._connection.known_regions()
            return
        server.infer = content
        with pytest.raises(ServerError):
            model.run(image())
        server.infer = answer()
        end_s = time.monotonic() + DEADLINE_S
        while not answers(model):
            assert time.monotonic() < end_s, 'no answer after a refused answer'


def image():
    import numpy as np

    return {'images': np.zeros((1, 3, 48, 64), np.float32)}


def answers(model):
    try:
        return model.run(image())
    except ServerError:
        return False


PROGRAM = """
import resource, sys
import numpy as np
from trt_perception.errors import ServerError
from trt_perception.model.files.triton_address import parse_triton_address
from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.stages.triton.model import TritonModel

model = TritonModel(parse_triton_address(sys.argv[1]), TritonOptions(shared_memory=False))
resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30,) * 2)
# The peak in getrusage() would begin with the peak of the process that started this one.
def peak_kib():
    with open('/proc/self/status') as status:
        return next(int(line.split()[1]) for line in status if line.startswith('VmHWM:'))

before = peak_kib()
try:
    model.run({'images': np.zeros((1, 3, 48, 64), np.float32)})
except ServerError:
    print(peak_kib() - before)
model.close()
"""


def test_answer_of_empty_messages_needs_little_memory(server):
    server.config, server.infer = OPEN, field(5, b'') * (16 * MIB)
    ended = subprocess.run(
        [sys.executable, '-c', PATIENCE + PROGRAM, f'triton://{server.address}/tiny'],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    # 32 MiB of empty messages would need 1.5 GB.
    assert int(ended.stdout) * 1024 < 400 * MIB
