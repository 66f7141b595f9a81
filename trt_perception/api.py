"""A detector for Python programs without ROS: ``load`` a model, call it on images.

Guarantees: the same boxes as the node's for the same pixels and thresholds. A Model may be called
from several threads; they take turns. Non-guarantee: images are not copied, so they must not
change during the call.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.evaluation.offline_detection import split_into_batches
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.model.files.model_file import read_model_file
from trt_perception.parameters.config import NODE_ONLY_PARAMETERS, PARAMETERS, DetectorConfig
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.open_pipeline import open_offline
from trt_perception.pipelines.pipeline import Result, collect_all

__all__ = ['Model', 'load']

_Image = npt.NDArray[np.uint8]
# Types of sequences that never hold images.
_NOT_IMAGES: Final = (str, bytes, bytearray, memoryview)


def load(path: str | Path, **parameters: Any) -> Model:
    """Open a model: a TensorRT engine on the GPU, an ONNX file on the CPU.

    Args:
        path: the engine (``.engine``, ``.plan``, ``.trt``) or ONNX file (``.onnx``).
        parameters: parameters of the node, with ``_`` for ``.`` in their names, such as
            ``confidence_threshold=0.4`` or ``model_class_names=['person', 'forklift']``.

    Raises:
        ConfigError: a parameter is unknown, only for a node, or out of range, or names a class
            that the model lacks.
        EngineError: the file cannot be used; the message says why and what to do.
        CudaError: the file is an engine, and there is no GPU to run it.
    """
    return Model(path, **parameters)


class Model:
    """A loaded model, as ``load`` returns it; a context manager.

    Attributes:
        class_names: names of the classes; ``class_ids`` of Detections are indices into it.
        keypoint_names: names of the keypoints of each object, in the order of ``keypoints`` of
            Detections; empty where the model is none of poses.
    """

    def __init__(self, path: str | Path, **parameters: Any) -> None:
        """Open the model; see ``load``."""
        names = {row.field: row.name for row in PARAMETERS}
        self._values = {names.get(key, key): value for key, value in parameters.items()}
        self._values['engine_path'] = str(path)
        if only_of_node := sorted(NODE_ONLY_PARAMETERS & self._values.keys()):
            raise ConfigError(
                f'parameter {only_of_node[0]}',
                'it means something to a node only',
                fix='leave it out',
            )
        config = DetectorConfig.from_values(self._values)
        self._pipeline = open_offline(read_model_file(path), config.pipeline_options())
        self._lock = threading.Lock()
        self._closed = False
        self.class_names: tuple[str, ...] = self._pipeline.spec.class_names
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            config.thresholds(self.class_names)  # a class that the model lacks is said now
            undo.pop_all()
        self.keypoint_names: tuple[str, ...] = self._pipeline.spec.task.keypoint_names

    @overload
    def __call__(
        self,
        images: _Image,
        *,
        confidence_threshold: float | None = ...,
        iou_threshold: float | None = ...,
        class_filter: Sequence[str] | None = ...,
    ) -> Detections: ...

    @overload
    def __call__(
        self,
        images: Sequence[_Image],
        *,
        confidence_threshold: float | None = ...,
        iou_threshold: float | None = ...,
        class_filter: Sequence[str] | None = ...,
    ) -> list[Detections]: ...

    def __call__(
        self,
        images: _Image | Sequence[_Image],
        *,
        confidence_threshold: float | None = None,
        iou_threshold: float | None = None,
        class_filter: Sequence[str] | None = None,
    ) -> Detections | list[Detections]:
        """Detect objects in one image or in several.

        Args:
            images: uint8 (height, width, 3), BGR, as OpenCV reads them; one array, or a sequence
                of arrays of any sizes.
            confidence_threshold: 0 to 1; a score must be above this. None: as loaded.
            iou_threshold: 0 to 1; the weaker of two boxes of a class that overlap by more is
                removed. None: as loaded.
            class_filter: names of the classes to report; empty: all. None: as loaded.

        Returns:
            Detections in pixels of the image; for a sequence a list of them, in its order.

        Raises:
            ValueError: an image has another shape or type, or the model was closed.
            ConfigError: a threshold is out of range, or a class is none of the model's.
            ImageError: an image is too large.
            EngineError: the outputs are not what they should be.
            CudaError: a CUDA call failed.
        """
        changes = {
            'confidence_threshold': confidence_threshold,
            'iou_threshold': iou_threshold,
            'class_filter': class_filter,
        }
        given = {key: value for key, value in changes.items() if value is not None}
        config = DetectorConfig.from_values({**self._values, **given})
        thresholds = config.thresholds(self.class_names)
        # One thing that is no image: cv2.imread's None, a file's name, its bytes.
        one = not isinstance(images, Sequence) or isinstance(images, _NOT_IMAGES)
        if isinstance(images, np.ndarray):
            one = images.ndim < 4
        frames = [_checked_frame(image) for image in ([images] if one else list(images))]
        with self._lock:
            if self._closed:
                raise ValueError('the model was closed; load it again')
            found = self._detect(frames, thresholds)
        return found[0] if one else found

    def _detect(self, frames: Sequence[Frame], thresholds: Thresholds) -> list[Detections]:
        pipeline = self._pipeline
        results: list[Result] = []
        waiting: deque[int] = deque()
        try:
            # As many frames at a time as the pipeline has room for.
            for index, chunk in enumerate(split_into_batches(frames, pipeline.batch)):
                if len(waiting) == pipeline.depth:
                    results += collect_all(pipeline, waiting.popleft())
                slot = index % pipeline.depth
                pipeline.enqueue(slot, chunk, [thresholds] * len(chunk))
                waiting.append(slot)
            while waiting:
                results += collect_all(pipeline, waiting.popleft())
        finally:
            for slot in waiting:  # after an error: free the other slots
                with contextlib.suppress(Exception):
                    pipeline.collect(slot)
        return [result.detections for result in results]

    def close(self) -> None:
        """Free the model's memory; may be called again."""
        with self._lock:
            self._closed = True
            self._pipeline.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _checked_frame(image: Any) -> Frame:
    shape, dtype = getattr(image, 'shape', None), getattr(image, 'dtype', None)
    if dtype != np.uint8 or shape is None or len(shape) != 3 or shape[2] != 3:
        got = [type(image).__name__, *(str(one) for one in (dtype, shape) if one is not None)]
        raise ValueError(
            'an image must be a uint8 array (height, width, 3) in BGR order, as cv2.imread '
            f'returns it (got {", ".join(got)}); cv2.imread reads files, cv2.cvtColor converts'
        )
    return frame_from_bgr(image)
