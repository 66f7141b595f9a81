# SPDX-License-Identifier: Apache-2.0
"""Stands in for ONNX Runtime's GPU build, whose sessions run on the CPU here."""

import sys

import onnxruntime

CPU, CUDA, TENSORRT = (f'{name}ExecutionProvider' for name in ('CPU', 'CUDA', 'Tensorrt'))


class GpuOnnxRuntime:
    """The module onnxruntime with GPU providers.

    Like the real build, a session leaves CUDA out without an error if CUDA cannot be loaded, and
    raises RuntimeError if TensorRT cannot be loaded.

    Args:
        works: providers that can be loaded.
        fails: providers that can be loaded, but fail in each run.
        nodes: maps a provider's name to its number of nodes; None for releases before 1.24.
        on_load: called before each session is built.

    Attributes:
        requested: providers and options of each session.
        shapes: shape of the first input of each run.
    """

    def __init__(self, works=(), *, fails=(), nodes=None, on_load=None):
        self._works, self._fails, self._nodes, self._on_load = {*works, CPU}, fails, nodes, on_load
        self._prints = True
        self.requested = []
        self.shapes = []

    def __getattr__(self, name):
        return getattr(onnxruntime, name)

    def get_available_providers(self):
        return [TENSORRT, CUDA, CPU]

    def set_default_logger_severity(self, level):
        self._prints = level < 4

    def preload_dlls(self):
        print('Failed to load libcublas.so.13')  # as the real function does

    def InferenceSession(self, content, options, *, providers, enable_fallback):  # noqa: N802
        assert not enable_fallback
        if self._prints:
            print('Failed to load library')
        if self._on_load:
            self._on_load()
        self.requested.append(dict(providers))
        if TENSORRT in dict(providers) and TENSORRT not in self._works:
            raise RuntimeError('Please install TensorRT libraries')
        if self._nodes is not None:
            entry = 'session.record_ep_graph_assignment_info'
            assert options.get_session_config_entry(entry) == '1'
        real = onnxruntime.InferenceSession(content, options, providers=[CPU])
        loaded = [name for name, _ in providers if name in self._works]
        return _Session(self, real, loaded)


class _Session:
    def __init__(self, runtime, real, loaded):
        self._runtime, self._real, self._loaded = runtime, real, loaded
        if runtime._nodes is not None:
            self.get_provider_graph_assignment_info = lambda: [
                _Part(name, count) for name, count in runtime._nodes.items()
            ]

    def __getattr__(self, name):
        if name == 'get_provider_graph_assignment_info':
            raise AttributeError(name)
        return getattr(self._real, name)

    def get_providers(self):
        return self._loaded

    def run(self, names, tensors):
        if self._loaded[0] in self._runtime._fails:
            raise RuntimeError('CUDA error')
        self._runtime.shapes.append(next(iter(tensors.values())).shape)
        return self._real.run(names, tensors)


class _Part:
    def __init__(self, name, count):
        self.ep_name, self._count = name, count

    def get_nodes(self):
        return [object()] * self._count


def install_gpu_build(monkeypatch, *works, **options):
    """Return a GpuOnnxRuntime that replaces the module onnxruntime during a test."""
    runtime = GpuOnnxRuntime(works, **options)
    monkeypatch.setitem(sys.modules, 'onnxruntime', runtime)
    return runtime
