"""Whole batches on the GPU: frames are uploaded, one CUDA graph runs, only boxes come back.

The way of a batch through a slot:

    enqueue   header in front of each message → upload up to its last pixel, or of the rows that
              are read, and of the header where the device has another → graph launch
    graph     letterbox kernel → TensorRT → filter, select, overlaps, keep → results in pinned
              memory
    collect   wait for the event behind the graph, read the rows of each frame

There is a graph for each size of batch that the engine runs; see CudaSlot for what is smaller.

That is for dense outputs. All others are small: there the graph ends with the outputs in pinned
memory, and collect decodes them on the host. Where somebody looks at masks, a kernel behind the
graph draws them as a picture of their numbers, while the boxes go out.

Each slot has its own stream, buffers, contexts and graphs, so the upload of one batch overlaps
the engine of another. Everything but memory for the frames themselves is allocated when the
pipeline is made; a frame larger than any before at its place in a slot grows that once. Whoever
brings frames puts them into memory of ``allocate``; those that lie elsewhere are copied to such
memory of the slot, which the first of them allocates.

A batch that has files in it, or messages that are not read yet, takes another way there:

    enqueue   pixels as above → each file to one of the threads that decode, or decoded at once
    threads   read the file, make room → header → nvJPEG decodes to where pixels would be uploaded
    the last  where headers lie, if that has changed → graph launch

A file of another kind, or that nvJPEG refuses, is decoded on the CPU by the same thread. One that
nothing decodes costs the others of its batch nothing: ``collect`` says why.

Any thread may use a pipeline, one at a time, whatever GPU it used before; memory for frames serves
the pipelines of all GPUs.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import CudaError, EngineError, ImageError
from trt_perception.gpu import Device, Stream
from trt_perception.images.frame import PipelineInput
from trt_perception.images.memory import HostMemory
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.input_layout import batch_size, split_inputs
from trt_perception.model.model_spec import ModelSpec, resolve_model_spec
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.tensors import ModelInfo
from trt_perception.parameters.frame import Thresholds
from trt_perception.pipelines.cuda_slot import CudaSlot, SizedContext
from trt_perception.pipelines.frame_place import FrameMemory
from trt_perception.pipelines.header_templates import HeaderTemplates
from trt_perception.pipelines.jpeg_threads import JpegThreads
from trt_perception.pipelines.mask_images import MaskImagePool
from trt_perception.pipelines.pipeline import Result
from trt_perception.pipelines.warm_up import copy_to_pipeline_memory, grey_frame
from trt_perception.process.interruption import check_interruption
from trt_perception.stages.batch_sizes import MAX_BATCH
from trt_perception.stages.gpu_kernels import FrameKernels
from trt_perception.stages.tensorrt_runtime import TensorRtContext, TensorRtEngine

__all__ = ['CudaPipeline']

_LOG: Final = logging.getLogger(__name__)


class CudaPipeline:
    """A Pipeline on one GPU.

    Args:
        model: a TensorRT plan.
        options: how the model is run. Beyond ``max_candidates`` of 1024, for which the kernels
            have room, outputs come back whole and are decoded on the host: slower, for evaluation.
        returns_prototypes: what masks are made of comes back with each frame; else a picture of
            them does, of frames of which it is wanted.

    Attributes:
        depth: batches in flight.
        batch: most frames of each.
        spec: the model's tensors, preprocessing, decoder and class names, for its smallest batch.
        header_bytes: bytes of a frame's header, for which ``allocate`` leaves room in front.
        decodes_jpeg: nvJPEG works here, and was asked for.
        runtime: the module that runs the engine.
        slots: for measuring single steps.

    Raises:
        CudaError: no driver, no such device, no NVRTC, or not enough memory.
        EngineError: the plan is for another GPU or version, or it is not known how to use it.
        InterruptionError: the process was asked to end.
    """

    def __init__(
        self,
        model: ModelFile,
        options: PipelineOptions,
        *,
        returns_prototypes: bool = False,
    ) -> None:
        self.depth = options.depth
        self._busy_slots: set[int] = set()  # numbers of slots
        self._closing = ExitStack()
        with ExitStack() as undo:
            # Whatever fails below, what was made before it is freed.
            undo.enter_context(self._closing)
            self._device = Device(options.device_id)
            check_interruption()
            engine = TensorRtEngine(model, self._device)
            self._closing.callback(engine.close)
            self.runtime = engine.header.module
            streams = [self._closing.enter_context(Stream()) for _ in range(self.depth)]
            spec = _resolve_spec(model, options, engine, streams[0])
            sizes: list[list[SizedContext]] = []
            max_batch = options.max_batch or MAX_BATCH
            for stream in streams:
                sizes.append(self._open_contexts(engine, spec, stream, max_batch))
                max_batch = sizes[-1][-1].batch  # what one slot cannot run the others cannot
            self.spec = sizes[0][0].spec
            self.batch = sizes[0][-1].batch
            _check_input(model.path.name, self.spec)
            check_interruption()
            kernels = FrameKernels(self._device, self.spec, options.limits)
            self._closing.callback(kernels.close)
            self.header_bytes = kernels.header.size
            # Before the slots, so that it is freed after them.
            self._jpeg = self._open_jpeg() if options.jpeg_on_gpu else None
            self.decodes_jpeg = self._jpeg is not None
            self.slots: list[CudaSlot] = []
            mask_images = (
                None
                if returns_prototypes
                else self._closing.enter_context(MaskImagePool(self._device))
            )
            headers = HeaderTemplates(kernels.header, self.spec.preprocessing)
            for stream, contexts in zip(streams, sizes, strict=True):
                slot = CudaSlot(self._device, stream, contexts, kernels, headers, mask_images)
                self._closing.callback(slot.close)
                self.slots.append(slot)
            self._prepare(use_graph=options.use_cuda_graph)
            if self._jpeg is not None:
                self._closing.callback(self._jpeg.stop)
            engine.save_runtime_cache()
            undo.pop_all()

    def _prepare(self, *, use_graph: bool) -> None:
        """Run each slot once, and capture its graphs."""
        with copy_to_pipeline_memory(self, [grey_frame()]) as (grey,):
            for slot in self.slots:
                check_interruption()
                # Where one slot has no graph the others would fail alike, and say so again.
                use_graph = slot.prepare(grey, use_graph)

    def _open_contexts(
        self, engine: TensorRtEngine, spec: ModelSpec, stream: Stream, max_batch: int
    ) -> list[SizedContext]:
        """Return what a slot runs batches with, smallest first."""
        sizes: list[SizedContext] = []
        for batch in engine.batch_sizes_for(spec.input, max_batch):
            check_interruption()
            # A graph holds its context's shapes, so that each size has one of its own. They run
            # one at a time, and share the memory that they work in.
            share = sizes[0].context if sizes else None
            try:
                sizes.append(
                    self._open_context(engine, spec.with_batch_size(batch), stream, share)
                )
            except EngineError as error:
                if not sizes:
                    raise
                # Some exports leave the batch open and hold to one image inside.
                _LOG.warning('batches of %d images are left out: %s', batch, error)
                break
        return sizes

    def _open_context(
        self,
        engine: TensorRtEngine,
        spec: ModelSpec,
        stream: Stream,
        share: TensorRtContext | None,
    ) -> SizedContext:
        context = engine.create_context(spec.input, stream, spec.auxiliary_inputs, share)
        self._closing.callback(context.close)
        # A dynamic engine's outputs have their final shapes only now.
        context_spec = replace(spec, outputs=context.outputs)
        context_spec.check_outputs(context_spec.outputs)
        return SizedContext(context_spec, context)

    def _open_jpeg(self) -> JpegThreads | None:
        """Return nvJPEG and its threads, None where the machine does without."""
        try:
            jpeg = JpegThreads(self._device, self.depth, self.batch)
        except CudaError as error:
            if error.sticky:
                raise
            _LOG.info('JPEGs would be decoded on the CPU: %s', error)
            return None
        self._closing.callback(jpeg.close)
        return jpeg

    def allocate(self, size: int) -> HostMemory:
        """Return page-locked memory, which any thread may free, after ``close`` too."""
        return FrameMemory(size, self.header_bytes, self._device)

    def enqueue(
        self, slot: int, frames: Sequence[PipelineInput], thresholds: Sequence[Thresholds]
    ) -> None:
        """Copy frames to the device and start the work on them; soon, where there are files.

        A single file is decoded before this returns where no other slot is taken.
        """
        assert 0 < len(frames) == len(thresholds) <= self.batch
        self._device.use()
        cuda_slot = self.slots[slot]
        alone = not self._busy_slots
        self._busy_slots.add(slot)
        undecoded = cuda_slot.begin_upload(frames, thresholds)
        if undecoded:
            assert self._jpeg is not None, 'only a pipeline that decodes JPEG gets one'
            self._jpeg.start(slot, cuda_slot, undecoded, alone=alone)
        else:
            cuda_slot.launch()

    def is_done(self, slot: int) -> bool:
        """Tell without waiting whether the slot's boxes are there."""
        if self._jpeg is not None:
            if not self._jpeg.has_started(slot):
                return False
            if self._jpeg.has_failed(slot):
                return True
        self._device.use()
        return self.slots[slot].is_done()

    def collect(self, slot: int) -> list[Result | ImageError]:
        """Wait for the slot's boxes; a file may be one that neither nvJPEG nor the CPU decodes."""
        if self._jpeg is not None:
            self._jpeg.wait(slot)
        self._device.use()
        results = self.slots[slot].collect()
        self._busy_slots.discard(slot)
        return results

    def close(self) -> None:
        """Free everything on the device."""
        self._closing.callback(self._device.use)  # comes first, and if it fails the rest is freed
        self._closing.close()


