# SPDX-License-Identifier: Apache-2.0
"""The pipeline of a model whose input size follows from the images, as for Depth Anything.

A model with dynamic height and width is first opened for the size in its files. The first image
decides the final size, and the model is opened again for it. Later images that need another size
are refused. An image is also refused, and does not decide the size, if it needs too large an
input, or a size with which the model fails. A model of fixed size stretches all images.
If this changes their aspect ratio, the log has a warning. The same holds for models of fixed size
whose own processing keeps the aspect ratio, such as YOLOS.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from trt_perception.errors import (
    EngineError,
    GpuMemoryError,
    ImageError,
    OutputError,
    OutputShapeError,
    TrtPerceptionError,
)
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.images.memory import HostMemory
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.pipeline import FrameError, Pipeline, Result, detect_one

_LOG: Final = logging.getLogger(__name__)
# Largest change of the aspect ratio without a warning, as a share.
_MAX_STRETCH: Final = 0.05
# After a size failed, the model is not opened again for this size during this time.
_RETRY_S: Final = 30.0
# Largest number of sizes whose failures are remembered.
_MAX_FAILURES: Final = 64


def follow_image_size(
    options: PipelineOptions, open_model: Callable[[PipelineOptions], Pipeline]
) -> Pipeline:
    """Open a model, as an ImageSizedPipeline if its own processing keeps the aspect ratio."""
    opened = open_model(options)
    preprocessing = opened.spec.preprocessing
    is_stretched = preprocessing.keeps_aspect_ratio and preprocessing.resize == 'stretch'
    if preprocessing.size_multiple is None and not is_stretched:
        return opened
    return ImageSizedPipeline(opened, options, open_model)


class ImageSizedPipeline:
    """A Pipeline whose first image decides the size of the model's input.

    Args:
        opened: the model, open for the size in its files.

    Attributes:
        opened: the pipeline that runs the frames.
    """

    opening_reason = ''

    def __init__(
        self,
        opened: Pipeline,
        options: PipelineOptions,
        open_model: Callable[[PipelineOptions], Pipeline],
    ) -> None:
        # For the size in the files of the model.
        self._original = opened.spec.preprocessing
        self._options = options
        self._open_model = open_model
        self._first_wh: tuple[int, int] | None = None
        # The time and the error of the last attempt for each size that failed.
        self._failures: dict[tuple[int, int], tuple[float, EngineError | GpuMemoryError]] = {}
        # The error of each frame in a slot; None for frames that the pipeline runs.
        self._errors: dict[int, list[ImageError | None]] = {}
        # The frames of a slot that are not enqueued yet.
        self._waiting: dict[int, list[tuple[Frame, Thresholds]]] = {}
        # Unchanged when the model is opened again, because the pool has as many slots.
        self.depth = opened.depth
        self._use(opened)

    def _use(self, opened: Pipeline) -> None:
        self.opened, self.spec = opened, opened.spec
        self._must_open = False  # whether opening the model again has failed
        self.max_in_flight = opened.max_in_flight
        self.batch, self.decodes_jpeg = opened.batch, opened.decodes_jpeg
        self.diagnostic_values = opened.diagnostic_values

    def allocate(self, size: int) -> HostMemory:
        """See Pipeline."""
        return self.opened.allocate(size)

    def enqueue(
        self, slot: int, frames: Sequence[Frame | DeferredFrame], thresholds: Sequence[Thresholds]
    ) -> None:
        """Start a batch with the frames of the right size. The first frame decides the size.

        Raises:
            EngineError: the model can be opened neither for the first image, nor for the size in
                its files.
            CudaError: GPU memory is not sufficient for either size, or the GPU is lost.
        """
        if not self.spec.derives_size and self._first_wh is not None:
            self._errors[slot] = [None] * len(frames)
            self.opened.enqueue(slot, frames, thresholds)
            return
        errors: list[ImageError | None] = []
        batch: list[tuple[Frame, Thresholds]] = []
        for frame, own in zip(frames, thresholds, strict=True):
            checked = self._checked(frame)
            errors.append(checked if isinstance(checked, ImageError) else None)
            if not isinstance(checked, ImageError):
                batch.append((checked, own))
        self._errors[slot], self._waiting[slot] = errors, batch
        if batch:
            self._enqueue_part(slot)

    def _enqueue_part(self, slot: int) -> None:
        """Enqueue as many frames as the model accepts at the size of the images.

        An engine with several profiles may accept fewer frames than at the size in its files.
        """
        count, waiting = self.opened.batch, self._waiting[slot]
        self._waiting[slot] = waiting[count:]
        self.opened.enqueue(slot, *zip(*waiting[:count], strict=True))

    def _checked(self, deferred: Frame | DeferredFrame) -> Frame | ImageError:
        """Return the frame, or the error of a frame that cannot be read or has a wrong size."""
        try:
            frame = deferred.read()
        except ImageError as error:
            return error
        image_wh = frame.width, frame.height
        name = self._options.overrides.syntax.name('input_size')
        if self.spec.derives_size and (mistake := self._original.derived_size_mistake(image_wh)):
            return ImageError('too_large', 'size of the image', fix=f'set {name}', **mistake)
        if self._first_wh is None:
            failure = self._follow(frame)
            if failure is not None:
                return ImageError(
                    'too_large' if isinstance(failure, GpuMemoryError) else 'changed_size',
                    f'an image of {_text(image_wh)} pixels',
                    'the model fails with an input of '
                    f'{_text(self._original.size_for(image_wh))}: {failure.statement}',
                    fix=failure.fix or f'set {name}',
                )
            self._first_wh = image_wh
        wanted, size = self._original.size_for(image_wh), self.spec.preprocessing.input_size
        if not self.spec.derives_size or wanted == size:
            return frame
        return ImageError(
            'changed_size',
            'size of the image',
            f'{_text(image_wh)}, which needs an input of {_text(wanted)}',
            expected=f'images for an input of {_text(size)}, like the first image, '
            f'{_text(self._first_wh)}',
            fix=f'use another node for images of another size, or set {name}',
        )

    def _follow(self, frame: Frame) -> EngineError | GpuMemoryError | None:
        """Open the model for the size of the first image, or report that it is stretched.

        Returns:
            None, or why the model fails with this size. In this case, the model is open for
            the size in its files.
        """
        image_wh, size = (frame.width, frame.height), self.spec.preprocessing.input_size
        if self.spec.derives_size:
            wanted = self._original.size_for(image_wh)
            if wanted == size and not self._must_open:
                return None
            failed_s, failure = self._failures.get(wanted, (0.0, None))
            if failure is not None and time.monotonic() < failed_s + _RETRY_S:
                return failure
            self.opening_reason = (
                f'the first image has {_text(image_wh)} pixels: the model is opened again for an '
                f'input of {_text(wanted)}'
            )
            _LOG.info('%s', self.opening_reason)
            overrides = replace(self._options.overrides, image_wh=image_wh)
            try:
                self._open_again(replace(self._options, overrides=overrides))
                self._try_size(frame)
            except (EngineError, GpuMemoryError) as error:
                failure = _without_traceback(error)
            else:
                return None
            # Other cameras may have images of a size that works. Outside of `except`, because the
            # handled exception keeps the model that failed in memory.
            self._open_again(self._options)
            if len(self._failures) == _MAX_FAILURES:
                self._failures.clear()
            self._failures[wanted] = time.monotonic(), failure
            return failure
        ratio = image_wh[0] * size[1] / (image_wh[1] * size[0])
        if max(ratio, 1 / ratio) > 1 + _MAX_STRETCH:
            wanted_text = (
                'images of this aspect ratio'
                if self._original.size_multiple is None
                else _text(self._original.size_for(image_wh))
            )
            _LOG.warning(
                "images of %s pixels are stretched to the input of %s, but this model's "
                'own processing keeps the aspect ratio: export or build it for %s',
                *map(_text, (image_wh, size)),
                wanted_text,
                extra={'show': True},
            )
        return None

    def _open_again(self, options: PipelineOptions) -> None:
        self._must_open = True
        self.opened.close()  # first, because both together may need too much memory
        self._use(self._open_model(options))

    def _try_size(self, frame: Frame) -> None:
        """Run the model, because some exports only work with the size in their files.

        A second run confirms outputs of wrong shapes, because a server may give one such answer.
        """
        try:
            with contextlib.suppress(OutputShapeError):
                detect_one(self.opened, frame, Thresholds())
                return
            detect_one(self.opened, frame, Thresholds())
        except (ImageError, OutputError) as error:
            if isinstance(error, OutputShapeError):
                raise
            # The image itself is wrong. Its run in the batch reports the error.
        except TrtPerceptionError:
            raise
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise EngineError(
                'the network', f'fails: {error}', fix='export the model again'
            ) from error

    def is_done(self, slot: int) -> bool:
        """See Pipeline."""
        return None not in self._errors[slot] or self.opened.is_done(slot)

    def collect(self, slot: int) -> list[Result | FrameError]:
        """See Pipeline. The error of a frame with another size has the reason `changed_size`."""
        errors = self._errors.pop(slot)
        found = self.opened.collect(slot) if None in errors else []
        while self._waiting.get(slot):
            self._enqueue_part(slot)
            found += self.opened.collect(slot)
        self.max_in_flight = self.opened.max_in_flight
        # Reset here, because the first run may be as slow as opening the model.
        self.opening_reason = ''
        results = iter(found)
        return [next(results) if error is None else error for error in errors]

    def close(self) -> None:
        """See Pipeline."""
        self.opened.close()


def _without_traceback(error: EngineError | GpuMemoryError) -> EngineError | GpuMemoryError:
    """Return the error without traceback and cause, which would keep a closed pipeline alive."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def _text(size_wh: tuple[int, int]) -> str:
    return '{} x {}'.format(*size_wh)
