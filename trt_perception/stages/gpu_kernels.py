# SPDX-License-Identifier: Apache-2.0
"""Launch the CUDA kernels before the engine (letterbox) and after it (boxes, masks, maps)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_double, c_float, c_int, c_void_p
from importlib.resources import files
from typing import Final

import numpy as np

from trt_perception.gpu import Device, Kernels, Stream, compile_kernels
from trt_perception.images.detections import MaskGeometry
from trt_perception.images.results.cell_taps import AXIS_TAPS
from trt_perception.model.decoder import AnchorRowLayout, DepthScaling, MapLayout
from trt_perception.model.grids import check_anchor_count
from trt_perception.model.input_layout import MAX_BATCH
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import TensorSpec
from trt_perception.stages.frame_header import FORMAT_NUMBERS, FRAME_PARAMETERS, FrameHeaderWriter

_C_TYPES: Final = {'float32': 'float', 'float16': 'Half', 'bfloat16': 'BFloat'}
#: C types for the data types of a pixel mask. Its values are 0 and 1, so 8-bit types are equal.
_PIXEL_MASK_C_TYPES: Final = {
    **_C_TYPES,
    'int64': 'long long',
    'int32': 'int',
    **dict.fromkeys(('int8', 'uint8', 'bool'), 'u8'),
}
#: C types for the data types of class ids.
_ID_C_TYPES: Final = {'uint8': 'u8', 'int32': 'int', 'int64': 'long long'}
_BLOCK_SHAPE: Final = (32, 8, 1)

#: The largest number of boxes in the kernels' NMS.
MAX_CANDIDATES: Final = 1024

#: A result starts with the number of rows, the number of anchors above the thresholds, the highest
#: score of these anchors (0 without anchors), and whether the scores of all anchors are NaN.
HEAD_DTYPE: Final = np.dtype(
    [('count', '<i4'), ('passed', '<i4'), ('best_score', '<f4'), ('all_nan', '<i4')]
)
#: The rows follow, in source pixels (oriented boxes in network pixels). Each row ends with the
#: values of the task.
ROW_DTYPE: Final = np.dtype([('xyxy', '<f4', (4,)), ('score', '<f4'), ('class_id', '<i4')])


class FrameKernels:
    """The kernels, compiled for one model on one device. Each launch processes a whole batch.

    The result of a frame does not depend on the other frames of its batch, or on its index.

    Args:
        limits: limits of decoding. ``max_candidates`` must be a multiple of 32, or above 1024.

    Attributes:
        limits: the limits of decoding with which the kernels were compiled.
        has_decode_kernels: whether ``decode`` can be called. True if the decoder has
            ``anchor_row_layout``, and at most 1024 boxes enter NMS.
        has_mask_kernel: whether ``number_masks`` can be called. True for masks from prototypes.
        map_layout: the decoder's ``map_layout`` if ``make_map`` can be called, else None.
        taps: number of cells that make a pixel of a map, for each axis (``cell_taps``).
        result_row: dtype of a result row: the fields of ROW_DTYPE, then ``task_values`` as
            the network outputs them. An oriented box is in network pixels, before its rotation.
        scratch_bytes: device memory of the decoding kernels for each frame of a batch. Must be
            cleared before the first launch.
        result_bytes: size of the result of each frame, in bytes.

    Raises:
        CudaError: NVRTC is missing or fails.
        EngineError: the number of grid cells differs from the number of anchors in the output.
    """

    def __init__(self, device: Device, spec: ModelSpec, limits: DecodingLimits) -> None:
        self.limits = limits
        task = spec.task
        rows = (
            spec.decoder.anchor_row_layout() if limits.max_candidates <= MAX_CANDIDATES else None
        )
        decoder_outputs = [spec.outputs[place] for _, place in spec.decoder_outputs]
        output, prototypes = decoder_outputs[0], decoder_outputs[-1]
        self.header = FrameHeaderWriter(len(spec.class_names))
        self.has_decode_kernels = rows is not None
        self.has_mask_kernel = self.has_decode_kernels and task.prototype_count > 0
        task_values = ('task_values', '<f4', (task.task_value_count,))
        self.result_row = (
            np.dtype([*ROW_DTYPE.descr, task_values]) if task.task_value_count else ROW_DTYPE
        )
        self.map_layout = spec.decoder.map_layout()
        self.taps = 0
        self._anchors = 0
        self._network_wh = spec.preprocessing.input_size
        self._pixel_mask = spec.pixel_mask
        if rows is not None:
            self._anchors = output.shape[1 if rows.transposed else 2]
            if rows.strides:
                check_anchor_count(self._anchors, rows.strides, self._network_wh)
        self.scratch_bytes = self._scratch_bytes(task)
        self.result_bytes = HEAD_DTYPE.itemsize + self.result_row.itemsize * limits.max_detections
        constants = _letterbox_constants(spec) | {
            'CLASS_WORDS': self.header.class_words,
            'FRAME_PARAMETERS': ', '.join(FRAME_PARAMETERS),
            'MAX_BATCH': MAX_BATCH,
        }
        sampling = 'antialiased' if spec.preprocessing.antialias else spec.preprocessing.filter
        sources = ['frame.cuh', 'pixels.cuh', f'{sampling}.cuh', 'letterbox.cu']
        if spec.pixel_mask is not None:
            sources.append('pixel_mask.cu')
            _, mask_rows, mask_columns = spec.pixel_mask.shape
            constants |= {
                'MASK_T': _PIXEL_MASK_C_TYPES[spec.pixel_mask.dtype],
                'MASK_WIDTH': mask_columns,
                'MASK_HEIGHT': mask_rows,
            }
        if rows is not None:
            sources += ['decode.cu', 'keep.cu']
            constants |= self._decode_constants(spec, rows, output)
        if self.has_mask_kernel:
            sources.append('masks.cu')
            constants |= {
                'PROTOTYPE_T': _C_TYPES[prototypes.dtype],
                'PROTOTYPE_ROWS': prototypes.shape[2],
                'PROTOTYPE_COLUMNS': prototypes.shape[3],
            }
        if self.map_layout is not None:
            sources.append('maps.cu')
            self.taps = _tap_count(self.map_layout, output, spec.preprocessing)
            constants |= _map_constants(self.map_layout, decoder_outputs, self.taps)
            constants['CLASSES'] = len(spec.class_names)
        source = _kernel_source(constants, sources)
        self._kernels = Kernels(compile_kernels(source, device.compute_capability))

    def _decode_constants(
        self, spec: ModelSpec, rows: AnchorRowLayout, output: TensorSpec
    ) -> dict[str, object]:
        """Map the name of each constant in the kernel source for boxes to its value."""
        constants: dict[str, object] = {
            'OUTPUT_T': _C_TYPES[output.dtype],
            'ANCHORS': self._anchors,
            'CLASSES': len(spec.class_names),
            'OBJECTNESS': int(rows.objectness),
            'TRANSPOSED': int(rows.transposed),
            'CLASS_AGNOSTIC': int(self.limits.class_agnostic),
            'MAX_CANDIDATES': self.limits.max_candidates,
            'MAX_DETECTIONS': self.limits.max_detections,
            'TASK_VALUE_COUNT': spec.task.task_value_count,
            'ORIENTED': int(spec.task.is_oriented),
            'PROTOTYPES': int(self.has_mask_kernel),
        }
        if rows.strides:
            constants['GRID_STRIDES'] = f'{{{", ".join(map(str, rows.strides))}}}'
        return constants

    def _scratch_bytes(self, task: Task) -> int:
        """Return an upper bound for the size of ``struct Scratch`` in bytes.

        The terms of the sum are, in order: counts, 64-bit keys, 16-bit classes, boxes, overlap
        bits, centres and covariances of oriented boxes, rows for the masks, and padding.
        """
        max_candidates = self.limits.max_candidates
        return (
            16
            + 8 * (self._anchors + max_candidates)
            + 2 * (self._anchors + max_candidates)
            + 16 * max_candidates
            + max_candidates * max_candidates // 8
            + 20 * max_candidates * task.is_oriented
            + self.result_row.itemsize * self.limits.max_detections * self.has_mask_kernel
            + 64
        )

    def letterbox(self, batch: int, tensor: int, max_frames: int, stream: Stream) -> None:
        """Queue the kernel that fills the input tensor from the frames.

        Args:
            batch: device address of the table from ``batch_table``.
            tensor: device address of the input.
            max_frames: batch size of the engine. With fewer frames, the rest of the tensor keeps
                its values.
        """
        grid = (*_block_counts(self._network_wh), max_frames)
        self._launch('letterbox', grid, _BLOCK_SHAPE, (batch, tensor), stream)

    def mark_image(self, batch: int, mask: int, max_frames: int, stream: Stream) -> None:
        """Queue the kernel that fills the input ``pixel_mask``, which the model must have.

        Args:
            batch: device address of the table from ``batch_table``.
            mask: device address of the input.
            max_frames: batch size of the engine. With fewer frames, the rest of the mask keeps
                its values.
        """
        assert self._pixel_mask is not None
        _, rows, columns = self._pixel_mask.shape
        grid = (*_block_counts((columns, rows)), max_frames)
        self._launch('pixel_mask', grid, _BLOCK_SHAPE, (batch, mask), stream)

    def decode(
        self, batch: int, output: int, scratch: int, result: int, max_frames: int, stream: Stream
    ) -> None:
        """Queue the kernels that write the final boxes to ``result``.

        Args:
            batch: device address of the table from ``batch_table``.
            output: device address of the network's output.
            scratch: device address of ``scratch_bytes`` for each frame.
            result: device address of ``result_bytes`` for each frame.
            max_frames: batch size of the engine.
        """
        one_block = (1024, 1, 1)
        anchors = (-(-self._anchors // 32), 1, max_frames)
        self._launch('filter', anchors, _BLOCK_SHAPE, (batch, output, scratch), stream)
        self._launch(
            'select_best', (1, 1, max_frames), one_block, (batch, output, scratch), stream
        )
        rows = (self.limits.max_candidates // 8, 1, max_frames)
        self._launch('overlaps', rows, _BLOCK_SHAPE, (batch, scratch), stream)
        self._launch(
            'keep', (1, 1, max_frames), one_block, (batch, output, scratch, result), stream
        )

    def number_masks(
        self,
        scratch: int,
        prototypes: int,
        numbers: int,
        place: int,
        geometry: MaskGeometry,
        stream: Stream,
    ) -> None:
        """Queue the kernel that writes the mask number of each pixel. Call this after ``decode``.

        Args:
            scratch: the argument of ``decode``.
            prototypes: device address of the network's output with the prototypes.
            numbers: device address of uint16 (height, width) in the size of the image. Pixels of
                the i-th detection become i, counted from 1. Others become 0. Where masks overlap,
                the better detection wins.
            place: index of the frame in the batch.
            geometry: the position of the image in the prototypes.
        """
        width, height = geometry.size_wh
        pointers = [(each, c_void_p) for each in (scratch, prototypes, numbers)]
        counted = [(each, c_int) for each in (place, width, height, geometry.fine)]
        placed = [(each, c_double) for each in (*geometry.scale, *geometry.offset)]
        grid = (*_block_counts(geometry.size_wh), 1)
        self._kernels.launch(
            'number_masks', grid, _BLOCK_SHAPE, [*pointers, *counted, *placed], stream
        )

    def make_map(
        self,
        outputs: tuple[int, int],
        taps: tuple[int, int],
        made: tuple[int, int, int],
        place: int,
        size_wh: tuple[int, int],
        scaling: DepthScaling,
        stream: Stream,
    ) -> None:
        """Queue the kernel that makes the maps of one image.

        Args:
            outputs: device addresses of the network's output, and of its second output or 0.
            taps: device addresses of the results of ``cell_taps``: columns, rows.
            made: device addresses of the map (class ids, uint8, or depth, float32), of the
                confidence (uint8) or 0, and of an int32 that becomes 1 if a value is impossible.
            place: index of the image in the batch.
            size_wh: width and height of the map in pixels.
            scaling: how cells become depths; not used for classes.
        """
        is_metric, is_inverse, *values = scaling
        pointers = [(each, c_void_p) for each in (*outputs, *taps, *made)]
        numbers = [(int(each), c_int) for each in (place, *size_wh, is_metric, is_inverse)]
        floats = [(each, c_float) for each in values]
        grid = (*_block_counts(size_wh), 1)
        self._kernels.launch(
            'make_map', grid, _BLOCK_SHAPE, [*pointers, *numbers, *floats], stream
        )

    def close(self) -> None:
        """Unload the kernels."""
        self._kernels.close()

    def _launch(
        self,
        name: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        pointers: tuple[int, ...],
        stream: Stream,
    ) -> None:
        self._kernels.launch(
            name, grid, block, [(pointer, c_void_p) for pointer in pointers], stream
        )


def _block_counts(size_wh: tuple[int, int]) -> tuple[int, int]:
    """Return the number of blocks that cover an image, in x and y."""
    return -(-size_wh[0] // _BLOCK_SHAPE[0]), -(-size_wh[1] // _BLOCK_SHAPE[1])


def _kernel_source(constants: Mapping[str, object], names: Sequence[str]) -> str:
    """Return the source of all kernels: constants, and the named files of ``stages/kernels``."""
    folder = files('trt_perception.stages') / 'kernels'
    defined = [f'#define {name} {value}\n' for name, value in constants.items()]
    return ''.join([*defined, *((folder / name).read_text() for name in names)])


def _letterbox_constants(spec: ModelSpec) -> dict[str, object]:
    """Map the name of each constant in the kernel source for the letterbox to its value."""
    preprocessing = spec.preprocessing
    width, height = preprocessing.input_size
    gain, bias = preprocessing.gain_and_bias()
    padding = preprocessing.padding()
    return {
        **{f'FORMAT_{name.upper()}': number for name, number in FORMAT_NUMBERS.items()},
        'EACH_FORMAT(DO)': ' '.join(f'DO(FORMAT_{name.upper()})' for name in FORMAT_NUMBERS),
        **{f'GAIN_{i}': _exact_literal(gain[i]) for i in range(3)},
        **{f'BIAS_{i}': _exact_literal(bias[i]) for i in range(3)},
        **{f'PADDING_{i}': _exact_literal(padding[i]) for i in range(3)},
        'INPUT_T': _C_TYPES[spec.input.dtype],
        'NET_WIDTH': width,
        'NET_HEIGHT': height,
        'RGB_ORDER': int(preprocessing.color_order == 'rgb'),
        'ROUND_PIXELS': int(preprocessing.round_pixels),
        'BICUBIC': int(preprocessing.filter == 'bicubic'),
        'CROP': int(preprocessing.resize == 'center_crop'),
        'INFINITY_F': '__int_as_float(0x7f800000)',
        'NAN_F': '__int_as_float(0x7fffffff)',
    }


def _tap_count(layout: MapLayout, output: TensorSpec, preprocessing: Preprocessing) -> int:
    """Return the largest number of cells that make a pixel of a map, for each axis."""
    count = AXIS_TAPS[layout.upsampling]
    has_padding = preprocessing.resize != 'stretch'
    is_coarse = output.shape[-2:] != preprocessing.input_size[::-1]
    # The padding may end inside a cell. The map is then resized twice.
    return count * count if has_padding and is_coarse else count


def _map_constants(
    layout: MapLayout, outputs: Sequence[TensorSpec], taps: int
) -> dict[str, object]:
    """Map the name of each constant in the kernel source for maps to its value."""
    rows, columns = outputs[0].shape[-2:]
    has_ids = layout.kind == 'ids'
    return {
        **{name: number for number, name in enumerate(('LOGITS', 'IDS', 'DEPTH'))},
        'MAP_KIND': layout.kind.upper(),
        'MAP_T': (_ID_C_TYPES if has_ids else _C_TYPES)[outputs[0].dtype],
        'MAP_PIXEL': 'float' if layout.kind == 'depth' else 'u8',
        'MAP_ROWS': rows,
        'MAP_COLUMNS': columns,
        'SECOND_T': _C_TYPES[outputs[1].dtype] if layout.second_output else 'float',
        'SECOND_IS_FIELD_OF_VIEW': int(layout.second_output == 'field_of_view'),
        'SECOND_IS_SKY': int(layout.second_output == 'sky'),
        'TAPS': taps,
    }


def _exact_literal(value: np.float32) -> str:
    """Return a C++ expression for exactly this float32."""
    return f'__int_as_float({int(value.view(np.int32))})'
