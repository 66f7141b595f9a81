# SPDX-License-Identifier: Apache-2.0
"""TensorRT's own INT8 calibration, which only the DLA on JetPack 6 still needs.

The model has no Q/DQ nodes. TensorRT runs the model on batches and chooses the ranges. TensorRT
11.0 removed this calibration.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.files.regular_files import read_regular
from trt_perception.gpu import DeviceBuffer, PinnedBuffer, Stream, copy_async
from trt_perception.offline.building.calibration.cache import cache_path, write_cache_file
from trt_perception.offline.building.engine.release import TensorRt

#: TensorRT's calibrator class for each calibration method.
CALIBRATOR_CLASSES: Final = {
    'entropy': 'IInt8EntropyCalibrator2',
    'minmax': 'IInt8MinMaxCalibrator',
}
_MIN_SCALE: Final = 2.0**-126  # the reciprocal of a smaller scale is infinite
_MAX_CACHE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class CalibrationData:
    """Input data for TensorRT's calibrators.

    Attributes:
        batch_shape: shape of each batch, (N, 3, H, W).
        open_batches: returns a new iterator over all batches. Batches are float32, and their
            preprocessing is the same as at run time.
        identity: text that changes with model, images and preprocessing; part of the cache key.
        cache_dir: folder for TensorRT's ranges; None to keep no ranges.
        constants: maps an auxiliary input's name to its value, the same for all batches.
        warnings: sentences about the images; complete after the last batch.
    """

    input_name: str
    batch_shape: tuple[int, ...]
    open_batches: Callable[[], Iterator[npt.NDArray[np.float32]]]
    identity: str
    cache_dir: Path | None = None
    constants: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    warnings: Sequence[str] = ()


def attach_calibrator(
    tensorrt: TensorRt,
    builder: Any,
    config: Any,
    data: CalibrationData,
    method: str,
    *,
    on_failure: Callable[[], object] = lambda: None,
) -> Any:
    """Add a calibrator to TensorRT's builder configuration.

    Args:
        tensorrt: TensorRT to build with, up to 10.x.
        config: TensorRT's builder configuration, with the flags FP16 and INT8 set.
        method: ``entropy`` or ``minmax``. A DLA supports ``entropy`` only.
        on_failure: called when a callback of the calibrator fails, to end the build early.

    Returns:
        The calibrator. After the build, the caller must call ``close`` to free its GPU memory.
        If ``error`` is not None, the caller must raise ``error``. ``cache_status`` is a text that
        says whether ranges were reused. ``tensors_without_scale`` names the tensors for which
        TensorRT found no scale.
    """
    identity_parts = data.identity, data.batch_shape, method, tensorrt.version
    path = cache_path(data.cache_dir, 'tensorrt', *identity_parts)
    base: Any = tensorrt.find_member(CALIBRATOR_CLASSES[method])

    class Calibrator(_CalibratorCallbacks, base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)
            _CalibratorCallbacks.__init__(self, data, path, on_failure)

    calibrator = Calibrator()
    config.int8_calibrator = calibrator
    profile = builder.create_optimization_profile()
    shapes = {
        data.input_name: data.batch_shape,
        **{key: v.shape for key, v in data.constants.items()},
    }
    for name, shape in shapes.items():
        profile.set_shape(name, shape, shape, shape)
    config.set_calibration_profile(profile)
    return calibrator


def _keep_errors(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Return a callback that records exceptions in the calibrator and then returns None.

    An exception must not cross TensorRT's C++ code.
    """

    @functools.wraps(callback)
    def guarded_callback(calibrator: Any, *arguments: Any) -> Any:
        if calibrator.error is not None:
            return None
        try:
            return callback(calibrator, *arguments)
        except BaseException as error:
            calibrator.record_error(error)
            return None

    return guarded_callback


class _CalibratorCallbacks:
    """The methods that TensorRT calls during calibration, shared by all calibrator classes."""

    def __init__(
        self, data: CalibrationData, path: Path | None, on_failure: Callable[[], object]
    ) -> None:
        self.error: BaseException | None = None
        self.cache_status = 'off' if path is None else f'not reused: {path} does not exist yet'
        self.tensors_without_scale: tuple[str, ...] = ()
        self._data = data
        self._cache_path = path
        self._on_failure = on_failure
        self._batches = data.open_batches()
        self._device_buffers: dict[str, DeviceBuffer] = {}

    def get_batch_size(self) -> int:
        return self._data.batch_shape[0]

    def record_error(self, error: BaseException) -> None:
        self.error = error
        self._on_failure()

    @_keep_errors
    def get_batch(self, names: list[str]) -> list[int] | None:
        data = self._data
        batch = next(self._batches, None)
        if batch is None:
            return None
        if batch.shape != data.batch_shape:
            raise ConfigError(
                'the calibration', str(batch.shape), expected=f'batches of {data.batch_shape}'
            )
        tensors = {**data.constants, data.input_name: batch}
        return [self._upload(name, tensors[name]) for name in names]

    @_keep_errors
    def read_calibration_cache(self) -> bytes | None:
        content = _read_cache(self._cache_path)
        if not content or tensors_without_scale(content):
            return None
        self.cache_status = f'reused: {self._cache_path}'
        return content

    @_keep_errors
    def write_calibration_cache(self, cache: Any) -> None:
        self.tensors_without_scale = tensors_without_scale(bytes(cache))
        if self._cache_path is None:
            return
        if self.tensors_without_scale:
            self.cache_status += '; not saved: some tensors have no range'
        else:
            self.cache_status += write_cache_file(self._cache_path, bytes(cache))

    def close(self) -> None:
        for buffer in self._device_buffers.values():
            buffer.close()
        self._device_buffers = {}

    def _upload(self, name: str, values: npt.NDArray[Any]) -> int:
        if name not in self._device_buffers:
            self._device_buffers[name] = DeviceBuffer(values.nbytes)
        pointer = self._device_buffers[name].pointer
        with PinnedBuffer(values.nbytes) as pinned, Stream() as stream:
            pinned.array[: values.nbytes] = np.ascontiguousarray(values).view(np.uint8).ravel()
            copy_async(pointer, pinned.pointer, values.nbytes, stream)
            stream.synchronize()
        return pointer


def tensors_without_scale(cache_content: bytes) -> tuple[str, ...]:
    """Return the names of the tensors without a usable scale in TensorRT's calibration cache.

    Args:
        cache_content: the cache that TensorRT wrote: a header line, then lines ``tensor: scale``.
            A scale has up to eight hexadecimal digits, the bits of a float32. Other lines are
            ignored.
    """
    found = []
    for line in cache_content.decode('utf-8', 'replace').splitlines()[1:]:
        name, _, digits = line.rpartition(': ')
        if not re.fullmatch(r'[0-9a-f]{1,8}', digits):
            continue
        (scale,) = struct.unpack('>f', bytes.fromhex(digits.rjust(8, '0')))
        if not _MIN_SCALE <= scale < math.inf:
            found.append(name)
    return tuple(found)


def _read_cache(path: Path | None) -> bytes:
    """Return the content of a cache file; empty if the file is missing or unreadable."""
    with contextlib.suppress(OSError):
        return b'' if path is None else read_regular(path, _MAX_CACHE_BYTES)
    return b''