def _resolve_spec(
    model: ModelFile, options: PipelineOptions, engine: TensorRtEngine, stream: Stream
) -> ModelSpec:
    """Return how the engine is fed and read; a stream is needed to ask for shapes of outputs."""
    name = model.path.name
    return resolve_model_spec(
        ModelInfo(name, engine.inputs, engine.outputs, model.metadata, model.config),
        model.manifest,
        options.overrides,
        run_for_shapes=lambda tensors: _output_shapes(name, engine, stream, tensors),
    )


def _output_shapes(
    name: str, engine: TensorRtEngine, stream: Stream, tensors: Mapping[str, npt.NDArray[Any]]
) -> list[tuple[int, ...]]:
    """Return the shapes that outputs have for inputs of these; the engine need not run for it.

    It may not take as few images as these: then its smallest batch says what one of them gives.
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
    """Refuse an input that the letterbox kernel does not write."""
    if spec.batch > MAX_BATCH:
        raise EngineError(
            name,
            f'it takes {spec.batch} images at once',
            expected=f'at most {MAX_BATCH}',
            fix='build it for fewer: --batch 1,4,8 where the ONNX file leaves the batch open',
        )
    if spec.preprocessing.layout != 'nchw' or spec.input.dtype == 'uint8':
        raise EngineError(
            name,
            f'{spec.input.dtype}{list(spec.input.shape)}',
            expected='on the GPU, an image input that is float and (1, 3, height, width)',
            fix='export the detector so (tf2onnx: --inputs-as-nchw), or run its ONNX file',
        )
