# SPDX-License-Identifier: Apache-2.0
"""Tests of answers that no Triton server should give, and of the connection, by a fake server."""

import os
import shutil
import socket
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from support.fake_triton import OUTPUT, answer, config, fake_triton, tensor
from support.models.open_model import open_by_parameters
from support.optional_packages import needs
from trt_perception.errors import (
    ConfigError,
    EngineError,
    OutputError,
    ServerError,
    ServerTimeoutError,
)
from trt_perception.model.files.triton_address import parse_triton_address
from trt_perception.model.manifest import MANIFEST_MAX_BYTES
from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.pipeline import detect_one
from trt_perception.pipelines.warm_up import grey_frame
from trt_perception.stages.triton import connection, server_watch
from trt_perception.stages.triton.model import TritonModel

pytestmark = needs('tritonclient')

import grpc  # noqa: E402

DEADLINE_S = 60.0
#: Time limit for a server that never answers.
SHORT_S = 0.1
IMAGES = np.zeros((1, 3, 48, 64), np.float32)
TINY = {
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
    'model.decoder': 'dense',
    'model.class_names': ['cat', 'dog'],
    'triton.timeout_ms': 1e3 * DEADLINE_S,
}


@pytest.fixture(name='server')
def _server():
    with fake_triton() as server:
        yield server


@pytest.fixture(name='open_model')
def _open_model(server):
    """Return a function that opens the model of the server, with shared memory for two slots."""
    opened = []

    def open_model(address=server.address, timeout_s=DEADLINE_S, **options):
        model = TritonModel(
            parse_triton_address(f'triton://{address}/tiny'), TritonOptions(timeout_s, **options)
        )
        opened.append(model)
        model.use_shared_memory(2, 1)
        return model

    yield open_model
    for model in opened:
        model.close()


def open_pipeline(server, **values):
    values = {'engine_path': f'triton://{server.address}/tiny', **TINY, **values}
    return open_by_parameters(ParameterValues.from_values(values))


def wait_until(condition, what):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def memory_files():
    """Return the names of this user's files of shared memory."""
    return {path.name for path in Path('/dev/shm').glob('*trt_perception_triton_*')}


def images_of(dims, kind='TYPE_FP32', name='images'):
    return config(inputs=[tensor(name, dims, kind)])


def output_of(dims, name=OUTPUT[0]):
    return config(outputs=[tensor(name, dims)])


CONFIGURATIONS = {
    'BYTES': images_of([1, 3, 48, 64], 'TYPE_STRING'),
    'no type': images_of([1, 3, 48, 64], 'TYPE_INVALID'),
    'unknown type': images_of([1, 3, 48, 64], 99),
    'decoupled': config(model_transaction_policy={'decoupled': True}),
    'sequences': config(sequence_batching={}),
    'no outputs': config(outputs=[]),
    'same input twice': config(inputs=[tensor('images', [1, 3, 48, 64])] * 2),
    '65 outputs': config(outputs=[tensor(f'output{i}', [1, 6, 6]) for i in range(65)]),
    '9 dimensions': output_of([1] * 9),
    'no dimensions': images_of([]),
    'negative dimension': output_of([1, -2, 6]),
    'empty input': images_of([1, 3, 0, 64]),
    'empty output': output_of([1, 0, 6]),
    'huge input': images_of([1, 3, 2**40, 2**40]),
    'huge output': output_of([1, 6, 2**62]),
    'batch before the batch': config(max_batch_size=2**31 - 1),
    'NUL in a name': output_of([1, 6, 6], 'out\0put'),
    'escape sequence in a name': images_of([1, 3, 48, 64], name='\x1b[31mimages'),
    'empty name': images_of([1, 3, 48, 64], name=''),
    'manifest that is not JSON': config(manifest='{' * 1000),
    'manifest that is a list': config(manifest='[]'),
    'manifest that is nested': config(manifest='[' * 100_000),
    'manifest of 10 MB': config(manifest='[' + ' ' * 10 * 2**20 + ']'),
    'unavailable': grpc.StatusCode.UNAVAILABLE,
    'not implemented': grpc.StatusCode.UNIMPLEMENTED,
}


