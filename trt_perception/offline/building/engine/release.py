# SPDX-License-Identifier: Apache-2.0
"""Finds the installed TensorRT, its release, and the GPU of this machine.

Callers look up enumeration members by name, because releases of TensorRT number them differently.
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
from trt_perception.errors import CudaError, EngineError
from trt_perception.offline.building.options.build_options import BuildOptions

#: Every NVIDIA driver on Linux creates this file, except on Jetsons. Jetsons also lack
#: TensorRT-RTX.
_DRIVER_DEVICE: Final = Path('/dev/nvidiactl')
_RUNTIME_LABELS: Final = {'tensorrt': 'TensorRT', 'tensorrt_rtx': 'TensorRT-RTX'}
#: The oldest supported releases. They have all names that this package looks up.
_MIN_RELEASES: Final = {'tensorrt': (10, 3), 'tensorrt_rtx': (1, 4)}
# Up to 10.11, TensorRT chooses good precisions for the layers of a weakly typed network. Weak
# typing is deprecated from 10.12 on, 11.0 removed it, and TensorRT-RTX never had it.
_FIRST_STRONGLY_TYPED: Final = (10, 12)


@dataclass(frozen=True)
class BuildGpu:
    """The GPU of this machine.

    Attributes:
        compute_capability: text such as ``8.6``.
        cuda: CUDA versions by the keys ``driver`` and ``runtime``.
    """

    name: str
    compute_capability: str
    cuda: dict[str, str]


@dataclass(frozen=True)
class TensorRt:
    """An imported TensorRT or TensorRT-RTX.

    Attributes:
        flavour: name of the module, ``tensorrt`` or ``tensorrt_rtx``.
        version: version of the module, such as ``10.3.0.26``.
        gpu: GPU of this machine; None if there is no GPU, driver or cuda-python.
        why_no_gpu: why ``gpu`` is None; otherwise empty.
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
        """Whether this is TensorRT-RTX."""
        return self.flavour == 'tensorrt_rtx'

    @property
    def unusable_gpu_reason(self) -> str:
        """Why a required GPU cannot be used; empty if a GPU is usable or not required.

        Only TensorRT-RTX on a machine without an NVIDIA driver requires no GPU.
        """
        return '' if self.is_rtx and not _DRIVER_DEVICE.exists() else self.why_no_gpu

    @property
    def label(self) -> str:
        """Name and version for messages."""
        return f'{_RUNTIME_LABELS[self.flavour]} {self.version}'

    def find_member(self, path: str) -> Any:
        """Return the module's object with a name such as ``BuilderFlag.FP16``; None if missing."""
        value = self.module
        for part in path.split('.'):
            value = getattr(value, part, None)
            if value is None:
                return None
        return value


def find_tensorrt(runtime: str) -> TensorRt:
    """Import TensorRT, and find the GPU.

    Args:
        runtime: ``tensorrt``, ``tensorrt_rtx``, or ``auto`` for the first installed module of
            these two.

    Raises:
        EngineError: the module cannot be imported, or is older than this package supports.
        KeyboardInterrupt: the user pressed Ctrl-C during the import, and the import has ended.
    """
    reasons = []
    for flavour in _RUNTIME_LABELS if runtime == 'auto' else (runtime,):
        try:
            with _defer_signals():
                module = importlib.import_module(flavour)
        except Exception as error:
            reasons.append(f'{flavour}: {error}')
            continue
        found = TensorRt(module, flavour, str(module.__version__), *find_gpu())
        if found.release < _MIN_RELEASES[flavour]:
            oldest = '.'.join(map(str, _MIN_RELEASES[flavour]))
            raise EngineError(
                _RUNTIME_LABELS[flavour],
                found.version,
                expected=f'{oldest} or newer',
                fix='install a newer release, for example with JetPack 6.1',
            )
        return found
    raise EngineError(
        'TensorRT',
        f'cannot be imported ({"; ".join(reasons)})',
        fix='on a Jetson: sudo apt install python3-libnvinfer; elsewhere: python3 -m pip install '
        'tensorrt; without a GPU: python3 -m pip install tensorrt-rtx-cu13',
    )


@contextlib.contextmanager
def _defer_signals() -> Iterator[None]:
    """Defer SIGINT and SIGTERM during an import, which would turn Ctrl-C into an ImportError.

    Only the main thread receives signals, so other threads defer nothing.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = signal.SIGINT, signal.SIGTERM
    old_handlers = [
        signal.signal(number, lambda number, _: received.append(number)) for number in numbers
    ]
    try:
        yield
    finally:
        for number, handler in zip(numbers, old_handlers, strict=True):
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def find_gpu() -> tuple[BuildGpu | None, str]:
    """Return the first GPU and an empty text, or None and the reason."""
    try:
        device = gpu.Device(0)
        major, minor = device.compute_capability
        return BuildGpu(device.name, f'{major}.{minor}', gpu.versions()), ''
    except CudaError as error:
        return None, str(error)


def uses_strong_typing(tensorrt: TensorRt, options: BuildOptions) -> bool:
    """Return whether the types in the ONNX model decide the precision of each layer.

    In a weakly typed network, TensorRT chooses among the types that the builder flags allow, and
    the model must be in FP32.
    """
    if tensorrt.is_rtx:
        return True
    if options.precision == 'int8' and options.calibration_tool == 'tensorrt':
        return False  # a model without Q/DQ nodes has no INT8 types
    # In weakly typed networks, the FP8 flag affects only plugins.
    return tensorrt.release >= _FIRST_STRONGLY_TYPED or options.precision == 'fp8'
