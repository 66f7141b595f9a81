# SPDX-License-Identifier: Apache-2.0
"""Models for Python programs without ROS: ``load`` a model and call it on images.

Guarantees: a Model returns the same results as the node for the same pixels and thresholds.
Several threads may call one Model; a lock serialises the calls. Limitation: images are not
copied, so callers must not change them during the call.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar, cast, overload

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import counted
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.images.results.class_map import ClassMap
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.results.depth_map import DepthMap
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.recognition.parameter_syntax import PYTHON_SYNTAX
from trt_perception.model.tasks.task import PARAMETERS_OF_TRACKER
from trt_perception.model.thresholds import Thresholds
from trt_perception.parameters.spelling import parameter_named
from trt_perception.parameters.triton import OFFLINE_TIMEOUT_MS
from trt_perception.parameters.values import (
    NODE_ONLY_PARAMETERS,
    PARAMETERS,
    ParameterValues,
    unknown_parameter,
)
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.pipeline import Result, collect_all, split_into_batches

_LOG: Final = logging.getLogger(__name__)
# What to do with a parameter of the node that does not apply to a model in a program.
_FIXES_BY_OTHER_PARAMETER: Final = {
    **dict.fromkeys(NODE_ONLY_PARAMETERS, 'leave this parameter out'),
    **dict.fromkeys(
        ('tracker.type', *PARAMETERS_OF_TRACKER),
        'leave it out, and give the detections to a Tracker with its own settings',
    ),
}
# The type of cv2.imread. Arrays of other types than uint8 are refused.
_Image = npt.NDArray[Any]
_TaskOfObjects = Literal['detect', 'segment', 'pose', 'obb']
_ModelResult = Detections | ClassScores | ClassMap | DepthMap
# These types are sequences, but never sequences of images.
_NOT_IMAGES: Final = (str, bytes, bytearray, memoryview)


#: The type of a model's results.
_ResultT = TypeVar('_ResultT', bound=_ModelResult)


@overload
def load(
    path: str | Path, *, task: _TaskOfObjects = ..., **parameters: Any
) -> Model[Detections]: ...


@overload
def load(
    path: str | Path, *, task: Literal['classify'], **parameters: Any
) -> Model[ClassScores]: ...


@overload
def load(path: str | Path, *, task: Literal['semantic'], **parameters: Any) -> Model[ClassMap]: ...


@overload
def load(path: str | Path, *, task: Literal['depth'], **parameters: Any) -> Model[DepthMap]: ...


@overload
def load(path: str | Path, *, task: str, **parameters: Any) -> Model[_ModelResult]: ...


def load(path: str | Path, **parameters: Any) -> Model[Any]:
    """Open a model: a TensorRT engine, or an ONNX file with ONNX Runtime.

    A warning is logged for each parameter that has no effect on the model's task.

    The argument ``task`` is a parameter like the others. It also tells type checkers the type of
    the results. Without it they expect Detections. Give it for models that describe the whole
    image: ``load('model.onnx', task='semantic')``. An error is raised if the model has another
    task.

    Args:
        path: the engine (``.engine``, ``.plan``, ``.trt``) or ONNX file (``.onnx``).
        parameters: parameters of the node, with ``_`` for ``.`` in their names, such as
            ``confidence_threshold=0.4`` or ``model_class_names=['person', 'forklift']``. The
            prefix ``model_`` may be left out. NumPy scalars and arrays are accepted as numbers
            and lists.

    Raises:
        ConfigError: a parameter is unknown, given twice, out of range or useful only in a node,
            or the class filter names a class that the model lacks.
        EngineError: the file cannot be used; the message gives the reason and the remedy.
        CudaError: the file is an engine, and this machine has no usable GPU.

    >>> model = tp.load('digits.onnx', confidence_threshold=0.5)
    >>> model.task, model.class_names[:3]
    ('detect', ('0', '1', '2'))
    >>> tp.load('digits_semantic.onnx', task='semantic')(cv2.imread('image.jpg')).class_ids().shape
    (480, 640)
    """
    return Model(path, **parameters)


class Model(Generic[_ResultT]):
    """A loaded model. ``load`` returns it. A ``with`` block closes the model at its end.

    Attributes:
        class_names: names of the classes; class ids in results are indices into this tuple. Empty
            if the task has no classes.
        keypoint_names: names of the keypoints of each object, in the order of ``keypoints`` of
            Detections; empty unless the task is ``pose``.
        task: name of the task, such as ``detect``. The task decides the type of the results.

    >>> image = cv2.imread('image.jpg')
    >>> with tp.load('digits.onnx') as model:
    ...     print(model)
    ...     found = model(image, confidence_threshold=0.8)
    ...     several = model([image, image[:240]])
    Model('digits.onnx', task='detect', input 640 x 480, 10 classes)
    >>> [model.class_names[class_id] for class_id in found.class_ids]
    ['9', '4', '8', '3']
    >>> [len(each) for each in several]
    [8, 5]
    """

    def __init__(self, path: str | Path, **parameters: Any) -> None:
        """Open the model. ``load`` documents arguments and errors."""
        values = _parameters_by_name(path, parameters)
        if only_of_node := sorted(_FIXES_BY_OTHER_PARAMETER.keys() & values.keys()):
            raise ConfigError(
                f'parameter {only_of_node[0]}',
                'applies to nodes only',
                fix=_FIXES_BY_OTHER_PARAMETER[only_of_node[0]],
            )
        self._parameters = ParameterValues.from_values(values)
        options = self._parameters.pipeline_options()
        overrides = replace(options.overrides, syntax=PYTHON_SYNTAX)
        self._pipeline = open_offline_pipeline(
            read_model_file(path, accepts_server=True), replace(options, overrides=overrides)
        )
        self._lock = threading.Lock()
        self._closed = False
        self.class_names: tuple[str, ...] = self._pipeline.spec.class_names
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            # Reports an unknown class before the first call.
            self._parameters.thresholds(self.class_names, self._pipeline.spec.task)
            undo.pop_all()
        spec = self._pipeline.spec
        for sentence in self._parameters.unused_parameter_warnings(spec.task, spec.decoder):
            _LOG.warning('%s: %s', Path(path).name, sentence)
        self.keypoint_names: tuple[str, ...] = self._pipeline.spec.task.keypoint_names
        self.task: str = self._pipeline.spec.task.name
        self._path = str(path)

    def __repr__(self) -> str:
        width, height = self._pipeline.spec.preprocessing.input_size
        facts = [f'{self._path!r}', f'task={self.task!r}', f'input {width} x {height}']
        if self.class_names:
            facts.append(counted(len(self.class_names), 'class', 'classes'))
        if self._closed:
            facts.append('closed')
        return f'Model({", ".join(facts)})'

    @overload
    def __call__(
        self,
        images: _Image,
        *,
        confidence_threshold: float | None = ...,
        iou_threshold: float | None = ...,
        class_filter: Sequence[str] | None = ...,
    ) -> _ResultT: ...

    @overload
    def __call__(
        self,
        images: Sequence[_Image],
        *,
        confidence_threshold: float | None = ...,
        iou_threshold: float | None = ...,
        class_filter: Sequence[str] | None = ...,
    ) -> list[_ResultT]: ...

    def __call__(
        self,
        images: _Image | Sequence[_Image],
        *,
        confidence_threshold: float | None = None,
        iou_threshold: float | None = None,
        class_filter: Sequence[str] | None = None,
        **unknown: Any,
    ) -> _ResultT | list[_ResultT]:
        """Run the model on one image or on several.

        Thresholds apply only to models that find objects. Other models refuse them.

        Args:
            images: one uint8 array (height, width, 3) in BGR order, as OpenCV reads images, or a
                sequence of such arrays. Their sizes may differ.
            confidence_threshold: only objects with a higher score are returned, 0 to 1. None: the
                value given to ``load``.
            iou_threshold: 0 to 1. If two boxes of a class overlap by a larger IoU, the box with
                the lower score is removed. None: the value given to ``load``.
            class_filter: names of the classes to report; empty for all classes. None: the value
                given to ``load``.
            unknown: no other keyword is accepted; the error names the right one.

        Returns:
            the result of the image, or a list of results in the order of the sequence. The task
            of the model decides the type: Detections, ClassScores, ClassMap or DepthMap. A result
            keeps a reference to its image for ``plot``.

        Raises:
            ValueError: an image has another shape or type, or the model was closed.
            ConfigError: a threshold is out of range or has no effect on the task, a keyword is
                unknown, or the model lacks a class of the filter.
            ImageError: an image is too large.
            EngineError: the model's outputs are invalid.
            CudaError: a CUDA call failed.
        """
        changes = {
            'confidence_threshold': confidence_threshold,
            'iou_threshold': iou_threshold,
            'class_filter': class_filter,
        }
        if unknown:
            raise _unknown_keyword(next(iter(unknown)))
        given = {key: _as_python(value) for key, value in changes.items() if value is not None}
        task = self._pipeline.spec.task
        if given and not task.finds_objects:
            raise ConfigError(
                next(iter(given)),
                f'has no effect on a model with task {task.name}',
                fix='leave it out: only models that find objects have thresholds',
            )
        thresholds = self._parameters.with_values(given).thresholds(self.class_names, task)
        # None (from cv2.imread), a file name and bytes count as one image, and are refused below.
        is_single = not isinstance(images, Sequence) or isinstance(images, _NOT_IMAGES)
        if isinstance(images, np.ndarray):
            is_single = images.ndim < 4
        frames = [_checked_frame(image) for image in ([images] if is_single else list(images))]
        with self._lock:
            if self._closed:
                raise ValueError('the model was closed; load it again')
            found = self._run(frames, thresholds)
        # The results must not keep the model alive.
        draw = partial(task.draw, class_names=self.class_names)
        for result, image in zip(found, [images] if is_single else images, strict=True):
            result.remember_image(image, draw)
        return found[0] if is_single else found

    def _run(self, frames: Sequence[Frame], thresholds: Thresholds) -> list[_ResultT]:
        pipeline = self._pipeline
        results: list[Result] = []
        waiting: deque[int] = deque()
        try:
            # Each slot takes one batch. If all slots are in use, collect the oldest batch first.
            for index, chunk in enumerate(split_into_batches(frames, pipeline.batch)):
                if len(waiting) == pipeline.depth:
                    results += collect_all(pipeline, waiting.popleft())
                slot = index % pipeline.depth
                pipeline.enqueue(slot, chunk, [thresholds] * len(chunk))
                waiting.append(slot)
            while waiting:
                results += collect_all(pipeline, waiting.popleft())
        finally:
            for slot in waiting:  # after an error, free the other slots
                with contextlib.suppress(Exception):
                    pipeline.collect(slot)
        # The task decides the type. An offline pipeline returns no KernelMaps.
        return cast('list[_ResultT]', [result.found for result in results])

    def close(self) -> None:
        """Free the model's memory. Closing a closed model does nothing."""
        with self._lock:
            self._closed = True
            self._pipeline.close()

    def __enter__(self) -> Model[_ResultT]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parameters_by_name(path: str | Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Map the name of each given parameter of the node to its value.

    Args:
        path: path of the model.
        given: maps parameter names to values. A name may have ``_`` for ``.``, or lack ``model.``.

    Raises:
        ConfigError: two keys are names of one parameter.
    """
    values: dict[str, Any] = {'engine_path': str(path)}
    for key, value in given.items():
        name = parameter_named(key)
        if name in values:
            raise ConfigError(f'parameter {name!r}', 'given twice', fix='give it once')
        values[name] = _as_python(value)
    return {'triton.timeout_ms': OFFLINE_TIMEOUT_MS, **values}


def _unknown_keyword(key: str) -> ConfigError:
    """Return the error for a keyword that a call of a model does not accept."""
    name = parameter_named(key)
    if name in {row.name for row in PARAMETERS}:
        return ConfigError(f'parameter {name!r}', 'is not one of a call', fix='give it to load')
    return unknown_parameter(name)


def _as_python(value: Any) -> Any:
    """Convert NumPy scalars and arrays, also in lists, to Python numbers, strings and lists."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_as_python(item) for item in value]
    return value


def _checked_frame(image: Any) -> Frame:
    shape, dtype = getattr(image, 'shape', None), getattr(image, 'dtype', None)
    if image is None:
        raise ValueError(
            'an image must be a uint8 array (height, width, 3) in BGR order (got None, which '
            'cv2.imread returns for a file that it cannot read: check its path)'
        )
    if dtype != np.uint8 or shape is None or len(shape) != 3 or shape[2] != 3:
        received = [
            type(image).__name__,
            *(str(part) for part in (dtype, shape) if part is not None),
        ]
        raise ValueError(
            'an image must be a uint8 array (height, width, 3) in BGR order, as cv2.imread '
            f'returns it (got {", ".join(received)}); '
            'use cv2.imread to read files, and cv2.cvtColor to convert colours'
        )
    return frame_from_bgr(image)
