# SPDX-License-Identifier: Apache-2.0
"""Tests of messages: gRPC is quiet, time limits are real, and advice fits a model on a server."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing

import grpc
import numpy as np
import pytest

from support.fake_triton import OUTPUT, answer, config, fake_triton, tensor
from support.models.digits import DIGITS
from support.models.open_model import open_by_parameters
from support.optional_packages import needs
from support.programs import DEADLINE_S
from trt_perception.checks.model import model_findings
from trt_perception.errors import (
    ConfigError,
    EngineError,
    ServerError,
    ServerTimeoutError,
)
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.files.triton_address import parse_triton_address
from trt_perception.model.manifest import manifest_path
from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.parameters.values import ParameterValues
from trt_perception.stages.triton import model as triton_model
from trt_perception.stages.triton.model import TritonModel

pytestmark = needs('tritonclient')

IMAGES = np.zeros((1, 3, 48, 64), np.float32)


@pytest.fixture(name='server')
def _server():
    with fake_triton() as server:
        yield server


@pytest.fixture(name='open_model')
def _open_model(server):
    """Return a function that opens the model of the server."""
    opened = []

    def open_model(**options):
        address = parse_triton_address(f'triton://{server.address}/tiny')
        opened.append(TritonModel(address, TritonOptions(**options)))
        return opened[-1]

    yield open_model
    for model in opened:
        model.close()


PROGRAM = """
import sys
import numpy as np
import trt_perception as tp

address, tls = sys.argv[1:]
for _ in range(2):
    try:
        with tp.load(address, triton_tls=tls == 'tls', resize='letterbox', color_order='rgb',
                     scale=1 / 255, decoder='dense', class_names=['cat', 'dog']) as model:
            model(np.zeros((48, 64, 3), np.uint8))
    except tp.TrtPerceptionError as error:
        print(error)
