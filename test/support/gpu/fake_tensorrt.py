# SPDX-License-Identifier: Apache-2.0
"""Replace the modules of TensorRT by stand-ins with an engine that computes nothing.

Any call can fail as in TensorRT: it returns None or False, and only the logger gets the reason.
"""

from __future__ import annotations

import weakref
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

INPUT = ('images', (1, 3, 48, 64), 'FLOAT')
OUTPUT = ('output', (1, 7, 4), 'FLOAT')
#: Parameters that a node needs to run the engine.
MODEL_PARAMETERS = {
    'model_resize': 'letterbox',
    'model_color_order': 'rgb',
    'model_scale': 1 / 255,
    'model_decoder': 'dense',
    'model_class_names': ('red', 'green', 'blue'),
}
REFUSED_RESULTS = {
    'deserialize_cuda_engine': None,
    'create_execution_context': None,
    'set_optimization_profile_async': False,
    'set_input_shape': False,
    'infer_shapes': ['images'],
    'set_tensor_address': False,
    'execute_async_v3': False,
}
REFUSAL_REASON = 'the stand-in does not want to'
PLAN = b'ftrt' + bytes(20) + bytes([10, 13, 3, 9]) + bytes(100)


class TensorIOMode(Enum):
    INPUT = 1
    OUTPUT = 2


class TensorFormat(Enum):
    LINEAR = 0
    CHW32 = 5


class DataType(Enum):
    FLOAT = 0
    INT32 = 3
    INT64 = 8


class Severity(Enum):
    WARNING = 2
    ERROR = 1


class Specialization(Enum):
    LAZY = 0
    EAGER = 1
    NONE = 2


class PluginRegistry:
    """The registry of plugins. Only the recorder receives its errors.

    As in TensorRT, the registry refuses a library that is already loaded.

    Attributes:
        libraries: contents of the loaded libraries, in order.
    """

    def __init__(self, calls):
        self._calls = calls
        self.error_recorder = None
        self.libraries = []

    def load_library(self, path):
        self._calls.append('load_library')
        content = Path(path).read_bytes()
        reason = ''
        if not content.startswith(b'library'):
            reason = f'Unable to load library: {path}: invalid ELF header'
        elif content in self.libraries:
            reason = 'Cannot register the library as plugin creator of Fancy exists already'
        if reason:
            if self.error_recorder is not None:
                self.error_recorder.report_error(6, reason)
            return None
        self.libraries.append(content)
        return object()


class FakeTensorRt:
    """Replaces the module tensorrt.

    Args:
        refuses: name of the failing call, empty for none.
        inputs: (name, shape, dtype name) of each input; -1 for open sides.
        outputs: the same for each output.
        profiles: smallest, usual and largest shape of the first input in each profile; empty for
            an engine with fixed shapes.

    Attributes:
        refusal: the reason that the logger gets for the failing call.
        calls: names of the calls in order.
        arguments: arguments of the last call by name.
        contexts: (profile, shape of the first input, device memory) of each context, in order.
        formats: format of every tensor by profile; LINEAR by default.
        living: engines and contexts that still have references.
        registry: the registry of plugins.
        reports_profile: whether outputs with an open batch report the first profile's batch,
            as in TensorRT-RTX 1.4.
    """

    __version__ = '10.13.3.9'
    refusal = REFUSAL_REASON
    reports_profile = False
    TensorIOMode = TensorIOMode
    TensorFormat = TensorFormat
    ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED=2)

    class ILogger:
        def __init__(self):
            pass

    class IErrorRecorder:
        def __init__(self):
            pass

    def __init__(self, refuses='', inputs=(INPUT,), outputs=(OUTPUT,), profiles=()):
        self.refuses = refuses
        self.inputs, self.outputs, self.profiles = inputs, outputs, profiles
        self.calls = []
        self.arguments = {}
        self.formats = {}
        self.contexts = []
        self.living = weakref.WeakSet()
        self.registry = PluginRegistry(self.calls)

    def init_libnvinfer_plugins(self, logger, namespace):
        self.calls.append('init_libnvinfer_plugins')
        return True

    def get_plugin_registry(self):
        return self.registry

    def Runtime(self, logger):  # noqa: N802
        self.logger = logger
        return SimpleNamespace(
            deserialize_cuda_engine=lambda content: self.answer(
                'deserialize_cuda_engine', lambda: _Engine(self)
            )
        )

    def answer(self, name, make=lambda: True, arguments=()):
        """Return a call's result. Log the reason first if the call fails."""
        self.calls.append(name)
        self.arguments[name] = arguments
        if name == self.refuses:
            self.logger.log(Severity.ERROR, self.refusal)
            return REFUSED_RESULTS[name]
        return make()


class FakeTensorRtLean(FakeTensorRt):
    """Replaces the module tensorrt_lean, which has no plugins of its own and no TensorFormat."""

    __version__ = '11.4.0.106'
    init_libnvinfer_plugins = TensorFormat = property()  # reading them raises AttributeError


