# SPDX-License-Identifier: Apache-2.0
"""The decoders of a slot: kernels decode boxes, or the host decodes all outputs.

A slot uses one of these two decoders, or `MapDecoder` in `maps.py`. The slot's graph contains the
work that the decoder queues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from trt_perception.errors import OutputError
from trt_perception.gpu import DeviceBuffer, PinnedBuffer, Stream, clear_async, copy_async
from trt_perception.images.detections import Detections
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.candidates import Candidates
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.tasks.segment import MASKS_TOPIC, mask_geometry
from trt_perception.model.tasks.task import ANNOTATIONS_TOPIC, DEBUG_IMAGE, TaskResult
from trt_perception.model.tensors import TensorSpec
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda.pinned_images import ImagePool, KernelImage
from trt_perception.stages.decode import bfloat16_to_float32, count_candidates, decode
from trt_perception.stages.gpu_kernels import HEAD_DTYPE, FrameKernels
from trt_perception.stages.selection import (
    build_detections,
    check_best_score,
    nan_scores_error,
)

#: The stages of a SlotDecoder, with the names of their NVTX ranges.
DECODER_STAGES: Final[Mapping[str, str]] = {'read_results': 'read results'}
#: Topics that need the mask image.
_MASK_TOPICS: Final = frozenset(
    topic.name for topic in (MASKS_TOPIC, ANNOTATIONS_TOPIC, DEBUG_IMAGE)
)


class SlotDecoder(Protocol):
    """Decodes the outputs of a slot's batches."""

    stage_ranges: ClassVar[Mapping[str, str]]

    def queue(
        self, batch: int, outputs: Mapping[str, int], spec: ModelSpec, stream: Stream
    ) -> None:
        """Queue the work that follows the engine.

        Args:
            batch: device address of the table of header addresses.
            outputs: maps the name of each output to its device address.
            spec: specification of the model for this batch size.
        """

    def read_results(
        self, spec: ModelSpec, letterboxes: Sequence[Letterbox], thresholds: Sequence[Thresholds]
    ) -> list[TaskResult | OutputError]:
        """Return the result of each frame, or the error of its outputs.

        Requires that the work of `queue` is done.

        Args:
            spec: the same specification as in `queue`.
            letterboxes: geometry of each frame. The batch may have room for more frames.
            thresholds: thresholds of each frame.
        """

    def candidate_count(self, spec: ModelSpec, thresholds: Thresholds) -> int:
        """Return the number of boxes above the threshold before NMS, in the first frame."""

    def queue_images(
        self, outputs: Mapping[str, int], place: int, letterbox: Letterbox, thresholds: Thresholds
    ) -> None:
        """Queue the kernels that draw images of a frame: masks or maps, and their copies.

        Args:
            outputs: the same addresses as in `queue`.
            place: index of the frame in the batch.
        """

    def close(self) -> None:
        """Free everything."""


