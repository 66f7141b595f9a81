# SPDX-License-Identifier: Apache-2.0
"""Makes the requested maps of each image with kernels: classes and their probability, or depth.

The kernels run after the graph. Only the maps are copied to the host, each behind free memory for
the header of a message. A batch is complete before the maps of its last frame are copied, so this
copy overlaps the host's work on the results. `KernelMaps` waits for the copy of a map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar, Final, NamedTuple

import numpy as np

from trt_perception.errors import OutputError
from trt_perception.gpu import (
    DeviceBuffer,
    Event,
    PinnedBuffer,
    Stream,
    copy_async,
    upload_once,
)
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.cell_taps import cell_taps, tap_dtype
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.images.results.map_size import map_size_wh
from trt_perception.model.decoder import DepthScaling
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tasks.depth import DEPTH_TOPIC, RELATIVE_DEPTH_TOPIC
from trt_perception.model.tasks.semantic import CLASS_CONFIDENCE_TOPIC, CLASS_MAP_TOPIC
from trt_perception.model.tasks.task import DEBUG_IMAGE, TaskResult
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda.pinned_images import ImagePool, KernelImage
from trt_perception.pipelines.cuda.results import DECODER_STAGES
from trt_perception.stages.gpu_kernels import FrameKernels

#: Topics that need each kind of map.
_TOPICS: Final = {
    'class_ids': {CLASS_MAP_TOPIC.name, CLASS_CONFIDENCE_TOPIC.name, DEBUG_IMAGE.name},
    'confidence': {CLASS_CONFIDENCE_TOPIC.name},
    'depth': {DEPTH_TOPIC.name, RELATIVE_DEPTH_TOPIC.name, DEBUG_IMAGE.name},
}
#: Largest size in bytes of all tables that stay in device memory for later frames. The tables of
#: a 1080p image have 24 to 384 KB, so the tables of 64 cameras fit.
_MAX_TABLE_BYTES: Final = 32 * 2**20


class _Tables(NamedTuple):
    """The results of `cell_taps` in device memory: first columns, then rows.

    Attributes:
        rows_offset: position of the first row in bytes.
    """

    memory: DeviceBuffer
    rows_offset: int


class MapDecoder:
    """A SlotDecoder for models whose outputs are maps.

    Args:
        kernels: the kernels, compiled for the model. They must have a ``map_layout``.
        map_size: value of the parameter ``map_size``.
    """

    stage_ranges: ClassVar[Mapping[str, str]] = DECODER_STAGES

    def __init__(
        self,
        kernels: FrameKernels,
        spec: ModelSpec,
        stream: Stream,
        images: ImagePool,
        map_size: str,
    ) -> None:
        assert kernels.map_layout is not None
        self._kernels = kernels
        self._stream = stream
        self._images = images
        self._map_size = map_size
        self._layout = kernels.map_layout
        read = [spec.outputs[place] for _, place in spec.decoder_outputs]
        self._output = read[0]
        self._second_output = read[1].name if self._layout.second_output else ''
        self._scaling_for = spec.decoder.depth_scaling
        # In the order of their last use, the oldest first.
        self._tables: dict[tuple[Letterbox, tuple[int, int]], _Tables] = {}
        self._made: dict[int, dict[str, KernelImage]] = {}  # by index in the batch
        self._closing = ExitStack()
        with ExitStack() as undo:
            undo.enter_context(self._closing)
            own = self._closing.enter_context
            # The event after the last kernel, and before the copies of its maps. On a Jetson,
            # block the thread instead of spinning, because CPU cores are scarce.
            self._checked: Event = own(Event(blocking=images.device.integrated))
            # One int32 per image, which a kernel sets to 1 if a value is impossible.
            self._flags = own(PinnedBuffer(4 * spec.batch))
            self._device_maps = DeviceBuffer(0)
            undo.pop_all()

    def queue(
        self, batch: int, outputs: Mapping[str, int], spec: ModelSpec, stream: Stream
    ) -> None:
        """Do nothing: the wanted maps change from frame to frame, but the graph does not."""

    def queue_images(
        self, outputs: Mapping[str, int], place: int, letterbox: Letterbox, thresholds: Thresholds
    ) -> None:
        """Queue the kernel that makes the wanted maps of a frame, and their copies."""
        made = self._made[place] = self.new_maps(letterbox, thresholds.wanted_topics)
        if made:
            addresses = self.queue_kernel(made, outputs, place, letterbox, thresholds)
            self._checked.record(self._stream)
            self.queue_copies(made, addresses)
            for image in made.values():
                image.record(self._stream)

    def new_maps(self, letterbox: Letterbox, wanted: frozenset[str]) -> dict[str, KernelImage]:
        """Return memory for the wanted maps of a frame, by kind; empty if the pool has none."""
        size_wh = map_size_wh(self._map_size, letterbox)
        kinds = ('depth',) if self._layout.kind == 'depth' else ('class_ids', 'confidence')
        if self._layout.kind == 'ids':
            kinds = kinds[:1]
        made = {}
        for kind in kinds:
            if wanted & _TOPICS[kind]:
                image = self._images.lend(size_wh, 'float32' if kind == 'depth' else 'uint8')
                if image is None:
                    return {}  # one map of a frame without the other would look like a fault
                made[kind] = image
        return made

    def queue_kernel(
        self,
        made: Mapping[str, KernelImage],
        outputs: Mapping[str, int],
        place: int,
        letterbox: Letterbox,
        thresholds: Thresholds,
    ) -> list[int]:
        """Queue the kernel that makes maps. Return the device address of each map.

        Args:
            made: memory for the maps, from `new_maps`; at least one.
            outputs: maps the name of each output to its device address.
            place: index of the frame in the batch.
        """
        self._flags.array.view(np.int32)[place] = 0
        size_wh = next(iter(made.values())).size_wh
        addresses = self._device_addresses([image.size_bytes for image in made.values()])
        memory, rows_offset = self._tables_of(letterbox, size_wh)
        self._kernels.make_map(
            (outputs[self._output.name], outputs.get(self._second_output, 0)),
            (memory.pointer, memory.pointer + rows_offset),
            (*(*addresses, 0)[:2], self._flags.device_pointer + 4 * place),
            place,
            size_wh,
            self._depth_scaling(letterbox, thresholds),
            self._stream,
        )
        return addresses

    def queue_copies(self, made: Mapping[str, KernelImage], addresses: Sequence[int]) -> None:
        """Queue the copies of maps to the host, from the addresses of `queue_kernel`."""
        for address, image in zip(addresses, made.values(), strict=True):
            copy_async(image.pointer, address, image.size_bytes, self._stream)

    def read_results(
        self,
        spec: ModelSpec,
        letterboxes: Sequence[Letterbox],
        thresholds: Sequence[Thresholds],
    ) -> list[TaskResult | OutputError]:
        """Return the maps of each frame, in memory of the pool. Waits for the kernels."""
        if any(self._made.values()):
            self._checked.synchronize()
        found: list[TaskResult | OutputError] = []
        flags = self._flags.array.view(np.int32)
        for place, letterbox in enumerate(letterboxes):
            maps = self._made.pop(place, {})
            if maps and flags[place]:
                found.append(self._layout.invalid_values_error(len(spec.class_names)))
            else:
                is_metric = self._depth_scaling(letterbox, thresholds[place]).is_metric
                found.append(KernelMaps(maps, letterbox, is_metric))
        self._made.clear()
        return found

    def _depth_scaling(self, letterbox: Letterbox, thresholds: Thresholds) -> DepthScaling:
        """Return how the cells of a frame become depths."""
        return self._scaling_for(thresholds.network_focal_length(letterbox), thresholds.sky)

    def candidate_count(self, spec: ModelSpec, thresholds: Thresholds) -> int:  # noqa: ARG002
        """Return 0, because maps have no boxes."""
        return 0

    def _device_addresses(self, sizes: Sequence[int]) -> list[int]:
        """Return device addresses for maps of these sizes in bytes.

        All frames share this memory, because the stream makes and copies one map after the other.
        """
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + -(-size // 256) * 256)
        if starts[-1] > self._device_maps.size:
            larger = DeviceBuffer(starts[-1])
            self._stream.synchronize()  # copies of earlier maps may still read the old memory
            self._device_maps.close()
            self._device_maps = larger
        return [self._device_maps.pointer + start for start in starts[:-1]]

    def _tables_of(self, letterbox: Letterbox, size_wh: tuple[int, int]) -> _Tables:
        """Return the tables of a geometry. Create and upload them at the first use."""
        key = letterbox, size_wh
        tables = self._tables.pop(key, None)
        if tables is None:
            rows, columns = self._output.shape[-2:]
            upsampling, count = self._layout.upsampling, self._kernels.taps
            taps = cell_taps(letterbox, (columns, rows), size_wh, upsampling, count)
            values = np.concatenate(taps)
            self._make_room_for_tables(values.nbytes)
            with ExitStack() as undo:
                memory = undo.enter_context(DeviceBuffer(values.nbytes))
                upload_once(values, memory.pointer, self._stream)
                undo.pop_all()
            tables = _Tables(memory, size_wh[0] * tap_dtype(count).itemsize)
        self._tables[key] = tables
        return tables

    def _make_room_for_tables(self, size: int) -> None:
        """Free the least recently used tables until further tables of `size` bytes fit."""
        used = sum(tables.memory.size for tables in self._tables.values())
        while self._tables and used + size > _MAX_TABLE_BYTES:
            oldest = self._tables.pop(next(iter(self._tables))).memory
            used -= oldest.size
            self._stream.synchronize()  # kernels of earlier maps may still read the tables
            oldest.close()

    def close(self) -> None:
        """Free the buffers."""
        self._made.clear()
        with self._closing, ExitStack() as own:
            for tables in self._tables.values():
                own.callback(tables.memory.close)
            own.callback(self._device_maps.close)
            # Called first, because copies of maps may still read and write the memory.
            own.callback(self._stream.synchronize)
        self._tables.clear()
