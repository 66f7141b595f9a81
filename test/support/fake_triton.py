# SPDX-License-Identifier: Apache-2.0
"""A gRPC server in this process that answers like a Triton server, or as a test wants."""

# ruff: noqa: N802 - gRPC looks for methods with the names of the service

import collections
import concurrent.futures
import contextlib
import inspect

import grpc
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

METHODS = (
    *('ModelReady', 'ModelConfig', 'ModelInfer', 'SystemSharedMemoryStatus'),
    *('SystemSharedMemoryRegister', 'SystemSharedMemoryUnregister'),
)
#: Inputs and outputs of the tiny model.
IMAGES, OUTPUT = ('images', [1, 3, 48, 64]), ('output0', [1, 6, 6])


def tensor(name, dims, kind='TYPE_FP32'):
    """Return a tensor for `config`."""
    return {'name': name, 'dims': dims, 'data_type': kind}


def config(inputs=None, outputs=None, manifest='', **fields):
    """Return the configuration of a model, of the tiny model by default."""
    inputs = [tensor(*IMAGES)] if inputs is None else inputs
    outputs = [tensor(*OUTPUT)] if outputs is None else outputs
    made = model_config_pb2.ModelConfig(name='tiny', input=inputs, output=outputs, **fields)
    if manifest:
        made.parameters['trt_perception.manifest'].string_value = manifest
    return made


def answer(array=None, *, name=OUTPUT[0], datatype='FP32', shape=OUTPUT[1], content=None):
    """Return an answer to a request, by default with an output of zeros."""
    if content is None:
        content = (np.zeros(OUTPUT[1], np.float32) if array is None else array).tobytes()
    output = {'name': name, 'datatype': datatype, 'shape': shape}
    return service_pb2.ModelInferResponse(outputs=[output], raw_output_contents=[content])


def be_patient(set_attribute=setattr):
    """Raise the client's limits above the delays of a busy machine, except triton.timeout_ms."""
    from trt_perception.stages.triton import connection, server_watch

    for name in ('_CONTROL_TIMEOUT_S', '_UNREGISTER_TIMEOUT_S', '_MIN_UNREGISTER_TIMEOUT_S'):
        set_attribute(connection, name, 60.0)
    patient = {'grpc.min_reconnect_backoff_ms': 60_000, 'grpc.keepalive_timeout_ms': 60_000}
    options = {**dict(connection._CHANNEL_OPTIONS), **patient}
    set_attribute(connection, '_CHANNEL_OPTIONS', tuple(options.items()))
    set_attribute(server_watch, '_LAST_ANSWERS_S', 20.0)
    set_attribute(server_watch, '_EXIT_LIMIT_S', 60.0)


#: Lines for the start of a program whose limits must be as after `be_patient`.
PATIENCE = f'{inspect.getsource(be_patient)}\nbe_patient()\n'


class FakeTriton:
    """Answers requests. Each public attribute can be changed at any time.

    Args:
        credentials: certificate and key for TLS, as in grpc.ssl_server_credentials.

    Attributes:
        address: host and port.
        config: the configuration of the only model, or the bytes of an answer.
        infer: the answer to a request, or its bytes; or a status code of gRPC; or a function of
            the request and the context, which returns the answer.
        ready: whether the model is ready; or a status code or function, as in `infer`.
        registers: whether the server registers shared memory, as `ready`.
        unregisters: whether the server unregisters shared memory, as `ready`.
        reports_regions: whether the server reports its regions, as `ready`; or the bytes of an
            answer.
        regions: names of the registered regions of shared memory.
        headers: the headers of the last request of each method.
        calls: the number of calls of each method.
    """

    def __init__(self, credentials=None):
        self.config, self.infer, self.ready = config(), answer(), True
        self.registers = self.unregisters = self.reports_regions = True
        self.regions = set()
        self.headers, self.calls = {}, collections.Counter()
        # A hanging call needs a thread.
        self._pool = concurrent.futures.ThreadPoolExecutor(8)
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers((self._handlers(),))
        if credentials is None:
            self._port = self._server.add_insecure_port('127.0.0.1:0')
        else:
            made = grpc.ssl_server_credentials(*credentials)
            self._port = self._server.add_secure_port('127.0.0.1:0', made)
        #: With a name, because a certificate has one.
        self.address = f'localhost:{self._port}'
        self._server.start()

    def _handlers(self):
        """Return what calls the methods. An answer may be the bytes of a message."""
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                getattr(self, method),
                getattr(service_pb2, f'{method}Request').FromString,
                lambda made: made if isinstance(made, bytes) else made.SerializeToString(),
            )
            for method in METHODS
        }
        return grpc.method_handlers_generic_handler('inference.GRPCInferenceService', handlers)

    def close(self):
        self._server.stop(None).wait()
        self._pool.shutdown()

    def _answer(self, made, request, context):
        method = inspect.stack()[1].function
        self.headers[method] = dict(context.invocation_metadata())
        self.calls[method] += 1
        if isinstance(made, grpc.StatusCode):
            context.abort(made, 'refused by the test')
        return made(request, context) if callable(made) else made

    def ModelReady(self, request, context):
        ready = self._answer(self.ready, request, context)
        return service_pb2.ModelReadyResponse(ready=ready)

    def ModelConfig(self, request, context):
        made = self._answer(self.config, request, context)
        return made if isinstance(made, bytes) else service_pb2.ModelConfigResponse(config=made)

    def ModelInfer(self, request, context):
        return self._answer(self.infer, request, context)

    def SystemSharedMemoryRegister(self, request, context):
        self._answer(self.registers, request, context)
        self.regions.add(request.name)
        return service_pb2.SystemSharedMemoryRegisterResponse()

    def SystemSharedMemoryUnregister(self, request, context):
        self._answer(self.unregisters, request, context)
        self.regions.discard(request.name)
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    def SystemSharedMemoryStatus(self, request, context):
        answer = service_pb2.SystemSharedMemoryStatusResponse()
        for name in self.regions:
            answer.regions[name].name = name
        made = self._answer(self.reports_regions, request, context)
        return made if isinstance(made, bytes) else answer


@contextlib.contextmanager
def fake_triton(credentials=None):
    """Run a FakeTriton in the block. The client in this process is patient in the block.

    A test of a limit of the client sets the limit itself.
    """
    server = FakeTriton(credentials)
    with pytest.MonkeyPatch.context() as patch:
        be_patient(patch.setattr)
        try:
            yield server
        finally:
            server.close()
