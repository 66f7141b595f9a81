"""A stand-in for the module tensorrt: one engine of fixed shapes that does no work.

Any call can refuse, as TensorRT does: by None or False, with the reason in the logger only.
"""

from __future__ import annotations

import weakref
from enum import Enum
from types import SimpleNamespace

INPUT = ('images', (1, 3, 48, 64), 'FLOAT')
OUTPUT = ('output', (1, 7, 4), 'FLOAT')
REFUSALS = {
    'deserialize_cuda_engine': None,
    'create_execution_context': None,
    'set_optimization_profile_async': False,
    'set_input_shape': False,
    'infer_shapes': ['images'],
    'set_tensor_address': False,
    'execute_async_v3': False,
}
REASON = 'the stand-in does not want to'
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
    ERROR = 1


class FakeTensorRt:
    """The module.

    Args:
        refuses: name of the call that refuses, empty for none.
        inputs: (name, shape, dtype's name) of each.
        outputs: likewise.

    Attributes:
        calls: names in order.
        living: engines and contexts that somebody still holds.
    """

    __version__ = '10.13.3.9'
    TensorIOMode = TensorIOMode
    TensorFormat = TensorFormat
    ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED=2)

    class ILogger:
        def __init__(self):
            pass

    def __init__(self, refuses='', inputs=(INPUT,), outputs=(OUTPUT,)):
        self.refuses = refuses
        self.inputs, self.outputs = inputs, outputs
        self.calls = []
        self.living = weakref.WeakSet()

    def Runtime(self, logger):  # noqa: N802
        self.logger = logger
        return SimpleNamespace(
            deserialize_cuda_engine=lambda content: self.answer(
                'deserialize_cuda_engine', lambda: _Engine(self)
            )
        )

    def answer(self, name, make=lambda: True):
        """Return what a call returns, after saying why where it refuses."""
        self.calls.append(name)
        if name == self.refuses:
            self.logger.log(Severity.ERROR, REASON)
            return REFUSALS[name]
        return make()


class _Engine:
    device_memory_size_v2 = 4096
    num_optimization_profiles = 1

    def __init__(self, module):
        self._module = module
        self._tensors = {name: (shape, kind) for name, shape, kind in self._all()}
        self.num_io_tensors = len(self._tensors)
        module.living.add(self)

    def _all(self):
        return (*self._module.inputs, *self._module.outputs)

    def get_tensor_name(self, index):
        return self._all()[index][0]

    def get_tensor_mode(self, name):
        inputs = [tensor[0] for tensor in self._module.inputs]
        return TensorIOMode.INPUT if name in inputs else TensorIOMode.OUTPUT

    def get_tensor_format(self, name):
        return TensorFormat.LINEAR

    def get_tensor_dtype(self, name):
        return DataType[self._tensors[name][1]]

    def get_tensor_shape(self, name):
        return self._tensors[name][0]

    def get_tensor_profile_shape(self, name, profile):
        return (self._tensors[name][0],) * 3

    def create_execution_context(self, strategy):
        return self._module.answer('create_execution_context', lambda: _Context(self))


class _Context:
    def __init__(self, engine):
        self._engine = engine
        self._module = engine._module
        self._module.living.add(self)

    def __getattr__(self, name):
        if name not in REFUSALS:
            raise AttributeError(name)
        return lambda *arguments: self._module.answer(name)

    def infer_shapes(self):
        return self._module.answer('infer_shapes', list)

    def set_device_memory(self, address, size):
        assert size == self._engine.device_memory_size_v2

    def get_tensor_shape(self, name):
        return self._engine.get_tensor_shape(name)
