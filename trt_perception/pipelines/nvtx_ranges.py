# SPDX-License-Identifier: Apache-2.0
"""Marks NVTX ranges of batches and stages, which NVIDIA Nsight Systems shows in its timeline.

The parameter `nvtx` switches the ranges on. They are added to an object when it is created, so
they cost nothing when they are off. The domain of all ranges is `trt_perception`:

* `batch of 3`: from the start of `enqueue` to the end of `collect`.
* `enqueue 3`, `collect 3`: the calls of the worker, with the number of frames.
* stages, such as `preprocess` or `upload`: within one thread.

`mark_camera` in `scheduling/marked_camera.py` adds the ranges of frames.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Final, Protocol

from trt_perception.errors import ConfigError
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import FrameError, Pipeline, Result

_DOMAIN: Final = 'trt_perception'


class _StageOwner(Protocol):
    """An object with stages.

    Attributes:
        stage_ranges: maps the name of each method that is a stage to the name of its range.
    """

    stage_ranges: ClassVar[Mapping[str, str]]


class NvtxRanges:
    """Marks ranges with the Python package nvtx. Any thread may use it.

    Raises:
        ConfigError: the package nvtx cannot be imported.
    """

    def __init__(self) -> None:
        try:
            self._nvtx: Any = importlib.import_module('nvtx')
        except ImportError as error:
            raise ConfigError(
                'nvtx',
                str(error),
                expected='the Python package nvtx',
                fix="python3 -m pip install 'nvtx>=0.2.11', in the virtual environment that the "
                'program runs in; or switch nvtx off',
            ) from error

    def stage(self, name: str) -> AbstractContextManager[Any]:
        """Return a context manager that marks a range of the calling thread."""
        marked: AbstractContextManager[Any] = self._nvtx.annotate(name, domain=_DOMAIN)
        return marked

    def start(self, name: str) -> object:
        """Start a range that any thread may end. Return the argument of `end`."""
        return self._nvtx.start_range(name, domain=_DOMAIN)

    def end(self, started: object) -> None:
        """End a range."""
        self._nvtx.end_range(started)

    def mark_stages(self, owner: _StageOwner) -> None:
        """Replace the stages of this object by methods that also mark their ranges."""
        for method, name in owner.stage_ranges.items():
            marks = self._nvtx.annotate(name, domain=_DOMAIN)
            setattr(owner, method, marks(getattr(owner, method)))


class _MarkedCalls:
    """The methods `enqueue` and `collect` of a pipeline, with ranges."""

    def __init__(self, ranges: NvtxRanges, pipeline: Pipeline) -> None:
        self._ranges = ranges
        self._enqueue, self._collect = pipeline.enqueue, pipeline.collect
        self._in_flight: dict[int, tuple[int, object]] = {}  # frame count and range, by slot

    def enqueue(
        self, slot: int, frames: Sequence[Frame | DeferredFrame], thresholds: Sequence[Thresholds]
    ) -> None:
        count = len(frames)
        self._in_flight[slot] = count, self._ranges.start(f'batch of {count}')
        with self._ranges.stage(f'enqueue {count}'):
            self._enqueue(slot, frames, thresholds)

    def collect(self, slot: int) -> list[Result | FrameError]:
        count, batch = self._in_flight.pop(slot)
        with self._ranges.stage(f'collect {count}'):
            results = self._collect(slot)
        self._ranges.end(batch)
        return results


def mark_pipeline(pipeline: Pipeline, owners: Sequence[_StageOwner]) -> None:
    """Mark the ranges of all later batches of a pipeline, and of their stages.

    Args:
        pipeline: a pipeline with no frames in flight. Its methods `enqueue` and `collect` are
            replaced.
        owners: the objects whose methods are the stages.

    Raises:
        ConfigError: the package nvtx cannot be imported.
    """
    ranges = NvtxRanges()
    calls = _MarkedCalls(ranges, pipeline)
    for method in ('enqueue', 'collect'):
        setattr(pipeline, method, getattr(calls, method))
    for owner in owners:
        ranges.mark_stages(owner)
