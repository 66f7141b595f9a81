"""Lists all decoders: presets by value of ``model.decoder``, and classes by family."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from trt_perception.files.json_records import read_record
from trt_perception.files.json_section import JsonSection
from trt_perception.model.decoder import Decoder, DecoderPreset, ObjectDecoder
from trt_perception.model.decoders import (
    class_maps,
    class_scores,
    dense,
    depth_maps,
    detr,
    efficient_nms,
    end_to_end,
    labels_boxes_scores,
    nanodet,
    onnx_nms,
    rtdetr,
    tensorflow,
    torchvision,
    yolox_raw,
)
from trt_perception.model.tasks.task import Task

__all__ = [
    'DECODERS_BY_FAMILY',
    'OBJECT_PRESETS',
    'PRESETS',
    'families_for_task',
    'presets_for_task',
    'read_decoder',
]

_DECODER_MODULES: Final = (
    *(dense, yolox_raw, end_to_end, efficient_nms, onnx_nms, rtdetr, detr, labels_boxes_scores),
    *(torchvision, tensorflow, nanodet, class_scores, class_maps, depth_maps),
)
#: Maps the name of a preset to the preset. Presets with the same decoder differ in their
#: preprocessing.
PRESETS: Final[Mapping[str, DecoderPreset]] = MappingProxyType(
    {preset.name: preset for module in _DECODER_MODULES for preset in module.PRESETS}
)
#: The presets whose decoders read objects.
OBJECT_PRESETS: Final = MappingProxyType(
    {name: preset for name, preset in PRESETS.items() if isinstance(preset.decoder, ObjectDecoder)}
)
#: Decoder classes by the name of their family in manifests.
DECODERS_BY_FAMILY: Final[Mapping[str, type[Decoder]]] = MappingProxyType(
    {preset.decoder.family: type(preset.decoder) for preset in PRESETS.values()}
)


@functools.cache
def families_for_task(task: Task) -> tuple[str, ...]:
    """Return the names of the families that support a task other than detect."""
    return tuple(
        family
        for family, decoder in DECODERS_BY_FAMILY.items()
        if task.name in decoder.tasks_with_own_outputs
        or (task.finds_objects and decoder.allows_task_values)
    )


def presets_for_task(task: Task) -> tuple[str, ...]:
    """Return the values of ``model.decoder`` that support a task other than detect."""
    families = families_for_task(task)
    return tuple(name for name, preset in PRESETS.items() if preset.decoder.family in families)


def read_decoder(section: JsonSection, key: str) -> Decoder:
    """Read a decoder from a manifest: the family and exactly its constants.

    Raises:
        ManifestError: the family is unknown, or a constant is missing, wrong or unknown.
    """
    inner = section.section(key)
    return read_record(DECODERS_BY_FAMILY[inner.text('family', tuple(DECODERS_BY_FAMILY))], inner)
