"""TensorRT's own INT8 calibration, which 11.0 removed: only a DLA of JetPack 6 still needs it.

The model stays without Q/DQ nodes; TensorRT runs it on batches and chooses ranges by itself.
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

from trt_perception.building.calibration.cache import cache_file, keep
from trt_perception.building.engine.release import TensorRt
from trt_perception.errors import ConfigError
from trt_perception.files.regular_files import read_regular
from trt_perception.gpu import DeviceBuffer, PinnedBuffer, Stream, copy_async

__all__ = ['CALIBRATOR_CLASSES', 'CalibrationData', 'attach_calibrator', 'tensors_without_scale']

#: TensorRT's class by method.
CALIBRATOR_CLASSES: Final = {
    'entropy': 'IInt8EntropyCalibrator2',
    'minmax': 'IInt8MinMaxCalibrator',
}
_LEAST_SCALE: Final = 2.0**-126  # the reciprocal of a smaller one is infinite
_CACHE_LIMIT: Final = 64 * 1024 * 1024


@dataclass(frozen=True)
class CalibrationData:
    """What TensorRT calibrates with.

    Attributes:
        input_name: of the image input.
        batch_shape: of each batch, (N, 3, H, W).
        open_batches: makes the batches anew: float32, preprocessed as at run time.
        identity: text that changes with model, images and preprocessing.
        cache_dir: where TensorRT's ranges are kept, None for nowhere.
        constants: values of the auxiliary inputs for each batch, by name.
        warnings: about the images, complete after the last batch.
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
    failed: Callable[[], object] = lambda: None,
) -> Any:
    """Let TensorRT calibrate during the build.

    Args:
        tensorrt: that builds, at most 10.x.
        builder: TensorRT's.
        config: TensorRT's; FP16 and INT8 are set.
        data: what to calibrate with.
        method: ``entropy`` or ``minmax``; a DLA takes entropy only.
        failed: called once something went wrong within it, so that the build ends early.

    Returns:
        the calibrator: ``error`` is what went wrong within it or None, and whoever builds must
        raise it; ``cache_status`` says in a sentence whether ranges were reused,
        ``tensors_without_scale`` names tensors for which TensorRT found none, ``close`` frees its
        memory.
    """
    parts = data.identity, data.batch_shape, method, tensorrt.version
    path = cache_file(data.cache_dir, 'tensorrt', *parts)
    base: Any = tensorrt.find(CALIBRATOR_CLASSES[method])

    class Calibrator(_Callbacks, base):  # type: ignore[misc]
        def __init__(self) -> None:
            base.__init__(self)
            _Callbacks.__init__(self, data, path, failed)

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


def _kept(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what a callback raises, because it must not cross TensorRT's C++; answer None then."""

    @functools.wraps(callback)
    def safe(calibrator: Any, *arguments: Any) -> Any:
        if calibrator.error is not None:
            return None
        try:
            return callback(calibrator, *arguments)
        except BaseException as error:
            calibrator.fail(error)
            return None

    return safe


class _Callbacks:
    """What TensorRT calls during a calibration, for each of its classes."""

    def __init__(
        self, data: CalibrationData, path: Path | None, failed: Callable[[], object]
    ) -> None:
        self.error: BaseException | None = None
        self.cache_status = 'off' if path is None else f'computed: no cache {path}'
        self.tensors_without_scale: tuple[str, ...] = ()
        self._data = data
        self._path = path
        self._failed = failed
        self._batches = data.open_batches()
        self._device: dict[str, DeviceBuffer] = {}

    def get_batch_size(self) -> int:
        return self._data.batch_shape[0]

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._failed()

    @_kept
    def get_batch(self, names: list[str]) -> list[int] | None:
        data = self._data
        batch = next(self._batches, None)
        if batch is None:
            return None
        if batch.shape != data.batch_shape:
            raise ConfigError(
                'the calibration', str(batch.shape), expected=f'batches of {data.batch_shape}'
            )
        given = {**data.constants, data.input_name: batch}
        return [self._upload(name, given[name]) for name in names]

    @_kept
    def read_calibration_cache(self) -> bytes | None:
        content = _read(self._path)
        if not content or tensors_without_scale(content):
            return None
        self.cache_status = f'reused: {self._path}'
        return content

    @_kept
    def write_calibration_cache(self, cache: Any) -> None:
        self.tensors_without_scale = tensors_without_scale(bytes(cache))
        if self._path is None:
            return
        if self.tensors_without_scale:
            self.cache_status += '; not kept: tensors without a range'
        else:
            self.cache_status += keep(self._path, bytes(cache))

    def close(self) -> None:
        for buffer in self._device.values():
            buffer.close()
        self._device = {}

    def _upload(self, name: str, values: npt.NDArray[Any]) -> int:
        if name not in self._device:
            self._device[name] = DeviceBuffer(values.nbytes)
        pointer = self._device[name].pointer
        with PinnedBuffer(values.nbytes) as pinned, Stream() as stream:
            pinned.array[: values.nbytes] = np.ascontiguousarray(values).view(np.uint8).ravel()
            copy_async(pointer, pinned.pointer, values.nbytes, stream)
            stream.synchronize()
        return pointer


def tensors_without_scale(table: bytes) -> tuple[str, ...]:
    """Return the tensors of TensorRT's calibration cache whose scale is none it can use.

    Args:
        table: as TensorRT writes it: a line about itself, then ``tensor: scale``, the scale as the
            eight hexadecimal digits of a float32. Other lines are left alone.
    """
    found = []
    for line in table.decode('utf-8', 'replace').splitlines()[1:]:
        name, _, digits = line.rpartition(': ')
        if not re.fullmatch(r'[0-9a-f]{1,8}', digits):
            continue
        (scale,) = struct.unpack('>f', bytes.fromhex(digits.rjust(8, '0')))
        if not _LEAST_SCALE <= scale < math.inf:
            found.append(name)
    return tuple(found)


def _read(path: Path | None) -> bytes:
    """Return the ranges kept, nothing where there are none that can be read."""
    with contextlib.suppress(OSError):
        return b'' if path is None else read_regular(path, _CACHE_LIMIT)
    return b''
