"""Which TensorRT builds: the module that is there, its release, and what that release has.

Names are looked up, never numbers: TensorRT renumbers its enumerations between releases.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trt_perception import gpu
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.errors import CudaError, EngineError

__all__ = ['BuildGpu', 'TensorRt', 'find_gpu', 'find_tensorrt', 'uses_strong_typing']

#: There with every NVIDIA driver on Linux, but on a Jetson, which has no TensorRT-RTX either.
_DRIVER: Final = Path('/dev/nvidiactl')
_MODULES: Final = {'tensorrt': 'TensorRT', 'tensorrt_rtx': 'TensorRT-RTX'}
#: The oldest releases that the names used here were checked against.
_OLDEST: Final = {'tensorrt': (10, 3), 'tensorrt_rtx': (1, 4)}
# Up to 10.11 TensorRT may choose a layer's precision itself, and does it well; from 10.12 on that
# is deprecated, and 11.0 removed it. TensorRT-RTX never had it.
_FIRST_STRONG: Final = (10, 12)


@dataclass(frozen=True)
class BuildGpu:
    """The GPU of this machine.

    Attributes:
        name: as the driver gives it.
        compute_capability: as in ``8.6``.
        cuda: versions of ``driver`` and ``runtime``.
    """

    name: str
    compute_capability: str
    cuda: dict[str, str]


@dataclass(frozen=True)
class TensorRt:
    """A TensorRT that can be imported.

    Attributes:
        module: the Python module.
        flavour: its name, ``tensorrt`` or ``tensorrt_rtx``.
        version: as it gives it, like ``10.3.0.26``.
        gpu: None where there is none, or no driver or cuda-python to ask.
        why_no_gpu: why it is None.
    """

    module: Any
    flavour: str
    version: str
    gpu: BuildGpu | None
    why_no_gpu: str = ''

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version."""
        major, minor = self.version.split('.')[:2]
        return int(major), int(minor)

    @property
    def is_rtx(self) -> bool:
        """Whether it is TensorRT-RTX."""
        return self.flavour == 'tensorrt_rtx'

    @property
    def unusable_gpu_reason(self) -> str:
        """Why a GPU that must be there cannot be used; empty where there need be none."""
        return '' if self.is_rtx and not _DRIVER.exists() else self.why_no_gpu

    @property
    def label(self) -> str:
        """Name and version for messages."""
        return f'{_MODULES[self.flavour]} {self.version}'

    def find(self, path: str) -> Any:
        """Return what a dotted name like ``BuilderFlag.FP16`` stands for, None for nothing."""
        value = self.module
        for part in path.split('.'):
            value = getattr(value, part, None)
            if value is None:
                return None
        return value


def find_tensorrt(runtime: str) -> TensorRt:
    """Import the TensorRT that shall build.

    Args:
        runtime: ``tensorrt``, ``tensorrt_rtx``, or ``auto`` for the first of them that is there.

    Raises:
        EngineError: there is none, or it is older than this package supports.
        KeyboardInterrupt: Ctrl-C, after the import.
    """
    reasons = []
    for flavour in _MODULES if runtime == 'auto' else (runtime,):
        try:
            with _signals_later():
                module = importlib.import_module(flavour)
        except Exception as error:
            reasons.append(f'{flavour}: {error}')
            continue
        found = TensorRt(module, flavour, str(module.__version__), *find_gpu())
        if found.release < _OLDEST[flavour]:
            oldest = '.'.join(map(str, _OLDEST[flavour]))
            raise EngineError(
                _MODULES[flavour],
                found.version,
                expected=f'{oldest} or newer',
                fix='JetPack 6.1 and newer bring one',
            )
        return found
    raise EngineError(
        'TensorRT, which builds engines,',
        f'cannot be imported ({"; ".join(reasons)})',
        fix='on a Jetson: sudo apt install python3-libnvinfer; elsewhere: python3 -m pip install '
        'tensorrt, or, to build without a GPU, tensorrt-rtx-cu13',
    )


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Keep signals until an import has ended, which would make an ImportError of Ctrl-C."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(number, lambda number, _: came.append(number)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def find_gpu() -> tuple[BuildGpu | None, str]:
    """Return the first GPU; None, and why, where there is none or nothing to ask with."""
    try:
        device = gpu.Device(0)
        major, minor = device.compute_capability
        return BuildGpu(device.name, f'{major}.{minor}', gpu.versions()), ''
    except CudaError as error:
        return None, str(error)


def uses_strong_typing(tensorrt: TensorRt, options: BuildOptions) -> bool:
    """Tell whether the ONNX model's own types decide the precision of each layer.

    Otherwise TensorRT chooses among those that are allowed, and the model stays in FP32.
    """
    if tensorrt.is_rtx:
        return True
    if options.precision == 'int8' and options.calibration_tool == 'tensorrt':
        return False  # without Q/DQ nodes there are no INT8 types in the model
    # Weakly typed FP8 was never more than a flag for plugins.
    return tensorrt.release >= _FIRST_STRONG or options.precision == 'fp8'