@pytest.mark.parametrize('name', CONFIGURATIONS)
def test_configuration_that_cannot_be_used_is_refused(server, name):
    server.config = CONFIGURATIONS[name]
    with pytest.raises(EngineError) as caught:
        open_pipeline(server)
    assert all(line.isprintable() for line in str(caught.value).split('\n'))


def test_manifest_above_the_limit_is_not_received(server):
    # A received manifest of this size causes a ManifestError.
    server.config = config(manifest=' ' * (MANIFEST_MAX_BYTES + 2**21))
    with pytest.raises(EngineError) as caught:
        open_pipeline(server)
    assert type(caught.value) is EngineError


ANSWERS = {
    'no output': answer(name='other'),
    'wrong type': answer(datatype='INT32'),
    'type that controls a terminal': answer(datatype='\x1b[31m\n'),
    'wrong shape': answer(shape=[1, 6, 7]),
    'many dimensions': answer(shape=[1] * 1000),
    'negative dimension': answer(shape=[-1, 6, 6]),
    'huge shape': answer(shape=[2**62, 2**62, 2**62]),
    'few bytes': answer(content=b'abc'),
    'many bytes': answer(content=bytes(2**16)),
    'no bytes': answer(content=b''),
    'above the limit of a message': answer(content=bytes(2**22)),
    'NaN': answer(np.full(OUTPUT[1], np.nan, np.float32)),
    **{code.name: code for code in grpc.StatusCode if code is not grpc.StatusCode.OK},
}


@pytest.mark.parametrize('shared_memory', [True, False])
@pytest.mark.parametrize('name', ANSWERS)
def test_invalid_answer_is_an_error_of_its_image(server, name, shared_memory):
    with closing(open_pipeline(server, **{'triton.shared_memory': shared_memory})) as pipeline:
        assert bool(pipeline._served._watch.regions) is shared_memory
        server.infer = ANSWERS[name]
        for _ in range(5):
            pipeline.enqueue(0, [grey_frame()], [Thresholds()])
            (found,) = pipeline.collect(0)
            assert isinstance(found, OutputError)
            assert str(found).isprintable()

        server.infer = answer()
        wait_until(lambda: answers(pipeline), 'an answer after invalid answers')


@pytest.mark.parametrize(
    ('shape', 'values'),
    [((-1, -1, 6), 6), ((0, 2**62, 2**62), 0), ((2**62, 0, 6), 0), ((2**62, 6, 6), 0)],
)
def test_impossible_shape_is_refused_before_it_is_used(server, open_model, shape, values):
    server.config = output_of([-1, -1, -1])
    model = open_model()
    server.infer = answer(shape=shape, content=bytes(4 * values))
    with pytest.raises(ServerError) as caught:
        model.run({'images': IMAGES})
    assert caught.value.expected


def answers(pipeline):
    """Send a frame, and return whether the server answered it."""
    try:
        detect_one(pipeline, grey_frame(), Thresholds())
    except ServerError:
        return False
    return True


def test_memory_that_the_server_did_not_write_is_no_result(server, open_model):
    model = open_model()
    region = model._watch.free_regions[-1]
    region.arrays[1][:] = 1  # an earlier result
    server.infer = answer(content=b'')

    with pytest.raises(ServerError):
        model.run({'images': IMAGES})

    def write(request, _):
        (region,) = [r for r in model._watch.regions if r.name in str(request.outputs)]
        region.arrays[1][:] = 2
        return answer(content=b'')

    server.infer = write
    np.testing.assert_array_equal(model.run({'images': IMAGES})[0], np.full(OUTPUT[1], 2))


#: Shapes and types of outputs: boxes, class maps, depth, number of boxes, flags.
SHARED_OUTPUTS = [
    *(((1, 84, 8400), 'FP32'), ((1, 84, 8400), 'FP16'), ((1, 6, 6), 'FP32')),
    *(((1, 480, 640), 'UINT8'), ((1, 480, 640), 'INT64'), ((1, 41, 7), 'INT8')),
    *(((1, 300), 'INT32'), ((1, 17), 'BOOL'), ((1, 16), 'UINT8'), ((1, 5), 'FP32')),
]
DTYPES = {'FP32': 'f4', 'FP16': 'f2', 'BOOL': '?', 'UINT8': 'u1', 'INT8': 'i1', 'INT32': 'i4'}
DTYPES['INT64'] = 'i8'


