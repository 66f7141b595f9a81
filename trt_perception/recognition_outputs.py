"""Which decoders the outputs' names and shapes fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trt_perception.decoder_spec import DECODERS
from trt_perception.errors import EngineError
from trt_perception.manifest import TensorSpec
from trt_perception.output_layout import assign_outputs
from trt_perception.recognition_facts import Facts

__all__ = ['Candidate', 'anchors_per_cell', 'candidates']

# Detectors of boxes have grids of such strides, some of them two or four.
_STRIDE_SETS: Final = (
    (8, 16, 32),
    (8, 16, 32, 64),
    (4, 8, 16, 32),
    (4, 8, 16),
    (8, 16),
    (16, 32),
    (8,),
    (16,),
    (32,),
)


@dataclass(frozen=True)
class Candidate:
    """A decoder that fits, and why.

    Attributes:
        decoder: a name of DECODERS.
        sentence: what was seen -> what was chosen.
    """

    decoder: str
    sentence: str


def anchors_per_cell(anchors: int, input_size: tuple[int, int] | None) -> int:
    """Return how many anchors a cell has in grids whose cells sum up to all anchors.

    Returns:
        1 (YOLOv8, YOLOX), 3 (YOLOv5, 7), or 0 where no grids explain the number or the size of
        the input or the number is open.
    """
    if input_size is None or anchors < 1:
        return 0
    width, height = input_size
    for per_cell in (1, 3):
        for strides in _STRIDE_SETS:
            cells = sum(-(-width // stride) * -(-height // stride) for stride in strides)
            if anchors == per_cell * cells:
                return per_cell
    return 0


def candidates(
    name: str,
    input_size: tuple[int, int] | None,
    outputs: tuple[TensorSpec, ...],
    classes: int | None,
    facts: Facts,
) -> list[Candidate]:
    """Return the decoders that fit: one where there is no doubt.

    Args:
        name: the model's file name, for messages.
        input_size: width and height, None where open.
        outputs: as the runtime reports them.
        classes: how many class names there are, None where nobody said.
        facts: what metadata and config.json say.

    Raises:
        EngineError: the outputs are those of something else than a detector of boxes.
    """
    _refuse_others(name, outputs)
    for open_fits in (False, True):  # an open dimension could be anything: only if nothing else
        fitting = [
            decoder
            for decoder, spec in DECODERS.items()
            if assign_outputs(spec, outputs, classes, open_fits=open_fits) is not None
        ]
        left = _without_impossible(fitting, input_size, outputs, facts)
        if left:
            break
    return [Candidate(decoder, f'{_listed(outputs)} -> {decoder}') for decoder in left]


def _refuse_others(name: str, outputs: tuple[TensorSpec, ...]) -> None:
    """Refuse by name what has more or other outputs than boxes."""
    masks = [tensor for tensor in outputs if 'mask' in tensor.name.lower()]
    prototypes = [tensor for tensor in outputs if len(tensor.shape) == 4]
    rows = [tensor for tensor in outputs if len(tensor.shape) == 3]
    if masks or (rows and prototypes):
        raise EngineError(
            f'{name}: {_listed(tuple(masks or prototypes))} beside the boxes is instance '
            'segmentation; expected a detector of boxes: export one'
        )
    if outputs and all(len(tensor.shape) in (4, 5) for tensor in outputs):
        raise EngineError(
            f'{name}: {_listed(outputs)} are the raw grids of a detector head; expected them '
            'decoded and joined, as (1, N, 5 + C): export with that inside (YOLOv7: --grid)'
        )


def _without_impossible(
    fitting: list[str],
    input_size: tuple[int, int] | None,
    outputs: tuple[TensorSpec, ...],
    facts: Facts,
) -> list[str]:
    """Leave out what the exporter never writes and what the number of anchors excludes."""
    if facts.exporter == 'ultralytics':
        fitting = [name for name in fitting if name in ('dense',)]
    if facts.exporter == 'yolov5':
        fitting = [name for name in fitting if name in ('dense_objectness_transposed',)]
    if len(outputs) == 1 and len(outputs[0].shape) == 3:
        rows_first = anchors_per_cell(outputs[0].shape[2], input_size)
        rows_last = anchors_per_cell(outputs[0].shape[1], input_size)
        excluded = _excluded(rows_first, rows_last)
        fitting = [name for name in fitting if name not in excluded]
    return fitting


def _excluded(rows_first: int, rows_last: int) -> set[str]:
    """Return what cannot be, given how many anchors a cell would have read either way."""
    first = {'dense', 'dense_objectness'}
    last = {'dense_transposed', 'dense_objectness_transposed', 'yolox'}
    if rows_first and not rows_last:
        return last
    if rows_last and not rows_first:
        # One anchor a cell without objectness, as nobody exports by default, stays possible.
        return first | ({'yolox'} if rows_last == 3 else set())
    return set()


def _listed(outputs: tuple[TensorSpec, ...]) -> str:
    return ', '.join(f'{tensor.name} {list(tensor.shape)}' for tensor in outputs)