"""
HTTP_1 = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n'


def errors_of_program(address, tls='', **environment):
    """Run a program that uses a server. Return its lines on standard error."""
    values = {name: text for name, text in os.environ.items() if name != 'GRPC_VERBOSITY'}
    ended = subprocess.run(
        [sys.executable, '-c', PROGRAM, f'triton://{address}/tiny', tls],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**values, **environment},
        check=True,
    )
    assert ended.stdout.count('triton://') >= 2
    return ended.stderr


@pytest.mark.parametrize('tls', ['tls', ''])
def test_wrong_server_causes_no_lines_of_grpc(tls):
    with closing(socket.create_server(('127.0.0.1', 0))) as listening:

        def refuse():
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:
                    return
                with peer:
                    peer.sendall(HTTP_1)

        threading.Thread(target=refuse, daemon=True).start()
        assert not errors_of_program(f'127.0.0.1:{listening.getsockname()[1]}', tls)
        listening.shutdown(socket.SHUT_RDWR)


def test_tls_to_a_server_without_tls_causes_no_lines_of_grpc(server):
    assert not errors_of_program(server.address, 'tls')


def test_missing_server_causes_no_lines_of_grpc():
    assert not errors_of_program('127.0.0.1:1')
    assert not errors_of_program('no-such-host.invalid:8001')


def test_malformed_answers_cause_no_lines_of_grpc(server):
    malformed = b'\xff' * 40, answer().SerializeToString()[:-1]
    for infer in (answer(content=b'abc'), answer(content=bytes(2**22)), *malformed):
        server.infer = infer
        assert not errors_of_program(server.address)


def test_user_can_see_the_lines_of_grpc(server):
    assert errors_of_program(server.address, 'tls', GRPC_VERBOSITY='DEBUG')


@pytest.mark.parametrize('shared_memory', [True, False])
@pytest.mark.parametrize('timeout_s', [1.0, 30.0, 60.0])
def test_deadline_of_the_server_is_not_a_timeout(server, open_model, timeout_s, shared_memory):
    model = open_model(timeout_s=timeout_s, shared_memory=shared_memory)
    model.use_shared_memory(1, 1)
    for details in ('refused', 'Deadline Exceeded'):
        server.infer = lambda _, context, text=details: context.abort(
            grpc.StatusCode.DEADLINE_EXCEEDED, text
        )
        with pytest.raises(ServerError) as caught:
            model.run({'images': IMAGES})
        assert type(caught.value) is ServerError


@pytest.mark.parametrize('shared_memory', [True, False])
def test_timeout_states_the_limit_of_its_request(
    server, open_model, monkeypatch, golden_messages, shared_memory
):
    monkeypatch.setattr(triton_model, '_FIRST_TIMEOUT_S', 0.5)
    monkeypatch.setattr(triton_model, '_EXTRA_TIMEOUT_S', DEADLINE_S)
    model = open_model(timeout_s=0.25, shared_memory=shared_memory)
    model.use_shared_memory(2, 1)
    entered, go_on = threading.Event(), threading.Event()

    def wait_for_the_first(request, _):
        if not entered.is_set():
            entered.set()
            go_on.wait(DEADLINE_S)
        return answer()

    server.infer = wait_for_the_first
    started = time.monotonic()
    model.start(0, {'images': IMAGES})
    assert entered.wait(DEADLINE_S)
    model.start(1, {'images': IMAGES})
    model._requests[1].deadline_s += DEADLINE_S  # the machine may be busy
    model.result(1)  # from now on, requests have the usual limit
    model.release(1)
    with pytest.raises(ServerTimeoutError) as caught:
        model.result(0)
    model.release(0)
    assert time.monotonic() - started >= 0.5
    golden_messages.add(without_port(server, caught.value))

    go_on.clear()
    server.infer = lambda *_: go_on.wait(DEADLINE_S) and answer()
    with pytest.raises(ServerTimeoutError) as caught:
        model.run({'images': IMAGES})
    golden_messages.add(without_port(server, caught.value))
    go_on.set()


def test_timeout_that_is_read_late_is_still_a_timeout(server, open_model, monkeypatch):
    monkeypatch.setattr(triton_model, '_FIRST_TIMEOUT_S', 0.1)
    monkeypatch.setattr(triton_model, '_EXTRA_TIMEOUT_S', 0.1)
    model = open_model(timeout_s=0.1)
    go_on = threading.Event()
    server.infer = lambda *_: go_on.wait(DEADLINE_S) and answer()
    model.start(0, {'images': IMAGES})
    while not model._requests[0].is_over:
        time.sleep(0.01)
    with pytest.raises(ServerTimeoutError):
        model.result(0)
    go_on.set()


def open_pipeline(server, **values):
    values = {'engine_path': f'triton://{server.address}/tiny', **values}
    return open_by_parameters(ParameterValues.from_values(values))


MANY_ROWS = [1, 300, 56]
#: Configurations of models that cannot be used without more information, or at all.
CONFIGURATIONS = {
    'unknown classes': config(),
    'two sizes of boxes': config(outputs=[tensor(OUTPUT[0], [1, 84, 8400])]),
    'masks': config(outputs=[tensor('a', [1, 116, 8400]), tensor('b', [1, 32, 160, 160])]),
    'more channels': config(outputs=[tensor(OUTPUT[0], MANY_ROWS)]),
    'manifest of other tensors': None,  # filled by the test
    'manifest that is not JSON': config(manifest='{'),
    'manifest of a newer schema': config(manifest='{"schema": 99}'),
    'manifest without a task': config(manifest='{"schema": 2}'),
    'type': config(inputs=[tensor('images', [1, 3, 48, 64], 'TYPE_STRING')]),
    'dimensions': config(outputs=[tensor(OUTPUT[0], [1] * 9)]),
    'no outputs': config(outputs=[]),
    'decoupled': config(model_transaction_policy={'decoupled': True}),
    'sequences': config(sequence_batching={}),
    'too large': config(outputs=[tensor(OUTPUT[0], [1, 6, 2**40])]),
    'batch': config(inputs=[tensor('images', [65, 3, 48, 64])]),
    'grey images': config(inputs=[tensor('images', [1, 1, 48, 64])]),
}
TASKS = ('unknown classes', 'masks', 'more channels')


@pytest.mark.parametrize(
    ('name', 'task'),
    [
        *((name, '') for name in CONFIGURATIONS),
        *((name, task) for name in TASKS for task in ('pose', 'segment')),
    ],
)
def test_advice_fits_a_model_on_a_server(server, name, task, golden_messages):
    """The golden texts ask for no file of this machine, and `export_triton` writes manifests."""
    server.config = CONFIGURATIONS[name]
    if name == 'manifest of other tensors':
        server.config = config(manifest=manifest_path(DIGITS).read_text())
    with pytest.raises(EngineError) as caught:
        open_pipeline(server, **({'model.task': task} if task else {}))
    assert caught.value.fix
    golden_messages.add(without_port(server, caught.value))


def without_port(server, error):
    return str(error).replace(server.address, 'localhost:8001')


def test_recognition_reports_the_error_of_the_server(server):
    """Recognition runs the model if outputs have open dimensions."""
    server.config = config(outputs=[tensor(OUTPUT[0], [-1, -1, -1])])
    server.infer = grpc.StatusCode.INTERNAL
    with pytest.raises(ServerError):
        open_pipeline(server, **{'model.class_names': ['cat', 'dog']})


@pytest.mark.parametrize(
    'address',
    [
        'TRITON://localhost:8001/tiny',
        'http://localhost:8000/tiny',
        'grpc://localhost:8001/tiny',
        'tritons://localhost:8001/tiny',
        'http://localhost:8000/tiny.onnx',
        'http:/localhost:8000/tiny',
    ],
)
def test_address_of_another_scheme_is_no_file(address, golden_messages):
    with golden_messages.raises(ConfigError):
        read_model_file(address, accepts_server=True)


@pytest.mark.parametrize('address', ['triton://host', 'triton://host:0/a', 'triton:'])
def test_doctor_asks_for_an_address_instead_of_a_file(address, golden_messages):
    (finding,) = model_findings(address, {}, (), trial=pytest.fail)
    assert finding.level == 'red'
    golden_messages.add(f'{finding.found}; {finding.fix}')