class KernelDecoder:
    """Decodes dense outputs with kernels. Final boxes and task values are written to host memory.

    Args:
        spec: specification of the model for its largest batch.
        mask_images: the pool of memory for requested mask images; None if each result contains
            the prototypes and coefficients of its masks.
    """

    stage_ranges: ClassVar[Mapping[str, str]] = DECODER_STAGES

    def __init__(
        self,
        kernels: FrameKernels,
        spec: ModelSpec,
        stream: Stream,
        mask_images: ImagePool | None,
    ) -> None:
        self._kernels = kernels
        self._stream = stream
        self._mask_images = mask_images
        read = [spec.outputs[place] for _, place in spec.decoder_outputs]
        self._output = read[0].name
        self._prototypes = read[-1]
        self._numbered: dict[int, KernelImage] = {}  # by index in the batch
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            own = self._closing.enter_context
            self._scratch = own(DeviceBuffer(spec.batch * kernels.scratch_bytes))
            # The last kernel writes the result of a frame (7 KB) directly to pinned memory.
            self._result = own(PinnedBuffer(spec.batch * kernels.result_bytes))
            # Views of the result of each place: the head, and each field of the rows.
            self._rows = []
            for result in self._result.array.reshape(spec.batch, kernels.result_bytes):
                rows = result[HEAD_DTYPE.itemsize :].view(kernels.result_row)
                fields = [rows[name] for name in rows.dtype.names or ()]
                self._rows.append((result[: HEAD_DTYPE.itemsize].view(HEAD_DTYPE), fields))
            self._host_prototypes: PinnedBuffer | None = None
            if kernels.has_mask_kernel and mask_images is None:
                self._host_prototypes = own(PinnedBuffer(self._prototypes.size_bytes))
            clear_async(self._scratch.pointer, self._scratch.size, stream)
            undo.pop_all()

    def queue(
        self, batch: int, outputs: Mapping[str, int], spec: ModelSpec, stream: Stream
    ) -> None:
        """Queue the kernels, and a copy of the prototypes if results contain them."""
        scratch, result = self._scratch.pointer, self._result.device_pointer
        self._kernels.decode(batch, outputs[self._output], scratch, result, spec.batch, stream)
        if self._host_prototypes is not None:
            source, size = outputs[self._prototypes.name], self._prototypes.size_bytes
            copy_async(
                self._host_prototypes.pointer,
                source,
                size * spec.batch // self._prototypes.shape[0],
                stream,
            )

    def queue_images(
        self,
        outputs: Mapping[str, int],
        place: int,
        letterbox: Letterbox,
        thresholds: Thresholds,
    ) -> None:
        """Queue the kernel that draws the mask image of a frame."""
        image = None
        if thresholds.wanted_topics & _MASK_TOPICS:
            image = self.new_mask_image(letterbox)
        if image is not None:
            self.queue_mask_kernel(image, outputs, place, letterbox)
            image.record(self._stream)
            self._numbered[place] = image

    def new_mask_image(self, letterbox: Letterbox) -> KernelImage | None:
        """Return memory for the mask image of a frame; None if no mask image is made."""
        if self._mask_images is None or not self._kernels.has_mask_kernel:
            return None
        return self._mask_images.lend(letterbox.source_wh, 'uint16')

    def queue_mask_kernel(
        self, image: KernelImage, outputs: Mapping[str, int], place: int, letterbox: Letterbox
    ) -> None:
        """Queue the kernel that draws the masks into `image`.

        Args:
            image: the memory to draw into.
            outputs: maps the name of each output to its device address.
            place: index of the frame in the batch.
        """
        self._kernels.number_masks(
            self._scratch.pointer,
            outputs[self._prototypes.name],
            image.device_pointer,
            place,
            mask_geometry(letterbox, self._prototypes.shape[2:]),
            self._stream,
        )

    def read_results(
        self,
        spec: ModelSpec,
        letterboxes: Sequence[Letterbox],
        thresholds: Sequence[Thresholds],  # noqa: ARG002
    ) -> list[TaskResult | OutputError]:
        """Copy the result rows from pinned memory. The kernels have applied the thresholds."""
        found: list[TaskResult | OutputError] = []
        for place, letterbox in enumerate(letterboxes):
            try:
                found.append(self._found(spec, place, letterbox))
            except OutputError as error:  # noqa: PERF203
                found.append(error)
        self._numbered.clear()
        return found

    def _found(self, spec: ModelSpec, place: int, letterbox: Letterbox) -> Detections:
        """Return the detections of one frame. They do not refer to pinned memory.

        Raises:
            OutputError: the outputs for the frame are invalid.
        """
        head, fields = self._rows[place]
        count, passed, best_score, all_nan = head.item()
        if all_nan:
            raise nan_scores_error()
        check_best_score(best_score)
        xyxy, scores, class_ids, *rest = [field[:count].copy() for field in fields]
        task, task_values = spec.task, rest[0] if rest else None
        left_out = max(0, passed - self._kernels.limits.max_candidates)
        if task.is_oriented:  # the boxes are still in network pixels
            boxes = task.nms_boxes(xyxy, task_values)
            return build_detections(
                task, Candidates(boxes, scores, class_ids, task_values), letterbox, left_out
            )
        prototypes = None
        if self._host_prototypes is not None:
            prototypes = tensor_array(self._host_prototypes.array, self._prototypes)[place]
        attributes = task.detection_fields(xyxy, task_values, prototypes, letterbox)
        numbered = self._numbered.get(place)
        return Detections(
            xyxy, scores, class_ids, numbered=numbered, left_out=left_out, **attributes
        )

    def candidate_count(self, spec: ModelSpec, thresholds: Thresholds) -> int:  # noqa: ARG002
        """Return the number of boxes that the filter kernel counted."""
        return int(self._rows[0][0]['passed'][0])

    def close(self) -> None:
        """Free the buffers."""
        self._numbered.clear()
        self._rows.clear()
        self._closing.close()


