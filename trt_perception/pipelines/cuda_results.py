"""How boxes come back from the GPU: decoded there by kernels, or here from the outputs.

A slot has one of the two; the queued part of either is captured into the slot's graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trt_perception.gpu import DeviceBuffer, PinnedBuffer, Stream, clear_async, copy_async
from trt_perception.images.detections import Detections
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.candidates import Candidates
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.tasks.segment import mask_geometry
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.tensors import TensorSpec
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.mask_images import MaskImage, MaskImagePool
from trt_perception.stages.decode import bfloat16_to_float32, count_candidates, decode
from trt_perception.stages.gpu_kernels import RESULT_HEAD_BYTES, FrameKernels
from trt_perception.stages.selection import build_detections, check_scores

__all__ = ['HostDecoder', 'KernelDecoder', 'SlotDecoder', 'tensor_array']


class SlotDecoder(Protocol):
    """The end of a batch's way through a slot."""

    def queue(
        self, batch: int, outputs: Mapping[str, int], spec: ModelSpec, stream: Stream
    ) -> None:
        """Queue what follows the engine.

        Args:
            batch: device address of what says where the frames are.
            outputs: device addresses by name.
            spec: the model's for this size of batch.
            stream: queued on it.
        """

    def collect(
        self, spec: ModelSpec, letterboxes: Sequence[Letterbox], thresholds: Sequence[Thresholds]
    ) -> list[TaskResult]:
        """Return what is in each frame once the queued work is done.

        Args:
            spec: as it was queued.
            letterboxes: geometry of each frame, which may be fewer than the batch has room for.
            thresholds: of each frame.
        """

    def candidate_count(self, spec: ModelSpec, thresholds: Thresholds) -> int:
        """Return how many boxes of the first frame were above the threshold, before NMS."""

    def queue_mask_image(
        self, outputs: Mapping[str, int], place: int, letterbox: Letterbox
    ) -> None:
        """Queue, behind all else, the picture of a frame's masks, where a kernel makes it.

        Args:
            outputs: as they were queued.
            place: of the frame.
            letterbox: its geometry.
        """

    def close(self) -> None:
        """Free everything."""


