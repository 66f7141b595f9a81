"""The CUDA kernels of the frame path: letterbox before the engine, boxes and masks behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import c_double, c_int, c_void_p
from importlib.resources import files
from typing import Final

import numpy as np

from trt_perception.gpu import Device, Kernels, Stream, compile_kernels
from trt_perception.images.detections import MaskGeometry
from trt_perception.model.grids import check_anchor_count
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.tasks.task import Task
from trt_perception.stages.batch_sizes import MAX_BATCH
from trt_perception.stages.frame_header import FORMAT_NUMBERS, FRAME_PARAMETERS, FrameHeaderWriter

__all__ = ['MAX_CANDIDATES', 'RESULT_HEAD_BYTES', 'RESULT_ROW', 'FrameKernels']

_C_TYPES: Final = {'float32': 'float', 'float16': 'Half', 'bfloat16': 'BFloat'}
_BLOCK: Final = (32, 8, 1)

#: Most boxes that the kernels' NMS has room for.
MAX_CANDIDATES: Final = 1024

#: The result starts with two int32: how many rows follow, and how many anchors passed the
#: thresholds. Then come the rows, in source pixels; what the task carries stands behind this.
RESULT_ROW: Final = np.dtype([('xyxy', '<f4', (4,)), ('score', '<f4'), ('class_id', '<i4')])
RESULT_HEAD_BYTES: Final = 16


class FrameKernels:
    """The kernels, compiled for one model on one device; each launch serves a whole batch.

    A frame's numbers are the same in whatever batch it is, and at whichever place.

    Args:
        device: compiled for its architecture and loaded there.
        spec: the model's tensors, preprocessing and decoder.
        limits: limits of decoding; ``max_candidates`` is a multiple of 32, or above 1024.

    Attributes:
        limits: as given.
        decodes: ``decode`` is there: the decoder has ``anchor_row_layout``, and at most 1024
            boxes enter NMS.
        numbers_masks: ``number_masks`` is there: masks are made of prototypes.
        result_row: dtype of a row of the result: RESULT_ROW, and as ``task_values`` the values
            behind the scores as they are. Oriented boxes are in network pixels, before they turn.
        header: makes what the kernels read of a frame besides its pixels.
        scratch_bytes: device memory that the decoding kernels need for each frame of a batch,
            cleared before the first.
        result_bytes: memory for the result of each frame.

    Raises:
        CudaError: NVRTC is missing or fails.
        EngineError: a grid has another number of cells than the output has anchors.
    """

    def __init__(self, device: Device, spec: ModelSpec, limits: DecodingLimits) -> None:
        self.limits = limits
        task = spec.task
        rows = (
            spec.decoder.anchor_row_layout() if limits.max_candidates <= MAX_CANDIDATES else None
        )
        read = [spec.outputs[place] for _, place in spec.decoder_outputs]
        output, prototypes = read[0], read[-1]
        self.header = FrameHeaderWriter(len(spec.class_names))
        self.has_decode_kernels = rows is not None
        self.has_mask_kernel = self.has_decode_kernels and task.prototype_count > 0
        task_values = ('task_values', '<f4', (task.task_value_count,))
        self.result_row = (
            np.dtype([*RESULT_ROW.descr, task_values]) if task.task_value_count else RESULT_ROW
        )
        self._anchors = 0
        self._network_wh = spec.preprocessing.input_size
        if rows is not None:
            self._anchors = output.shape[1 if rows.transposed else 2]
            if rows.strides:
                check_anchor_count(self._anchors, rows.strides, self._network_wh)
        self.scratch_bytes = self._scratch_bytes(task)
        self.result_bytes = RESULT_HEAD_BYTES + self.result_row.itemsize * limits.max_detections
        constants = _letterbox_constants(spec) | {
            'CLASS_WORDS': self.header.class_words,
            'FRAME_PARAMETERS': ', '.join(FRAME_PARAMETERS),
            'MAX_BATCH': MAX_BATCH,
        }
        sampling = 'antialiased.cuh' if spec.preprocessing.antialias else 'bilinear.cuh'
        sources = ['frame.cuh', 'pixels.cuh', sampling, 'letterbox.cu']
        if rows is not None:
            sources += ['decode.cu', 'keep.cu']
            constants |= {
                'OUTPUT_T': _C_TYPES[output.dtype],
                'ANCHORS': self._anchors,
                'CLASSES': len(spec.class_names),
                'OBJECTNESS': int(rows.objectness),
                'TRANSPOSED': int(rows.transposed),
                'CLASS_AGNOSTIC': int(limits.class_agnostic),
                'MAX_CANDIDATES': limits.max_candidates,
                'MAX_DETECTIONS': limits.max_detections,
                'TASK_VALUE_COUNT': task.task_value_count,
                'ORIENTED': int(task.is_oriented),
                'PROTOTYPES': int(self.has_mask_kernel),
            }
            if rows.strides:
                constants['GRID_STRIDES'] = f'{{{", ".join(map(str, rows.strides))}}}'
        if self.has_mask_kernel:
            sources.append('masks.cu')
            constants |= {
                'PROTOTYPE_T': _C_TYPES[prototypes.dtype],
                'PROTOTYPE_ROWS': prototypes.shape[2],
                'PROTOTYPE_COLUMNS': prototypes.shape[3],
            }
        source = _source(constants, sources)
        self._kernels = Kernels(compile_kernels(source, device.compute_capability))

    def _scratch_bytes(self, task: Task) -> int:
        """Return at least what struct Scratch takes.

        Counts, 64-bit keys, 16-bit classes, boxes, overlap bits; spreads of oriented boxes; rows
        for the masks.
        """
        max_candidates = self.limits.max_candidates
        return (
            8
            + 8 * (self._anchors + max_candidates)
            + 2 * (self._anchors + max_candidates)
            + 16 * max_candidates
            + max_candidates * max_candidates // 8
            + 20 * max_candidates * task.is_oriented
            + self.result_row.itemsize * self.limits.max_detections * self.has_mask_kernel
            + 64
        )

    def letterbox(self, batch: int, tensor: int, most: int, stream: Stream) -> None:
        """Queue: fill the input tensor from the frames.

        Args:
            batch: device address of what ``batch_table`` makes.
            tensor: device address of the input.
            most: frames that the engine takes; where there are fewer the rest stays as it is.
            stream: queued on it.
        """
        width, height = self._network_wh
        grid = (-(-width // _BLOCK[0]), -(-height // _BLOCK[1]), most)
        self._launch('letterbox', grid, _BLOCK, (batch, tensor), stream)

    def decode(
        self, batch: int, output: int, scratch: int, result: int, most: int, stream: Stream
    ) -> None:
        """Queue: write the final boxes to ``result``; as ``letterbox``."""
        one = (1024, 1, 1)
        anchors = (-(-self._anchors // 32), 1, most)
        self._launch('filter', anchors, _BLOCK, (batch, output, scratch), stream)
        self._launch('select_best', (1, 1, most), one, (batch, output, scratch), stream)
        rows = (self.limits.max_candidates // 8, 1, most)
        self._launch('overlaps', rows, _BLOCK, (batch, scratch), stream)
        self._launch('keep', (1, 1, most), one, (batch, output, scratch, result), stream)

    def number_masks(
        self,
        scratch: int,
        prototypes: int,
        numbers: int,
        place: int,
        geometry: MaskGeometry,
        stream: Stream,
    ) -> None:
        """Queue: write of each pixel of a frame whose mask it is in; behind ``decode``.

        Args:
            scratch: as ``decode``.
            prototypes: device address of the output.
            numbers: device address of uint16 (height, width) of the image: 0 for no mask, i for
                that of the i-th detection, counted from 1, the better one on top.
            place: of the frame in the batch.
            geometry: where the image lies in the prototypes.
            stream: queued on it.
        """
        width, height = geometry.size_wh
        pointers = [(each, c_void_p) for each in (scratch, prototypes, numbers)]
        counted = [(each, c_int) for each in (place, width, height, geometry.fine)]
        placed = [(each, c_double) for each in (*geometry.scale, *geometry.offset)]
        grid = (-(-width // _BLOCK[0]), -(-height // _BLOCK[1]), 1)
        self._kernels.launch('number_masks', grid, _BLOCK, [*pointers, *counted, *placed], stream)

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


def _source(constants: Mapping[str, object], names: Sequence[str]) -> str:
    """Return the source of all kernels: the constants, then files of ``stages/kernels``."""
    folder = files('trt_perception.stages') / 'kernels'
    defined = [f'#define {name} {value}\n' for name, value in constants.items()]
    return ''.join([*defined, *((folder / name).read_text() for name in names)])


def _letterbox_constants(spec: ModelSpec) -> dict[str, object]:
    """Return what the letterbox kernel is compiled with, by the name that its source uses."""
    preprocessing = spec.preprocessing
    width, height = preprocessing.input_size
    std = np.array(preprocessing.std, np.float64)
    gain = (preprocessing.scale / std).astype(np.float32)
    bias = (-np.array(preprocessing.mean, np.float64) / std).astype(np.float32)
    return {
        **{f'FORMAT_{name.upper()}': number for name, number in FORMAT_NUMBERS.items()},
        'EACH_FORMAT(DO)': ' '.join(f'DO(FORMAT_{name.upper()})' for name in FORMAT_NUMBERS),
        **{f'GAIN_{i}': _literal(gain[i]) for i in range(3)},
        **{f'BIAS_{i}': _literal(bias[i]) for i in range(3)},
        'INPUT_T': _C_TYPES[spec.input.dtype],
        'NET_WIDTH': width,
        'NET_HEIGHT': height,
        'PAD_VALUE': preprocessing.pad_value,
        'RGB_ORDER': int(preprocessing.color_order == 'rgb'),
        'INFINITY_F': '__int_as_float(0x7f800000)',
        'NAN_F': '__int_as_float(0x7fffffff)',
    }


def _literal(value: np.float32) -> str:
    """Return a float that C++ reads back to the bit."""
    return f'__int_as_float({int(value.view(np.int32))})'