class HostDecoder:
    """Copies all outputs to the host and decodes them there.

    Used if the kernels cannot decode the outputs. These outputs are small: 300 queries of a
    transformer with 80 classes have 100 KB. Also used if more than 1024 boxes may enter NMS.

    Args:
        spec: specification of the model for its largest batch, without open dimensions.
    """

    stage_ranges: ClassVar[Mapping[str, str]] = DECODER_STAGES

    def __init__(self, spec: ModelSpec, limits: DecodingLimits) -> None:
        self._limits = limits
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            self._outputs = {
                tensor.name: self._closing.enter_context(PinnedBuffer(tensor.size_bytes))
                for tensor in spec.outputs
            }
            undo.pop_all()

    def queue(
        self,
        batch: int,  # noqa: ARG002
        outputs: Mapping[str, int],
        spec: ModelSpec,
        stream: Stream,
    ) -> None:
        """Queue a copy of each output to pinned memory."""
        for tensor in spec.outputs:
            pinned = self._outputs[tensor.name]
            copy_async(pinned.pointer, outputs[tensor.name], tensor.size_bytes, stream)

    def read_results(
        self, spec: ModelSpec, letterboxes: Sequence[Letterbox], thresholds: Sequence[Thresholds]
    ) -> list[TaskResult | OutputError]:
        """Decode the copied outputs on the host."""
        return decode(self._arrays(spec), spec, letterboxes, thresholds, self._limits)

    def candidate_count(self, spec: ModelSpec, thresholds: Thresholds) -> int:
        """Return the number of boxes that pass the decoder's threshold."""
        return count_candidates(self._arrays(spec), spec, thresholds)

    def queue_images(
        self,
        outputs: Mapping[str, int],
        place: int,
        letterbox: Letterbox,
        thresholds: Thresholds,
    ) -> None:
        """Do nothing, because results contain the values for masks and maps."""

    def _arrays(self, spec: ModelSpec) -> list[npt.NDArray[Any]]:
        """Return views of the outputs, in the order of the specification."""
        return [tensor_array(self._outputs[tensor.name].array, tensor) for tensor in spec.outputs]

    def close(self) -> None:
        """Free the buffers."""
        self._closing.close()


def tensor_array(content: npt.NDArray[np.uint8], tensor: TensorSpec) -> npt.NDArray[Any]:
    """Return the bytes of a tensor as an array. bfloat16, which NumPy lacks, becomes float32.

    Args:
        content: uint8 (n,), starting with the bytes of the tensor.
    """
    own = content[: tensor.size_bytes]
    if tensor.dtype == 'bfloat16':
        return bfloat16_to_float32(own.view(np.uint16)).reshape(tensor.shape)
    return own.view(np.dtype(tensor.dtype)).reshape(tensor.shape)