class KernelDecoder:
    """Dense outputs: kernels decode, only final boxes come back, and what belongs to each.

    Args:
        kernels: compiled for the model.
        spec: the model's for its largest batch.
        stream: all work is queued on it.
        mask_images: for pictures of masks, which are made when they are asked for; None: what
            masks are made of comes back with each frame.
    """

    def __init__(
        self,
        kernels: FrameKernels,
        spec: ModelSpec,
        stream: Stream,
        mask_images: MaskImagePool | None,
    ) -> None:
        self._kernels = kernels
        self._stream = stream
        self._mask_images = mask_images
        read = [spec.outputs[place] for _, place in spec.decoder_outputs]
        self._output = read[0].name
        self._prototypes = read[-1]
        self._numbered: dict[int, MaskImage] = {}  # by place
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            own = self._closing.enter_context
            self._scratch = own(DeviceBuffer(spec.batch * kernels.scratch_bytes))
            # Written by the last kernel where it lies: 7 KB need no copy of their own.
            self._result = own(PinnedBuffer(spec.batch * kernels.result_bytes))
            self._host_prototypes: PinnedBuffer | None = None
            if kernels.has_mask_kernel and mask_images is None:
                self._host_prototypes = own(PinnedBuffer(self._prototypes.size_bytes))
            clear_async(self._scratch.pointer, self._scratch.size, stream)
            undo.pop_all()

    def queue(
        self, batch: int, outputs: Mapping[str, int], spec: ModelSpec, stream: Stream
    ) -> None:
        """Queue the kernels, and a copy of the prototypes where they come back."""
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

    def queue_mask_image(
        self, outputs: Mapping[str, int], place: int, letterbox: Letterbox
    ) -> None:
        """See SlotResult."""
        image = self.new_mask_image(letterbox)
        if image is not None:
            self.queue_mask_kernel(image, outputs, place, letterbox)
            image.record(self._stream)
            self._numbered[place] = image

    def new_mask_image(self, letterbox: Letterbox) -> MaskImage | None:
        """Return memory for the picture of a frame's masks, None where there are no pictures."""
        if self._mask_images is None or not self._kernels.has_mask_kernel:
            return None
        return self._mask_images.lend(letterbox.source_wh)

    def queue_mask_kernel(
        self, image: MaskImage, outputs: Mapping[str, int], place: int, letterbox: Letterbox
    ) -> None:
        """Queue the kernel that draws it; else as ``queue_mask_image``."""
        self._kernels.number_masks(
            self._scratch.pointer,
            outputs[self._prototypes.name],
            image.device_pointer,
            place,
            mask_geometry(letterbox, self._prototypes.shape[2:]),
            self._stream,
        )

    def collect(
        self,
        spec: ModelSpec,
        letterboxes: Sequence[Letterbox],
        thresholds: Sequence[Thresholds],  # noqa: ARG002
    ) -> list[Detections]:
        """Copy the rows out of pinned memory; the kernels know geometry and thresholds."""
        found = []
        for place, letterbox in enumerate(letterboxes):
            own = self._result.array[place * self._kernels.result_bytes :]
            count = int(own[:4].view(np.int32)[0])
            end = RESULT_HEAD_BYTES + count * self._kernels.result_row.itemsize
            rows = own[RESULT_HEAD_BYTES:end].view(self._kernels.result_row)
            check_scores(rows['score'][:1])  # the best one comes first
            found.append(self._found(rows, spec, place, letterbox))
        self._numbered.clear()
        return found

    def _found(
        self, rows: npt.NDArray[Any], spec: ModelSpec, place: int, letterbox: Letterbox
    ) -> Detections:
        """Return the detections of one frame, in memory of their own."""
        task, xyxy = spec.task, rows['xyxy'].copy()
        scores, class_ids = rows['score'].copy(), rows['class_id'].copy()
        task_values = rows['task_values'] if task.task_value_count else None
        if task.is_oriented:  # in network pixels still
            boxes = task.nms_boxes(xyxy, task_values)
            return build_detections(
                task, Candidates(boxes, scores, class_ids, task_values), letterbox
            )
        prototypes = None
        if self._host_prototypes is not None:
            prototypes = tensor_array(self._host_prototypes.array, self._prototypes)[place]
        attributes = task.detection_fields(xyxy, task_values, prototypes, letterbox)
        numbered = self._numbered.get(place)
        return Detections(xyxy, scores, class_ids, numbered=numbered, **attributes)

    def candidate_count(self, spec: ModelSpec, thresholds: Thresholds) -> int:  # noqa: ARG002
        """Return what the filter kernel counted."""
        return int(self._result.array[:8].view(np.int32)[1])

    def close(self) -> None:
        """Free the buffers."""
        self._numbered.clear()
        self._closing.close()


class HostDecoder:
    """Copies all outputs to the host and decodes them there.

    Used if the kernels cannot decode the outputs, which are small then: 300 queries of a
    transformer with 80 classes have 100 KB. Also used if more than 1024 boxes may enter NMS.

    Args:
        spec: the model's for its largest batch, without open dimensions.
        limits: limits of decoding.
    """

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

    def collect(
        self, spec: ModelSpec, letterboxes: Sequence[Letterbox], thresholds: Sequence[Thresholds]
    ) -> list[TaskResult]:
        """Decode the outputs."""
        return decode(self._arrays(spec), spec, letterboxes, thresholds, self._limits)

    def candidate_count(self, spec: ModelSpec, thresholds: Thresholds) -> int:
        """Count what the decoder lets pass."""
        return count_candidates(self._arrays(spec), spec, thresholds)

    def queue_mask_image(
        self, outputs: Mapping[str, int], place: int, letterbox: Letterbox
    ) -> None:
        """Do nothing: what masks are made of comes back."""

    def _arrays(self, spec: ModelSpec) -> list[npt.NDArray[Any]]:
        """Return the outputs where they lie, in the order of the spec's."""
        return [tensor_array(self._outputs[tensor.name].array, tensor) for tensor in spec.outputs]

    def close(self) -> None:
        """Free the buffers."""
        self._closing.close()


def tensor_array(content: npt.NDArray[np.uint8], tensor: TensorSpec) -> npt.NDArray[Any]:
    """Return the bytes of a tensor as an array; NumPy has no bfloat16."""
    own = content[: tensor.size_bytes]
    if tensor.dtype == 'bfloat16':
        return bfloat16_to_float32(own.view(np.uint16)).reshape(tensor.shape)
    return own.view(np.dtype(tensor.dtype)).reshape(tensor.shape)
