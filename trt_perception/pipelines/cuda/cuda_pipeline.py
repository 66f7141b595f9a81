# SPDX-License-Identifier: Apache-2.0
"""The pipeline on the GPU: it uploads frames, launches one CUDA graph, and reads back the boxes.

A batch with dense outputs passes through a slot in these steps:

* `enqueue` writes a header in front of each message.
* `enqueue` uploads headers and pixels. It skips unchanged headers, and rows that no pixel of the
  input needs.
* The graph runs the letterbox kernel, TensorRT, and the kernels filter, select, overlaps and keep.
  The last kernel writes the results to pinned memory.
* `collect` waits for the event after the graph and reads the result rows of each frame.

Each slot has a graph for each batch size of the engine. CudaSlot describes how it runs a batch of
another size.

Outputs that are not dense are small. The graph of such a model ends with a copy of the outputs to
pinned memory, and `collect` decodes them on the host. If masks are requested, a kernel after the
graph draws the mask image while the boxes are published. Class or depth maps are made by a
kernel after the graph. `collect` waits for the kernels, but not for the copies of the last frame.

Each slot has its own stream, buffers, contexts and graphs, so the upload of one batch overlaps
the engine of another. The constructor allocates all memory except the memory of frames. If a frame
is larger than all earlier frames in its place, the device memory of this place grows. Callers
should put frames into memory from `allocate`. Other frames are copied to staging memory of the
slot, which is allocated for the first of these frames.

A batch with JPEG files or deferred frames takes these steps:

* `enqueue` uploads decoded frames as above.
* `enqueue` gives each file to a decoding thread, or decodes a single file at once.
* The thread reads the file, allocates memory if necessary, and writes the header.
* nvJPEG decodes the file into the device memory of the frame.
* The last thread of the batch uploads changed header addresses and launches the graph.

Files that are not JPEG, or that nvJPEG refuses, are decoded on the CPU by the same thread. A file
that cannot be decoded does not affect the other frames: `collect` returns its error.

Any thread may use a pipeline, but only one thread at a time. The thread's current CUDA device does
not matter.
Memory from `allocate` can be used by the pipelines of all GPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import CudaError, EngineError
from trt_perception.gpu import Device, Stream
from trt_perception.images.frame import DeferredFrame, Frame
from trt_perception.images.memory import HostMemory
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.input_layout import MAX_BATCH, batch_size, split_inputs
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.resolve_spec import resolve_model_spec
from trt_perception.model.tensors import ModelInfo
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda.frame_place import FrameMemory
from trt_perception.pipelines.cuda.header_templates import HeaderTemplates
from trt_perception.pipelines.cuda.jpeg_threads import JpegThreads
from trt_perception.pipelines.cuda.pinned_images import ImagePool
from trt_perception.pipelines.cuda.slot import CudaSlot, SizedContext
from trt_perception.pipelines.nvtx_ranges import mark_pipeline
from trt_perception.pipelines.pipeline import FrameError, Result
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory, grey_frame
from trt_perception.process.interruption import check_interruption
from trt_perception.stages.gpu_kernels import FrameKernels
from trt_perception.stages.tensorrt.runtime import TensorRtEngine

_LOG: Final = logging.getLogger(__name__)


class CudaPipeline:
    """A Pipeline on one GPU.

    Args:
        options: device, depth, decoding limits and overrides. The kernels have room for 1024
            candidates. If `max_candidates` is larger, outputs are copied to the host and decoded
            there, which is slower and meant for evaluation.
        returns_outputs: if True, results contain the network's values, from which masks and maps
            can be made in any size. If False, they contain the images for ``wanted_topics``.

    Attributes:
        spec: tensors, preprocessing, decoder and class names of the model, for its smallest batch.
        header_bytes: size of a frame's header. `allocate` reserves this room before the frame.
        decodes_jpeg: whether JPEG decoding on the GPU was requested and nvJPEG works.
        slots: the slots, for measurements of single steps.

    Raises:
        CudaError: the driver, the device or NVRTC is missing, or memory is not sufficient.
        EngineError: the plan is for another GPU or version, or its decoder is unknown.
        InterruptionError: the process was asked to end.
    """

    diagnostic_values: tuple[tuple[str, str], ...] = ()
    opening_reason = ''

    def __init__(
        self,
        model: ModelFile,
        options: PipelineOptions,
        *,
        returns_outputs: bool = False,
    ) -> None:
        self.depth = self.max_in_flight = options.depth
        self._busy_slots: set[int] = set()  # by index
        self._closing = ExitStack()
        with ExitStack() as undo:
            # If a later step fails, all earlier resources are freed.
            undo.enter_context(self._closing)
            self._device = Device(options.device_id)
            check_interruption()
            engine = TensorRtEngine(model, self._device, options.plugin_libraries)
            self._closing.callback(engine.close)
            self.runtime = engine.module
            streams = [self._closing.enter_context(Stream()) for _ in range(self.depth)]
            spec = _resolve_spec(model, options, engine, streams[0])
            sizes: list[list[SizedContext]] = []
            max_batch = options.max_batch or MAX_BATCH
            for stream in streams:
                sizes.append(self._open_contexts(engine, spec, stream, max_batch))
                max_batch = sizes[-1][-1].batch  # a size that failed is not tried again
            self.spec = sizes[0][0].spec
            self.batch = sizes[0][-1].batch
            _check_input(model.path.name, self.spec)
            check_interruption()
            kernels = FrameKernels(self._device, self.spec, options.limits)
            self._closing.callback(kernels.close)
            self.header_bytes = kernels.header.size
            # Created before the slots, so that it is freed after them.
            self._jpeg = self._start_jpeg_threads() if options.jpeg_on_gpu else None
            self.decodes_jpeg = self._jpeg is not None
            self.slots: list[CudaSlot] = []
            images = (
                None if returns_outputs else self._closing.enter_context(ImagePool(self._device))
            )
            headers = HeaderTemplates(kernels.header, self.spec.preprocessing)
            for stream, contexts in zip(streams, sizes, strict=True):
                slot = CudaSlot(
                    self._device, stream, contexts, kernels, headers, images, options.map_size
                )
                self._closing.callback(slot.close)
                self.slots.append(slot)
            self._warm_up_slots(use_graph=options.use_cuda_graph)
            if self._jpeg is not None:
                self._closing.callback(self._jpeg.stop)
            engine.save_runtime_cache()
            if options.nvtx:
                jpeg = [] if self._jpeg is None else [self._jpeg]
                mark_pipeline(self, [*self.slots, *(slot.decoder for slot in self.slots), *jpeg])
            undo.pop_all()

    def _warm_up_slots(self, *, use_graph: bool) -> None:
        """Run each slot once and capture its graphs."""
        with copy_to_pipeline_memory(self, [grey_frame()]) as (grey,):
            for slot in self.slots:
                check_interruption()
                # If the capture fails in one slot, it would fail and warn in the others, too.
                use_graph = slot.warm_up(grey, use_graph)

    def _open_contexts(
        self, engine: TensorRtEngine, spec: ModelSpec, stream: Stream, max_batch: int
    ) -> list[SizedContext]:
        """Create the contexts of a slot, one for each batch size, smallest first."""
        sizes: list[SizedContext] = []
        for batch in engine.batch_sizes_for(spec.input, max_batch):
            check_interruption()
            # A graph fixes the shapes of its context, so each size needs its own context. Only one
            # context of a slot runs at a time, so the contexts share their working memory.
            share = sizes[0].context if sizes else None
            try:
                sized = spec.with_batch_size(batch)
                context = engine.create_context(sized.input, stream, sized.auxiliary_inputs, share)
                self._closing.callback(context.close)
                # Only the context knows the final output shapes of a dynamic engine.
                sized = replace(sized, outputs=context.outputs)
                sized.check_outputs(sized.outputs)
            except EngineError as error:
                if not sizes:
                    raise
                # Some exports declare an open batch, but only work for one image.
                _LOG.warning('batches of %d images are not used: %s', batch, error)
                break
            sizes.append(SizedContext(sized, context))
        return sizes

    def _start_jpeg_threads(self) -> JpegThreads | None:
        """Start the decoding threads with nvJPEG. Return None if nvJPEG is not available."""
        try:
            jpeg = JpegThreads(self._device, self.depth, self.batch)
        except CudaError as error:
            if error.sticky:
                raise
            _LOG.info('nvJPEG is not available; JPEG files are decoded on the CPU: %s', error)
            return None
        self._closing.callback(jpeg.close)
        return jpeg

    def allocate(self, size: int) -> HostMemory:
        """Return page-locked memory of `size` bytes.

        Any thread may free the memory, also after `close`.
        """
        return FrameMemory(size, self.header_bytes, self._device)

    def enqueue(
        self, slot: int, frames: Sequence[Frame | DeferredFrame], thresholds: Sequence[Thresholds]
    ) -> None:
        """Upload frames and start the batch. With JPEG files, a decoding thread starts the batch.

        If no other slot is busy, a single JPEG file that is fast to decode is decoded before this
        method returns.
        """
        assert 0 < len(frames) == len(thresholds) <= self.batch
        self._device.use()
        cuda_slot = self.slots[slot]
        alone = not self._busy_slots
        self._busy_slots.add(slot)
        undecoded = cuda_slot.begin_upload(frames, thresholds)
        if undecoded:
            assert self._jpeg is not None, 'the pipeline cannot decode JPEG'
            self._jpeg.start_decoding(slot, cuda_slot, undecoded, alone=alone)
        else:
            cuda_slot.launch()

    def is_done(self, slot: int) -> bool:
        """Return whether `collect` would return at once, except for maps. Does not wait."""
        if self._jpeg is not None:
            if not self._jpeg.has_started(slot):
                return False
            if self._jpeg.has_failed(slot):
                return True
        self._device.use()
        cuda_slot = self.slots[slot]
        return not cuda_slot.launched or cuda_slot.finished.is_done()

    def collect(self, slot: int) -> list[Result | FrameError]:
        """Wait for the results of a slot and free the slot.

        A result is an ImageError if neither nvJPEG nor the CPU can decode the file, and an
        OutputError if the outputs for the frame are invalid.
        """
        if self._jpeg is not None:
            self._jpeg.wait(slot)
        self._device.use()
        results = self.slots[slot].collect()
        self._busy_slots.discard(slot)
        return results

    def close(self) -> None:
        """Free all memory, graphs and streams. May be called again."""
        # Callbacks run in reverse order, so this one is first. If it fails, all others still run.
        self._closing.callback(self._device.use)
        self._closing.close()


def _resolve_spec(
    model: ModelFile, options: PipelineOptions, engine: TensorRtEngine, stream: Stream
) -> ModelSpec:
    """Return the specification of the model, with output shapes from contexts on the stream."""
    name = model.path.name
    return resolve_model_spec(
        ModelInfo(
            name, engine.inputs, engine.outputs, model.metadata, model.config, str(model.path)
        ),
        model.manifest,
        options.overrides,
        find_output_shapes=lambda tensors: _output_shapes(name, engine, stream, tensors),
    )


def _output_shapes(
    name: str, engine: TensorRtEngine, stream: Stream, tensors: Mapping[str, npt.NDArray[Any]]
) -> list[tuple[int, ...]]:
    """Return the output shapes for the given input tensors, without running the engine.

    If the engine does not accept this number of images, the shapes of its smallest batch are used,
    with the requested number in the first dimension.
    """
    closed = [replace(tensor, shape=tensors[tensor.name].shape) for tensor in engine.inputs]
    asked = batch_size(split_inputs(name, closed)[0])
    batch = engine.batch_sizes_for(split_inputs(name, closed)[0], 1)[0]

    def with_batch(shape: tuple[int, ...], there: int, wanted: int) -> tuple[int, ...]:
        return (wanted, *shape[1:]) if there != wanted and shape[:1] == (there,) else shape

    closed = [replace(tensor, shape=with_batch(tensor.shape, asked, batch)) for tensor in closed]
    image, auxiliary_inputs = split_inputs(name, closed)
    context = engine.create_context(image, stream, auxiliary_inputs)
    try:
        return [with_batch(tensor.shape, batch, asked) for tensor in context.outputs]
    finally:
        context.close()


def _check_input(name: str, spec: ModelSpec) -> None:
    """Check that the letterbox kernel can write the input of the model.

    Raises:
        EngineError: the layout or type is not supported.
    """
    if spec.preprocessing.layout != 'nchw' or spec.input.dtype == 'uint8':
        raise EngineError(
            name,
            f'{spec.input.dtype}{list(spec.input.shape)}',
            expected='on the GPU, a float image input of shape (1, 3, height, width)',
            fix='export the model in this shape (tf2onnx: --inputs-as-nchw), or run the ONNX file',
        )
