"""TensorRT's own INT8 calibrators, for TensorRT 10.x where DLA still wants implicit scales.

Not run by us: no machine here has such a TensorRT and a GPU. Written against the names of each
release, and exercised with a stand-in of the module. Everything else should use Q/DQ
(quantise.py); TensorRT ignores a calibrator where the model has Q/DQ, and 11.0 has none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from collections.abc import Iterator
from dataclasses import asdict
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from typing import Final
from typing import Literal

import numpy as np
import onnx

from trt_perception import gpu
from trt_perception.building.calibration import feed_shape
from trt_perception.building.calibration import image_input
from trt_perception.building.calibration_cache import CacheKey
from trt_perception.building.calibration_cache import write_atomically
from trt_perception.building.images import ImageSet
from trt_perception.building.images import read_image
from trt_perception.errors import ConfigError
from trt_perception.errors import EngineError
from trt_perception.manifest import Preprocessing
from trt_perception.picture_files import frame_of
from trt_perception.stages.host_preprocess import HostPreprocessor

__all__ = ['tensorrt_calibrator']

_BASES: Final = {'entropy': 'IInt8EntropyCalibrator2', 'minmax': 'IInt8MinMaxCalibrator'}
_MOST_BYTES: Final = 64 * 1024 * 1024


def tensorrt_calibrator(
    trt: Any,
    model: onnx.ModelProto,
    preprocessing: Preprocessing,
    images: ImageSet,
    *,
    method: Literal['entropy', 'minmax'] = 'entropy',
    cache_dir: Path | None = None,
    progress: Callable[[str, int, int], None],
    cancelled: Callable[[], bool],
    device: ModuleType = gpu,
) -> Any:
    """Return what ``IBuilderConfig.int8_calibrator`` takes.

    TensorRT calls it while it builds and swallows what it raises, so ask its ``failure`` after
    the build and raise that. Close it after the build: it owns GPU memory.

    Args:
        trt: the module ``tensorrt``, 10.x.
        model: float32, without Q/DQ.
        preprocessing: as at run time.
        images: what to calibrate with.
        method: DLA takes ``entropy`` only.
        cache_dir: where TensorRT's calibration cache is kept, None for nowhere.
        progress: called with a step's name, how many are done, and of how many.
        cancelled: asked before each image; True ends it, and ``failure`` is KeyboardInterrupt.
        device: trt_perception.gpu, or what tests put in its place.

    Raises:
        ConfigError: the method is none of TensorRT's.
        EngineError: this release has no calibrators.
        CudaError: no GPU, or no memory on it.
    """
    if method not in _BASES:
        raise ConfigError(
            f'TensorRT itself calibrates by {" or ".join(_BASES)} (got {method!r}); use the '
            'calibration tool onnxruntime'
        )
    base = getattr(trt, _BASES[method], None)
    if base is None:
        raise EngineError(
            f'TensorRT {trt.__version__} has no calibrators of its own; use the calibration tool '
            'onnxruntime'
        )
    key = CacheKey.of(model, images, preprocessing, f'tensorrt-{method}')
    key = replace(key, version=f'{key.version}, TensorRT {trt.__version__}')
    feed = _Feed(model, preprocessing, images, progress, cancelled, device)
    kept = _Kept(cache_dir, key)

    # The base class exists only where that TensorRT is installed, so this one is made here.
    class Calibrator(base):  # type: ignore[misc, valid-type]
        """Hands images to TensorRT, one a batch, and keeps what it computes from them."""

        def __init__(self) -> None:
            base.__init__(self)  # type: ignore[misc]
            self.failure: BaseException | None = None
            self.cache = kept.sentence

        def get_batch_size(self) -> int:
            return feed.batch

        def get_batch(self, _names: list[str]) -> list[int] | None:
            try:
                return feed.next()
            except (Exception, KeyboardInterrupt) as error:  # nothing may leave a callback
                self.failure = error
                return None

        def read_calibration_cache(self) -> bytes | None:
            content = kept.read()
            self.cache = kept.sentence
            return content

        def write_calibration_cache(self, cache: Any) -> None:
            if self.failure is None:
                kept.write(bytes(cache))
                self.cache = kept.sentence

        def close(self) -> None:
            feed.close()

    return Calibrator()


class _Feed:
    """One image after the other in device memory."""

    def __init__(
        self,
        model: onnx.ModelProto,
        preprocessing: Preprocessing,
        images: ImageSet,
        progress: Callable[[str, int, int], None],
        cancelled: Callable[[], bool],
        device: ModuleType,
    ) -> None:
        self.name = image_input(model).name
        shape = feed_shape(model, preprocessing)
        self.batch = shape[0]
        self._preprocess = HostPreprocessor(replace(preprocessing, dtype='float32'))
        self._images, self._progress, self._cancelled = images, progress, cancelled
        self._device = device
        self._done = 0
        self._paths: Iterator[Path] = iter(images.paths)
        size = 4 * int(np.prod(shape))
        self._owned: list[Any] = []
        try:
            self._stream = self._own(device.Stream())
            self._host = self._own(device.PinnedBuffer(size))
            self._buffer = self._own(device.DeviceBuffer(size))
        except BaseException:
            self.close()
            raise

    def _own(self, thing: Any) -> Any:
        self._owned.append(thing)
        return thing

    def next(self) -> list[int] | None:
        """Return the address of the next image's tensor, valid until the next call; None at end.

        The image fills the whole batch.
        """
        if self._cancelled():
            raise KeyboardInterrupt
        self._progress('calibrating', self._done, len(self._images.paths))
        path = next(self._paths, None)
        if path is None:
            return None
        tensor, _ = self._preprocess(frame_of(read_image(path)))
        feed = np.repeat(tensor, self.batch, axis=0)
        self._host.array[:] = feed.reshape(-1).view(np.uint8)
        self._device.copy_async(
            self._buffer.pointer, self._host.pointer, self._host.size, self._stream
        )
        self._stream.synchronize()
        self._done += 1
        return [self._buffer.pointer]

    def close(self) -> None:
        """Free the memory."""
        while self._owned:
            self._owned.pop().close()


class _Kept:
    """TensorRT's cache, whose bytes say nothing of what they were made from, and a file that does.

    Attributes:
        sentence: ``off``, ``reused …``, or why it was computed.
    """

    def __init__(self, folder: Path | None, key: CacheKey) -> None:
        self.sentence = 'off' if folder is None else 'not asked for'
        self._key = key
        self._path = key.file(folder).with_suffix('.cache') if folder is not None else None

    def read(self) -> bytes | None:
        """Return the bytes where they are those of this calibration."""
        if self._path is None:
            return None
        described = self._path.with_suffix('.json')
        try:
            facts = json.loads(described.read_bytes())
            with self._path.open('rb') as file:
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            self.sentence = f'computed: no cache {self._path}'
            return None
        except (OSError, ValueError, RecursionError) as error:
            self.sentence = f'computed: the cache {self._path} cannot be read ({error})'
            return None
        if facts != self._facts(content):
            self.sentence = (
                f'computed: the cache {self._path} was made from something else, or was changed'
            )
            return None
        self.sentence = f'reused: {self._path}'
        return content

    def write(self, content: bytes) -> None:
        """Keep the bytes; a cache that cannot be written is no error."""
        if self._path is None:
            return
        facts = json.dumps(self._facts(content), indent=1).encode()
        try:
            # The description last: until it fits, the bytes are not used.
            write_atomically(self._path, content)
            write_atomically(self._path.with_suffix('.json'), facts)
        except OSError as error:
            self.sentence += (
                f'; not kept, because {self._path} cannot be written: {error.strerror}'
            )

    def _facts(self, content: bytes) -> dict[str, str]:
        return {**asdict(self._key), 'sha256': hashlib.sha256(content).hexdigest()}