class FakeTensorRtRtx(FakeTensorRt):
    """Replaces the module tensorrt_rtx, which compiles kernels for the first context.

    Attributes:
        compiled: number of compilations.
        accepts: whether a runtime cache was made for this machine.
        config: attributes of the last runtime configuration.
    """

    __version__ = '1.4.0.76'
    IRuntimeCache = object
    DynamicShapesKernelSpecializationStrategy = Specialization
    CudaGraphStrategy = SimpleNamespace(DISABLED=0)

    def __init__(self, accepts=True, **tensors):
        super().__init__(**tensors)
        self.compiled = 0
        self.accepts = accepts


class _RuntimeConfig:
    """A stand-in for IRuntimeConfig, the argument of create_execution_context."""

    def __init__(self, module):
        module.config = SimpleNamespace(_module=module)
        self.__dict__ = vars(module.config)  # holds no reference to the configuration

    def set_execution_context_allocation_strategy(self, strategy):
        self.allocation = strategy

    def create_runtime_cache(self):
        return _RuntimeCache(self._module)

    def set_runtime_cache(self, cache):
        self.cache = cache


class _RuntimeCache:
    content = b''

    def __init__(self, module):
        self._module = module

    def deserialize(self, content):
        if self._module.accepts:
            self.content = content
        return self._module.accepts

    def serialize(self):
        return memoryview(self.content)


class _Engine:
    device_memory_size_v2 = 4096

    def __init__(self, module):
        self._module = module
        self.num_optimization_profiles = max(1, len(module.profiles))
        self._tensors = {name: (shape, kind) for name, shape, kind in self._all_tensors()}
        self.num_io_tensors = len(self._tensors)
        module.living.add(self)

    def _all_tensors(self):
        return (*self._module.inputs, *self._module.outputs)

    def get_tensor_name(self, index):
        return self._all_tensors()[index][0]

    def get_tensor_mode(self, name):
        inputs = [tensor[0] for tensor in self._module.inputs]
        return TensorIOMode.INPUT if name in inputs else TensorIOMode.OUTPUT

    def get_tensor_format(self, name, profile=None):
        if not hasattr(self._module, 'TensorFormat'):
            raise TypeError('Unable to convert function return value to a Python type!')
        if profile is None and self.num_optimization_profiles > 1:
            self._module.logger.log(Severity.WARNING, 'only returns results for profile 0')
        return self._module.formats.get(profile, TensorFormat.LINEAR)

    def get_tensor_format_desc(self, name, profile=None):
        if self._module.formats.get(profile, TensorFormat.LINEAR) == TensorFormat.LINEAR:
            return 'Row major linear FP32 format (kLINEAR)'
        return 'Thirty-two wide channel vectorized row major FP32 format (kCHW32)'

    def get_tensor_dtype(self, name):
        return DataType[self._tensors[name][1]]

    def get_tensor_shape(self, name):
        shape = self._tensors[name][0]
        if self._module.reports_profile and self.get_tensor_mode(name) == TensorIOMode.OUTPUT:
            return (self._module.profiles[0][0][0], *shape[1:])
        return shape

    def get_tensor_profile_shape(self, name, profile):
        profiles = self._module.profiles
        return profiles[profile] if profiles else (self._tensors[name][0],) * 3

    def create_runtime_config(self):
        return _RuntimeConfig(self._module)

    def create_execution_context(self, how):
        if isinstance(how, _RuntimeConfig) and how.cache.content != b'compiled':
            how.cache.content = b'compiled'
            self._module.compiled += 1
        return self._module.answer('create_execution_context', lambda: _Context(self, how))


class _Context:
    def __init__(self, engine, how):
        self._engine = engine
        self._module = engine._module
        self._shapes = {}
        self._profile = self._memory = None
        # TensorRT-RTX 1.4 keeps no reference to the configuration, and crashes if it was freed.
        self._config = weakref.ref(how) if isinstance(how, _RuntimeConfig) else lambda: True
        self._module.living.add(self)

    def __getattr__(self, name):
        if name not in REFUSED_RESULTS:
            raise AttributeError(name)
        assert self._config(), 'the runtime configuration was freed before its context'
        return lambda *arguments: self._module.answer(name, arguments=arguments)

    def set_optimization_profile_async(self, profile, stream):
        self._profile = profile
        name = 'set_optimization_profile_async'
        return self._module.answer(name, arguments=(profile, stream))

    def set_input_shape(self, name, shape):
        assert self._config(), 'the runtime configuration was freed before its context'
        self._shapes[name] = shape
        return self._module.answer('set_input_shape', arguments=(name, shape))

    def infer_shapes(self):
        first = self._module.inputs[0][0]
        self._module.contexts.append((self._profile, self._shapes.get(first), self._memory))
        return self._module.answer('infer_shapes', list)

    def set_device_memory(self, address, size):
        assert size == self._engine.device_memory_size_v2
        self._memory = address

    def get_tensor_shape(self, name):
        shape = self._engine._tensors[name][0]
        if -1 not in shape:
            return shape
        # An open batch has the size of the image batch. Other open sides have their usual sizes.
        batch = self._shapes[self._module.inputs[0][0]][0]
        usual = (batch, *OUTPUT[1][1:])
        return tuple(there if side < 0 else side for side, there in zip(shape, usual, strict=True))
