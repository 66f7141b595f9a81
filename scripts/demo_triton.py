# SPDX-License-Identifier: Apache-2.0
"""A Triton server on this machine that runs the model of the demo.

The server is the one of the tests: its Python backend runs ONNX Runtime on the CPU.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import pytest

from support.triton_server import TritonServer, replace_backend
from support.waiting import WaitTimeoutError
from trt_perception.offline.tools import export_triton


@contextlib.contextmanager
def served_model(onnx_file):
    """Export an ONNX file, start a server with it, and yield the address of the model.

    Raises:
        RuntimeError: the server cannot be installed, or does not start.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        repository = Path(folder, 'models')
        if export_triton.main([str(onnx_file), '--repository', str(repository)]):
            raise RuntimeError(f'{onnx_file} cannot be exported; see the message above')
        server = TritonServer(repository)
        stack.callback(server.end)
        try:
            replace_backend(repository / onnx_file.stem)
            server.start()
        except (pytest.skip.Exception, WaitTimeoutError) as reason:
            raise RuntimeError(f'no Triton server: {reason}') from reason
        yield f'triton://{server.address}/{onnx_file.stem}'
