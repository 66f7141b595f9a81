"""The pipeline of a model whose input size follows from the images, as for Depth Anything.

A model with dynamic height and width is first opened for the size in its files. The first image
decides the final size, and the model is opened again for it. Later images that need another size
are refused. Images for too large a network are refused, too, and decide nothing. A model of fixed
size stretches all images. If this changes their aspect ratio, the log has a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from trt_perception.errors import ImageError
from trt_perception.images.frame import Frame, PipelineInput
from trt_perception.images.memory import HostMemory
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.pipeline import FrameError, Pipeline, Result

__all__ = ['ImageSizedPipeline', 'follow_image_size']

_LOG: Final = logging.getLogger(__name__)
# Largest change of the aspect ratio without a warning, as a share.
_MAX_STRETCH: Final = 0.05


def follow_image_size(
    options: PipelineOptions, open_model: Callable[[PipelineOptions], Pipeline]
) -> Pipeline:
    """Open a model, as an ImageSizedPipeline if its own processing derives the size from images.

    Args:
        options: options of the pipeline.
        open_model: opens the model with the given options.
    """
    opened = open_model(options)
    if opened.spec.preprocessing.size_multiple is None:
        return opened
    return ImageSizedPipeline(opened, options, open_model)


class ImageSizedPipeline:
    """A Pipeline whose first image decides the size of the model's input.

    Args:
        opened: the model, open for the size in its files.
        options: options of the pipeline.
        open_model: opens the model with the given options.

    Attributes:
        opened: the pipeline that runs the frames.
    """

    opening = ''

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
        # The error of each frame in a slot; None for frames that the pipeline runs.
        self._errors: dict[int, list[ImageError | None]] = {}
        # The frames of a slot that are not enqueued yet.
        self._waiting: dict[int, list[tuple[Frame, Thresholds]]] = {}
        self._use(opened)

    def _use(self, opened: Pipeline) -> None:
        self.opened, self.spec = opened, opened.spec
        self._must_open = False  # whether opening the model again has failed
        self.depth, self.max_in_flight = opened.depth, opened.max_in_flight
        self.batch, self.decodes_jpeg = opened.batch, opened.decodes_jpeg
        self.diagnostic_values = opened.diagnostic_values

    def allocate(self, size: int) -> HostMemory:
        """See Pipeline."""
        return self.opened.allocate(size)

    def enqueue(
        self, slot: int, frames: Sequence[PipelineInput], thresholds: Sequence[Thresholds]
    ) -> None:
        """Start a batch with the frames of the right size. The first frame decides the size.

        Raises:
            EngineError: the model does not work with the size of the first image.
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

    def _checked(self, deferred: PipelineInput) -> Frame | ImageError:
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
            self._follow(image_wh)
            self._first_wh = image_wh
        wanted, size = self._original.size_for(image_wh), self.spec.preprocessing.input_size
        if not self.spec.derives_size or wanted == size:
            return frame
        return ImageError(
            'changed_size',
            'size of the image',
            f'{_text(image_wh)}, which needs a network of {_text(wanted)}',
            expected=f'images for a network of {_text(size)}, like the first image, '
            f'{_text(self._first_wh)}',
            fix=f'use another node for images of another size, or set {name}',
        )

    def _follow(self, image_wh: tuple[int, int]) -> None:
        """Open the model for the size of the first image, or report that it is stretched."""
        size = self.spec.preprocessing.input_size
        if self.spec.derives_size:
            wanted = self._original.size_for(image_wh)
            if wanted == size and not self._must_open:
                return
            self.opening = (
                f'the first image has {_text(image_wh)} pixels: the network is opened again for '
                f'{_text(wanted)}'
            )
            _LOG.info('%s', self.opening)
            overrides = replace(self._options.overrides, image_wh=image_wh)
            self._must_open = True
            self.opened.close()  # first, because both together may need too much memory
            self._use(self._open_model(replace(self._options, overrides=overrides)))
            return
        ratio = image_wh[0] * size[1] / (image_wh[1] * size[0])
        if max(ratio, 1 / ratio) > 1 + _MAX_STRETCH:
            _LOG.warning(
                "images of %s pixels are stretched to the network of %s, but this model's "
                'own processing keeps the aspect ratio: export or build it for %s',
                *map(_text, (image_wh, size, self._original.size_for(image_wh))),
                extra={'show': True},
            )

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
        self.opening = ''  # not before, because a first run may be as slow as opening the model
        results = iter(found)
        return [next(results) if error is None else error for error in errors]

    def close(self) -> None:
        """See Pipeline."""
        self.opened.close()


def _text(size_wh: tuple[int, int]) -> str:
    return '{} x {}'.format(*size_wh)
