# SPDX-License-Identifier: Apache-2.0
"""Runs a model on the images of one part of a bag, and stores the raw results.

A part depends on its bag, its model and its parameters only. So its file is the same in any
process and after any interruption. No batch has images of two parts.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from trt_perception.bags.bag import BagMessage
from trt_perception.bags.file_bag import FileBag
from trt_perception.bags.open_bag import open_bag
from trt_perception.errors import ConfigError, CudaError, ImageError, OutputError
from trt_perception.gpu import Device
from trt_perception.images.detections import Detections
from trt_perception.images.frame import Frame, frame_from_bgr
from trt_perception.images.results.image_limits import is_too_large_result
from trt_perception.model.tasks.segment import MASKS_TOPIC
from trt_perception.model.tasks.task import (
    ANNOTATIONS_TOPIC,
    LABEL_INFO,
    Task,
    TaskResult,
    Topic,
)
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.bags.image_reading import (
    BagImage,
    FrameMemories,
    ImageTopic,
    ReadAhead,
    image_order,
)
from trt_perception.offline.bags.part import Job, ModelFacts, Part
from trt_perception.offline.bags.records import (
    FrameRecord,
    PartReport,
    PartWriter,
    StoredMasks,
)
from trt_perception.offline.bags.result_messages import WholeImage, whole_image_messages
from trt_perception.offline.building.package_versions import IMAGE_PACKAGES, package_versions
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.cuda.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.host.array_pipeline import ArrayPipeline
from trt_perception.pipelines.host.onnx_runtime_pipeline import OnnxRuntimePipeline
from trt_perception.pipelines.image_sized_pipeline import ImageSizedPipeline
from trt_perception.pipelines.open_pipeline import open_pipeline
from trt_perception.pipelines.pipeline import FrameError, Pipeline, detect_one
from trt_perception.pipelines.warm_up import warm_up
from trt_perception.wire.camera_info import normalised_focal_lengths

_RUNTIMES: Final = (
    'numpy',
    'onnxruntime',
    'onnxruntime-gpu',
    'tensorrt',
    'tensorrt-cu12',
    'tensorrt-cu13',
    *IMAGE_PACKAGES,
)


class _UnreadImage(NamedTuple):
    """An image without a result: the reason as the node counts it, and a sentence about it."""

    reason: str
    sentence: str


def _name(image: BagImage) -> str:
    """Return the camera and the log time of an image."""
    camera = f' of camera {image.camera}' if image.camera else ''
    return f'image{camera} at {image.log_ns / 1e9:.3f} s'


def result_topics(task: Task, *, with_masks: bool) -> tuple[Topic, ...]:
    """Return the topics of a task that a bag gets.

    Drawings for viewers are left out. Masks are large, so they must be asked for.

    Raises:
        ConfigError: masks are asked for, and the task has none.
    """
    if with_masks and MASKS_TOPIC not in task.topics:
        found = f'the model has task {task}, without masks'
        raise ConfigError('--masks', found, fix='leave it out')
    left_out = {ANNOTATIONS_TOPIC} if with_masks else {ANNOTATIONS_TOPIC, MASKS_TOPIC}
    return tuple(topic for topic in task.topics if topic not in left_out)


class PartRunner:
    """Runs parts in this process. Keeps the model and the last bag open between parts.

    Args:
        job: what all parts share.
        device_id: CUDA device.

    Raises:
        TrtPerceptionError: the model cannot be used with these parameters.

    Attributes:
        facts: what is known about the model.
    """

    def __init__(self, job: Job, device_id: int) -> None:
        self._job = job
        options = job.parameters.pipeline_options()
        self._options = replace(
            options,
            device_id=device_id,
            jpeg_on_gpu=job.has_compressed,
            nodes_on_this_machine=job.processes,
        )
        self._image_wh: tuple[int, int] | None = None
        self._bag: FileBag | None = None
        self._bag_path = ''
        self._bag_thread = ThreadPoolExecutor(1, 'bag')
        self._pipeline: Pipeline = open_pipeline(job.model, self._options)
        self._memories = self._new_memories()
        try:
            self.facts = self._find_facts(device_id)
            job.parameters.check(self._thresholds)
            warm_up(self._pipeline)
        except BaseException:
            self._pipeline.close()
            raise

    def _new_memories(self) -> FrameMemories | None:
        opened = self._pipeline
        opened = opened.opened if isinstance(opened, ImageSizedPipeline) else opened
        if isinstance(opened, ArrayPipeline):
            return None  # it reads pixels in place
        return FrameMemories(self._pipeline.allocate)

    def _thresholds(self, parameters: ParameterValues) -> Thresholds:
        spec = self._pipeline.spec
        wanted = frozenset(topic.name for topic in self.facts.topics if topic.on_demand)
        found = parameters.thresholds(spec.class_names, spec.task)
        return replace(found, wanted_topics=wanted)

    def _find_facts(self, device_id: int) -> ModelFacts:
        spec = self._pipeline.spec
        return ModelFacts(
            spec.class_names,
            result_topics(spec.task, with_masks=self._job.with_masks),
            (LABEL_INFO, *spec.task.label_topics),
            spec.task.finds_objects,
            spec.decoder.needs_focal_length,
            _runtime(self._pipeline, device_id),
            (*spec.evidence, *self._unused_parameters()),
        )

    def _unused_parameters(self) -> list[str]:
        spec, parameters = self._pipeline.spec, self._job.parameters
        every = [parameters.camera(name) for name in ('', *parameters.node.cameras)]
        return list(
            dict.fromkeys(
                sentence
                for own in every
                for sentence in own.unused_parameter_warnings(spec.task, spec.decoder)
            )
        )

    def run(self, part: Part, progress: Callable[[int], None]) -> None:
        """Run a part. Its file then exists.

        Args:
            progress: called with the number of further images that are finished.

        Raises:
            TrtPerceptionError: the bag cannot be opened, the file cannot be written, or the GPU
                failed.
        """
        self._follow_size(part.image_wh)
        bag = self._open(part.bag)
        report = PartReport()
        with PartWriter(part.target) as writer:
            for result in self._results(bag, part):
                if isinstance(result, _UnreadImage):
                    report.count_unread(*result)
                else:
                    report.images += 1
                    report.skipped += result.skipped
                    writer.add(result)
                progress(1)
            report.losses = part.losses_of(bag)
            writer.finish(report)
        if bag.losses:
            # A bag reports a loss once. Each part must report its losses, whatever ran before.
            self._close_bag()

    def close(self) -> None:
        """Close the model and the bag. Calling it twice does no harm."""
        self._close_bag()
        self._bag_thread.shutdown()
        if self._memories is not None:
            self._memories.close()
        self._pipeline.close()

    def _open(self, path: str) -> FileBag:
        # SQLite's connections belong to one thread.
        if self._bag is None or self._bag_path != path:
            self._close_bag()
            self._bag, self._bag_path = self._bag_thread.submit(open_bag, path).result(), path
        return self._bag

    def _close_bag(self) -> None:
        bag, self._bag = self._bag, None
        if bag is not None:
            self._bag_thread.submit(bag.close).result()

    def _follow_size(self, image_wh: tuple[int, int]) -> None:
        """Open a model that follows the size of images again for the images of another bag."""
        if not isinstance(self._pipeline, ImageSizedPipeline) or self._image_wh == image_wh:
            return
        if self._image_wh is not None:
            if self._memories is not None:
                self._memories.close()
            self._pipeline.close()
            self._pipeline = open_pipeline(self._job.model, self._options)
            self._memories = self._new_memories()
        self._image_wh = image_wh
        # If the model cannot follow this size, the images of the bag report the error. The size is
        # 0 if the first image cannot be read: then the next image decides.
        with contextlib.suppress(ImageError, OutputError):
            grey = frame_from_bgr(np.full((image_wh[1], image_wh[0], 3), 114, np.uint8))
            detect_one(self._pipeline, grey, Thresholds())

    def _results(self, bag: FileBag, part: Part) -> Iterator[FrameRecord | _UnreadImage]:
        """Yield the record or the error of each image, in the order of the images."""
        pipeline, parameters = self._pipeline, self._job.parameters
        thresholds = {
            camera.name: self._thresholds(parameters.camera(camera.name))
            for camera in part.cameras
        }
        needs_info = pipeline.spec.decoder.needs_focal_length or any(
            topic.message == 'sensor_msgs/CameraInfo' for topic in self.facts.topics
        )
        with self._read_ahead(bag, part, needs_info=needs_info) as images:
            free = deque(range(pipeline.depth))
            in_flight: deque[tuple[int, list[BagImage]]] = deque()
            chunk: list[BagImage] = []
            while True:
                # The memory of images is limited, so those in flight must not wait for others.
                while in_flight and images.must_wait:
                    yield from self._collect(in_flight, free)
                image = images.next_image()
                chunk += [image] if image is not None else []
                if len(chunk) == pipeline.batch or (image is None and chunk):
                    while not free:
                        yield from self._collect(in_flight, free)
                    in_flight.append((self._enqueue(free, chunk, thresholds), chunk))
                    chunk = []
                if image is None:
                    break
            while in_flight:
                yield from self._collect(in_flight, free)

    def _enqueue(
        self, free: deque[int], chunk: Sequence[BagImage], thresholds: Mapping[str, Thresholds]
    ) -> int:
        """Start a batch, and return its slot; -1 if no image of the chunk can be read."""
        pairs = [
            (image.frame, _with_calibration(thresholds[image.camera], image))
            for image in chunk
            if image.frame is not None
        ]
        if not pairs:
            return -1
        slot = free.popleft()
        frames, own = zip(*pairs, strict=True)
        self._pipeline.enqueue(slot, frames, own)
        return slot

    def _read_ahead(self, bag: FileBag, part: Part, *, needs_info: bool) -> ReadAhead:
        sources = {
            camera.topic: ImageTopic(
                camera.name,
                is_compressed=camera.is_compressed,
                decodes_jpeg=self._pipeline.decodes_jpeg,
                info_topic=camera.info_topic if needs_info else '',
            )
            for camera in part.cameras
        }
        topics = [*sources, *(each.info_topic for each in sources.values() if each.info_topic)]
        span = part.start_ns, part.end_ns

        def messages() -> Iterator[BagMessage]:
            for source in sources.values():
                if source.info_topic and (first := _first_message(bag, source.info_topic, span)):
                    source.use_calibration(first.data)
            return image_order(bag.messages(topics, *span))

        return ReadAhead(
            messages,
            sources,
            self._pipeline,
            self._bag_thread,
            self._memories,
            self._job.processes,
        )

    def _collect(
        self, in_flight: deque[tuple[int, list[BagImage]]], free: deque[int]
    ) -> Iterator[FrameRecord | _UnreadImage]:
        slot, chunk = in_flight.popleft()
        results = iter(self._pipeline.collect(slot) if slot >= 0 else ())
        for image in chunk:
            found = next(results) if image.error is None else image.error
            if isinstance(found, FrameError):
                yield _UnreadImage(found.reason, f'{_name(image)}: {found}')
            else:
                yield self._record(image, found.frame, found.found)
            image.release()
        if slot >= 0:
            free.append(slot)

    def _record(self, image: BagImage, frame: Frame, found: TaskResult) -> FrameRecord:
        size_wh = frame.width, frame.height
        base = FrameRecord(image.camera, image.log_ns, image.header, size_wh)
        if isinstance(found, Detections):
            is_cut = self._job.with_masks and (
                is_too_large_result(size_wh) or found.pictured is None
            )
            stored = _storable(found, size_wh, with_masks=self._job.with_masks and not is_cut)
            return replace(base, found=stored, skipped=int(is_cut))
        parameters = self._job.parameters.camera(image.camera)
        whole = WholeImage(
            image.header, found, self.facts.class_names, parameters, image.calibration
        )
        messages, skipped = whole_image_messages(whole, self.facts.topics)
        return replace(base, messages=tuple(messages), skipped=skipped)


def _first_message(bag: FileBag, topic: str, span: tuple[int, int]) -> BagMessage | None:
    """Return the first message of a topic in a span, otherwise the first one of the bag."""
    within = bag.messages([topic], *span)
    return next(within, None) or next(bag.messages([topic]), None)


def _with_calibration(thresholds: Thresholds, image: BagImage) -> Thresholds:
    """Return the thresholds of an image with the focal lengths of its camera, if known."""
    if image.calibration is None:
        return thresholds
    focal_lengths = normalised_focal_lengths(image.calibration)
    return replace(thresholds, normalised_focal_lengths=focal_lengths)


def _runtime(pipeline: Pipeline, device_id: int) -> dict[str, str]:
    """Return what changes the bits of results: the provider, the kind of GPU, and versions."""
    opened = pipeline.opened if isinstance(pipeline, ImageSizedPipeline) else pipeline
    provider = opened.provider if isinstance(opened, OnnxRuntimePipeline) else ''
    runtime = {'provider': provider or type(opened).__name__}
    if isinstance(opened, CudaPipeline) or provider not in ('', 'cpu'):
        # ONNX Runtime has its own CUDA, so cuda-bindings may be missing.
        with contextlib.suppress(CudaError, ImportError):
            runtime['gpu'] = Device(device_id).name
    return {**runtime, **package_versions(_RUNTIMES)}


def _storable(found: Detections, size_wh: tuple[int, int], *, with_masks: bool) -> Detections:
    """Return the objects with an image of mask numbers instead of prototypes."""
    masks = None
    if with_masks and found.pictured is not None:
        numbers = np.zeros(size_wh[::-1], np.uint16)
        found.pictured.number(numbers)
        masks = StoredMasks(numbers)
    return replace(found, masks=None, numbered=masks)
