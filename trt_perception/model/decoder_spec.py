"""How outputs are read: the families of outputs, their constants, and a name for each way.

A family is one form of output tensors (docs/decoders.md describes each); its constants are what
the tensors do not show. The parameter model.decoder takes a name of DECODERS; a manifest spells
the family and its constants out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from trt_perception.files.json_records import Reader, choice, json_content
from trt_perception.files.json_section import JsonSection

__all__ = [
    *('DECODERS', 'FAMILIES', 'MASK_FAMILIES', 'QUERY_FAMILIES', 'ROW_FAMILIES'),
    *('DecoderSpec', 'families_of'),
]

#: The constants that each family has; a manifest must hold these and no others.
FAMILIES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        'dense': ('objectness', 'transposed'),
        'yolox_raw': ('strides',),
        'end_to_end': (),
        'efficient_nms': (),
        'onnx_nms': ('box_format',),
        'rtdetr_ultralytics': (),
        'rtdetr_end_to_end': (),
        'detr': ('activation',),
        'labels_boxes_scores': (),
        'torchvision': (),
        'tensorflow': (),
    }
)

#: Those of transformers, with a row for each query.
QUERY_FAMILIES: Final = ('detr', 'labels_boxes_scores', 'rtdetr_end_to_end', 'rtdetr_ultralytics')

#: Those whose rows may hold more behind box, scores and class, as the task says.
ROW_FAMILIES: Final = ('dense', 'end_to_end')
#: Families that may have a mask of its own for each object, in an output next to the boxes.
MASK_FAMILIES: Final = ('detr', 'torchvision')


def families_of(task: str) -> tuple[str, ...]:
    """Return the families whose outputs can say what a task other than detect needs."""
    more = {'segment': MASK_FAMILIES, 'pose': ('torchvision',)}
    return (*ROW_FAMILIES, *more.get(task, ()))


def _strides(section: JsonSection, key: str) -> tuple[int, ...]:
    strides = section.items(key)
    whole = all(type(side) is int and 1 <= side <= 1024 for side in strides)
    if not whole or not 1 <= len(strides) <= 8:
        raise section.refusal(key, strides, '1 to 8 whole numbers from 1 to 1024')
    return tuple(strides)


_READERS: Final[Mapping[str, Reader]] = {
    'objectness': JsonSection.boolean,
    'transposed': JsonSection.boolean,
    'strides': _strides,
    'activation': choice('sigmoid', 'softmax'),
    'box_format': choice('xyxy', 'yxyx', 'cxcywh'),
}


@dataclass(frozen=True)
class DecoderSpec:
    """How the outputs are read: the family and its constants; those of other families are empty.

    Attributes:
        family: a key of FAMILIES.
        objectness: dense: a score that multiplies the class scores stands before them.
        transposed: dense: the output is (B, N, C) instead of (B, C, N).
        strides: yolox_raw: network pixels between two cells of each grid, finest first.
        activation: detr: ``sigmoid``, or ``softmax`` with a no-object class at the end.
        box_format: onnx_nms: ``xyxy``, ``yxyx`` or ``cxcywh``.
    """

    family: str
    objectness: bool = False
    transposed: bool = False
    strides: tuple[int, ...] = ()
    activation: str = ''
    box_format: str = ''

    @classmethod
    def read(cls, section: JsonSection, key: str) -> DecoderSpec:
        """Read what a manifest says at a key: the family and its own constants, and no others."""
        inner = section.section(key)
        family = inner.text('family', tuple(FAMILIES))
        constants = {name: _READERS[name](inner, name) for name in FAMILIES[family]}
        inner.finish()
        return cls(family, **constants)

    def as_dict(self) -> dict[str, Any]:
        """Return what a manifest says of it: the family and its own constants."""
        constants = {name: json_content(getattr(self, name)) for name in FAMILIES[self.family]}
        return {'family': self.family, **constants}

    def __str__(self) -> str:
        """Return it for messages: ``dense (objectness false, transposed true)``."""
        constants = {key: value for key, value in self.as_dict().items() if key != 'family'}
        shown = ', '.join(f'{key} {_shown(value)}' for key, value in constants.items())
        return f'{self.family} ({shown})' if shown else self.family


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


#: Every way of reading outputs that this version knows, by the name of the parameter
#: model.decoder. Names may share a way and differ in the preprocessing that goes with it.
DECODERS: Final[Mapping[str, DecoderSpec]] = MappingProxyType(
    {
        'dense': DecoderSpec('dense'),
        'dense_transposed': DecoderSpec('dense', transposed=True),
        'dense_objectness': DecoderSpec('dense', objectness=True),
        'dense_objectness_transposed': DecoderSpec('dense', objectness=True, transposed=True),
        'yolox': DecoderSpec('dense', objectness=True, transposed=True),
        'yolox_raw': DecoderSpec('yolox_raw', strides=(8, 16, 32)),
        'end_to_end': DecoderSpec('end_to_end'),
        'efficient_nms': DecoderSpec('efficient_nms'),
        'onnx_nms_xyxy': DecoderSpec('onnx_nms', box_format='xyxy'),
        'onnx_nms_yxyx': DecoderSpec('onnx_nms', box_format='yxyx'),
        'onnx_nms_cxcywh': DecoderSpec('onnx_nms', box_format='cxcywh'),
        'rtdetr_ultralytics': DecoderSpec('rtdetr_ultralytics'),
        'rtdetr_end_to_end': DecoderSpec('rtdetr_end_to_end'),
        'rtdetr': DecoderSpec('detr', activation='sigmoid'),
        'rfdetr': DecoderSpec('detr', activation='sigmoid'),
        'detr_sigmoid': DecoderSpec('detr', activation='sigmoid'),
        'detr': DecoderSpec('detr', activation='softmax'),
        'labels_boxes_scores': DecoderSpec('labels_boxes_scores'),
        'torchvision': DecoderSpec('torchvision'),
        'tensorflow': DecoderSpec('tensorflow'),
    }
)