def values_of(shape, datatype, number):
    """Return an output whose first values are NaN if its type has NaN."""
    values = np.full(shape, number, DTYPES[datatype])
    if datatype.startswith('FP'):
        values[0, :1] = np.nan
    return values


def serve_output(server, shape, datatype):
    server.config = config(outputs=[tensor(OUTPUT[0], list(shape), f'TYPE_{datatype}')])


def writing(model, values, datatype, parts):
    """Return a server's reaction: write parts of the shared memory, and answer without error."""
    content = np.ascontiguousarray(values).reshape(-1).view(np.uint8)

    def write(request, _):
        (region,) = [r for r in model._watch.regions if r.name in str(request.outputs)]
        memory = region.arrays[1].reshape(-1).view(np.uint8)
        for part in parts:
            memory[part] = content[part]
        return answer(content=b'', datatype=datatype, shape=list(values.shape))

    return write


@pytest.mark.parametrize(('shape', 'datatype'), SHARED_OUTPUTS, ids=str)
def test_output_that_the_server_wrote_to_shared_memory_is_its_result(
    server, open_model, shape, datatype
):
    serve_output(server, shape, datatype)
    model = open_model()
    assert model._watch.regions
    for number in (0, 1, 1, 0):  # an output may equal the previous one
        values = values_of(shape, datatype, number)
        server.infer = writing(model, values, datatype, [slice(None)])
        (found,) = model.run({'images': IMAGES})
        assert found.dtype == values.dtype
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(('shape', 'datatype'), SHARED_OUTPUTS, ids=str)
def test_old_or_partly_written_output_is_no_result(server, open_model, shape, datatype):
    serve_output(server, shape, datatype)
    model = open_model()
    values = values_of(shape, datatype, 1)
    size = values.nbytes
    third = size // 3 // 8 * 8
    for start, end in (
        *((0, size), (0, size // 2), (size // 2, size), (0, 8), (size - 8, size)),
        *((third, third + max(8, -(-size // 4000) // 8 * 8 + 8)),),
    ):
        for parts in ([slice(None)], [slice(0, start), slice(end, size)]):
            server.infer = writing(model, values, datatype, parts)
            for _ in model._watch.regions:  # each region has an old result
                if parts == [slice(None)]:
                    model.run({'images': IMAGES})
                else:
                    with pytest.raises(ServerError):
                        model.run({'images': IMAGES})


@pytest.mark.parametrize(
    ('shape', 'datatype'), [((1, 1), 'INT32'), ((1, 1), 'BOOL'), ((1, 3), 'FP16')], ids=str
)
def test_output_that_is_too_small_for_a_mark_is_in_the_answer(server, open_model, shape, datatype):
    serve_output(server, shape, datatype)
    model = open_model()
    asked = []

    def react(request, _):
        asked.append(str(request.outputs))
        content = values_of(shape, datatype, 1).tobytes()
        return answer(content=content, datatype=datatype, shape=list(shape))

    server.infer = react
    (found,) = model.run({'images': IMAGES})
    np.testing.assert_array_equal(found, values_of(shape, datatype, 1))
    assert 'shared_memory' not in asked[-1]
    server.infer = answer(content=b'', datatype=datatype, shape=list(shape))
    with pytest.raises(ServerError):
        model.run({'images': IMAGES})


@pytest.mark.parametrize('code', ['UNAVAILABLE', 'INTERNAL', 'CANCELLED'])
def test_memory_of_a_request_that_the_server_may_still_run_is_not_used_again(
    server, open_model, code
):
    model = open_model()
    server.infer = grpc.StatusCode[code]
    for _ in range(6):
        with pytest.raises(ServerError):
            model.run({'images': IMAGES})
        wait_until(lambda: model._watch.problem is None, 'a model that is ready')
    server.infer = answer()
    model.run({'images': IMAGES})
    assert not model._watch.free_regions
    assert model._watch.waiting_regions == set(model._watch.regions)

    server.regions.clear()  # as after a restart of the server, which loses all registrations

    wait_until(lambda: len(model._watch.free_regions) == 4, 'regions that are used again')
    assert server.regions == {region.name for region in model._watch.regions}


def test_memory_of_a_refused_request_is_used_again(server, open_model):
    model = open_model()
    server.infer = grpc.StatusCode.INVALID_ARGUMENT
    for _ in range(6):
        with pytest.raises(ServerError):
            model.run({'images': IMAGES})
        assert len(model._watch.free_regions) == 4


def test_request_that_fails_during_the_registration_keeps_its_memory(server, open_model):
    model = open_model()
    registered, go_on = set(), threading.Event()

    def hold_the_last(request, _):
        registered.add(request.name)
        assert len(registered) < 4 or go_on.wait(DEADLINE_S)

    server.registers, server.infer = hold_the_last, grpc.StatusCode.UNAVAILABLE
    server.regions.clear()  # as after a restart of the server, which loses all registrations
    wait_until(lambda: len(registered) == 4, 'the last registration')
    with pytest.raises(ServerError):
        model.run({'images': IMAGES})
    go_on.set()

    calls = server.calls['SystemSharedMemoryStatus']
    wait_until(lambda: server.calls['SystemSharedMemoryStatus'] > calls + 1, 'two checks')
    assert len(model._watch.waiting_regions) == 1
    assert len(model._watch.free_regions) == 3


def test_requests_contain_the_tensors_if_memory_cannot_be_registered_again(server, open_model):
    model = open_model()
    server.registers = grpc.StatusCode.INVALID_ARGUMENT
    server.regions.clear()
    wait_until(lambda: model._watch.waiting_regions, 'a check without regions')
    model.run({'images': IMAGES})
    assert not model._watch.free_regions

    server.registers = True

    wait_until(lambda: len(model._watch.free_regions) == 4, 'registered regions')


def test_late_request_frees_its_memory_only_with_its_answer(server, open_model):
    model = open_model(timeout_s=0.2)
    model.run({'images': IMAGES})
    go_on = threading.Event()
    server.infer = lambda *_: go_on.wait(DEADLINE_S) and answer()
    for _ in range(6):
        with pytest.raises(ServerTimeoutError):
            model.run({'images': IMAGES})
    assert not model._watch.free_regions

    go_on.set()

    wait_until(lambda: len(model._watch.free_regions) == 4, 'regions that are used again')


def test_changed_model_does_not_free_the_memory_of_a_late_request(server, open_model):
    model = open_model(timeout_s=0.2)
    model.run({'images': IMAGES})
    go_on = threading.Event()
    server.infer = lambda *_: go_on.wait(DEADLINE_S) and answer()
    server.config = output_of([1, 6, 7])
    wait_until(lambda: model._watch.change is not None, 'a changed model')
    model.start(0, {'images': IMAGES})
    with pytest.raises(EngineError) as caught:
        model.result(0)
    model.release(0)
    assert not isinstance(caught.value, ServerError)
    assert len(model._watch.free_regions) == 3

    with mock.patch.object(server_watch, '_LAST_ANSWERS_S', SHORT_S):
        model.close()
    go_on.set()

    assert server.calls['SystemSharedMemoryUnregister'] == 3


def test_closing_waits_for_a_server_that_does_not_answer_only_once(server, open_model):
    """All calls are sent at once, so that they share one time limit."""
    model = open_model()
    names = {region.name for region in model._watch.regions}
    go_on = threading.Event()
    server.unregisters = lambda *_: go_on.wait(DEADLINE_S)
    thread = threading.Thread(target=model.close)
    thread.start()
    try:
        # No call was answered, so none of them waited for another one.
        wait_until(lambda: server.calls['SystemSharedMemoryUnregister'] == len(names), 'calls')
    finally:
        go_on.set()
        thread.join()
    assert len(names) > 1
    assert not names & memory_files()


def test_closing_ends_if_the_server_does_not_answer(server, open_model):
    model = open_model()
    names = {region.name for region in model._watch.regions}
    go_on = threading.Event()
    server.unregisters = lambda *_: go_on.wait(DEADLINE_S)
    limits = {'_UNREGISTER_TIMEOUT_S': SHORT_S, '_MIN_UNREGISTER_TIMEOUT_S': SHORT_S}
    with mock.patch.multiple(connection, **limits):
        model.close()
    go_on.set()
    assert names
    assert not names & memory_files()


def test_repeated_opening_leaves_nothing(server):
    def counts():
        files = len(os.listdir('/proc/self/fd'))
        return files + threading.active_count()

    open_pipeline(server).close()
    before = counts()
    names = set()
    for _ in range(30):
        with closing(open_pipeline(server)) as pipeline:
            assert answers(pipeline)
            names |= {region.name for region in pipeline._served._watch.regions}
    # The server in this process starts up to 8 threads, and gRPC closes sockets later.
    wait_until(lambda: counts() < before + 25, 'no leak')
    assert not server.regions
    assert not names & memory_files()


def test_server_that_does_not_answer_is_an_error_of_configure(server):
    go_on = threading.Event()
    server.ready = lambda *_: go_on.wait(DEADLINE_S)
    with (
        mock.patch.object(connection, '_CONTROL_TIMEOUT_S', SHORT_S),
        pytest.raises(EngineError),
    ):
        open_pipeline(server)
    go_on.set()


def test_port_that_never_answers_is_an_error_of_configure(open_model):
    with (
        closing(socket.create_server(('127.0.0.1', 0))) as listening,
        mock.patch.object(connection, '_CONTROL_TIMEOUT_S', SHORT_S),
        pytest.raises(EngineError),
    ):
        open_model(f'127.0.0.1:{listening.getsockname()[1]}')


HEADERS = """\
authorization: Bearer secret-token
X-Robot_1.a:two words

empty:
"""


def test_headers_are_sent_with_each_request(server, open_model, tmp_path, caplog):
    caplog.set_level('DEBUG')
    path = tmp_path / 'headers'
    path.write_text(HEADERS)
    model = open_model(headers=str(path))
    model.run({'images': IMAGES})
    server.ready = grpc.StatusCode.UNAUTHENTICATED
    wait_until(lambda: model._watch.problem is not None, 'a problem')
    expected = {
        'authorization': 'Bearer secret-token',
        'x-robot_1.a': 'two words',
        'empty': '',
    }
    for method in ('ModelReady', 'ModelConfig', 'ModelInfer', 'SystemSharedMemoryRegister'):
        assert expected.items() <= server.headers[method].items()
    assert caplog.text
    assert 'secret' not in caplog.text


@pytest.mark.parametrize(
    'line',
    [
        'secret',
        ': secret',
        'two words: secret',
        'grpc-timeout: secret',
        'token-bin: secret',
        'token: secret\x07',
        'token: sécret',
    ],
)
def test_refused_header_is_not_shown(server, open_model, tmp_path, golden_messages, line):
    path = tmp_path / 'headers'
    path.write_text(f'first: header\n{line}\n')
    with golden_messages.raises(ConfigError) as caught:
        open_model(headers=str(path))
    assert 'cret' not in str(caught.value)


@pytest.fixture(scope='module', name='certificates')
def _certificates(tmp_path_factory):
    """Return a folder with certificates of a server and a client, and their authorities."""
    if shutil.which('openssl') is None:
        pytest.skip('needs openssl')
    folder = tmp_path_factory.mktemp('certificates')

    def openssl(*arguments):
        subprocess.run(['openssl', *arguments], cwd=folder, check=True, capture_output=True)

    for name in ('ca', 'other'):
        new = ['req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-subj', f'/CN={name}']
        openssl(*new, '-keyout', f'{name}.key', '-out', f'{name}.pem')
    (folder / 'names').write_text('subjectAltName=DNS:localhost')
    for name in ('server', 'client'):
        new = ['req', '-newkey', 'rsa:2048', '-nodes', '-subj', f'/CN={name}']
        openssl(*new, '-keyout', f'{name}.key', '-out', f'{name}.request')
        sign = ['x509', '-req', '-in', f'{name}.request', '-CA', 'ca.pem', '-CAkey', 'ca.key']
        openssl(*sign, '-CAcreateserial', '-extfile', 'names', '-out', f'{name}.pem')
    openssl('rsa', '-in', 'client.key', '-aes128', '-passout', 'pass:x', '-out', 'locked.key')
    (folder / 'garbage.pem').write_text('garbage')
    return folder


@pytest.mark.parametrize('is_in_time', [True, False])
def test_slow_answer_leaves_one_request_in_flight_until_answers_are_fast(server, is_in_time):
    timeout_s = 2.0
    delay_s = timeout_s * (0.6 if is_in_time else 1.2)

    def answer_slowly(request, context):
        time.sleep(delay_s)
        return answer()

    with closing(open_pipeline(server, **{'triton.timeout_ms': timeout_s * 1e3})) as pipeline:
        for infer, allowed in ((answer(), 3), (answer_slowly, 1), (answer(), 3)):
            server.infer = infer

            def is_allowed(allowed=allowed):
                pipeline.enqueue(0, [grey_frame()], [Thresholds()])
                pipeline.collect(0)
                return pipeline.max_in_flight == allowed

            wait_until(is_allowed, f'{allowed} requests may be in flight')


@pytest.mark.parametrize(
    ('files', 'is_accepted'),
    [
        ({'ca_file': 'ca.pem', 'certificate_file': 'client.pem', 'key_file': 'client.key'}, True),
        ({'ca_file': 'ca.pem'}, False),
        (
            {'ca_file': 'other.pem', 'certificate_file': 'client.pem', 'key_file': 'client.key'},
            False,
        ),
        ({'ca_file': 'missing.pem'}, False),
        ({}, False),
        (None, False),
    ],
)
def test_tls_requires_certificates_of_the_right_authority(
    certificates, open_model, files, is_accepted
):
    read = {path.name: path.read_bytes() for path in certificates.iterdir()}
    credentials = [(read['server.key'], read['server.pem'])], read['ca.pem'], True
    options = {} if files is None else {'tls': True}
    options |= {key: str(certificates / name) for key, name in (files or {}).items()}
    with fake_triton(credentials) as server:
        if is_accepted:
            open_model(server.address, **options).run({'images': IMAGES})
        else:
            with pytest.raises(EngineError):
                open_model(server.address, **options)


@pytest.mark.parametrize(
    'files',
    [
        {'certificate_file': 'client.pem'},
        {'key_file': 'client.key'},
        {'certificate_file': 'client.pem', 'key_file': 'server.key'},
        {'certificate_file': 'client.pem', 'key_file': 'locked.key'},
        {'certificate_file': 'client.key', 'key_file': 'client.pem'},
        {'ca_file': 'garbage.pem'},
        {'ca_file': 'ca.key'},
    ],
)
def test_file_without_certificates_is_refused(certificates, open_model, files):
    options = {key: str(certificates / name) for key, name in files.items()}
    with pytest.raises(ConfigError):
        open_model(tls=True, **options)


def test_tls_to_a_server_without_tls_is_an_error_of_configure(server, open_model):
    with pytest.raises(EngineError):
        open_model(tls=True)


def test_no_channel_is_opened_to_a_server_that_the_start_did_not_name(server, open_model):
    for start, servers in (('', ()), ('localhost:1', ()), ('localhost:1', ('127.0.0.1:2',))):
        with pytest.raises(ConfigError):
            open_model(start_server=start, servers=servers)
    assert not server.calls


def test_listed_server_gets_no_headers_and_no_certificate(server, open_model, tmp_path, caplog):
    (tmp_path / 'headers').write_text(HEADERS)
    # A key that cannot be read: an untrusted server does not even need the file.
    secrets = {'headers': str(tmp_path / 'headers'), 'key_file': str(tmp_path / 'missing.key')}
    model = open_model(start_server='localhost:1', servers=(server.address,), **secrets)
    model.run({'images': IMAGES})
    assert model._connection.headers == ()
    assert 'authorization' not in server.headers['ModelInfer']
    assert [record.levelname for record in caplog.records if hasattr(record, 'show')] == [
        'WARNING'
    ]
