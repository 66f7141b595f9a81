"""The information that exporters write into metadata or a config.json.

Both are untrusted input. Sizes are bounded, values are parsed as literals, and a value of an
unexpected form is ignored. Each exporter has a module that reads its files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trt_perception.files.plain_text import names_mistake
from trt_perception.model.preprocessing import input_size_mistake
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task

__all__ = ['ExporterInfo', 'is_image_size', 'read_class_names']


@dataclass(frozen=True)
class ExporterInfo:
    """The information from the exporter of a model.

    Attributes:
        class_names: names of the classes, in the order of the network's outputs; empty if unknown.
        input_size: width and height in pixels; None if unknown.
        preprocessing: values for fields of Preprocessing.
        exporter: `ultralytics`, `yolov5`, `huggingface` or empty.
        decoder_candidates: sets of decoder names, the smallest set first. Recognition uses the
            first set that has a decoder for the output shapes.
        task: the model's task, such as ``detect`` or ``pose``.
        filter_problem: why the resize filter is unknown or unsupported; empty if the filter is
            supported or not mentioned.
        evidence: one sentence for each value found.
    """

    class_names: tuple[str, ...] = ()
    input_size: tuple[int, int] | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    exporter: str = ''
    decoder_candidates: tuple[tuple[str, ...], ...] = ()
    task: Task = DETECT
    filter_problem: str = ''
    evidence: tuple[str, ...] = ()

    @property
    def is_yolo_export(self) -> bool:
        """Whether the exporter of Ultralytics or YOLOv5 wrote the file."""
        return self.exporter in ('ultralytics', 'yolov5')


def is_image_size(value: object) -> bool:
    """Return whether a value is a list of two allowed side lengths in pixels."""
    return (
        isinstance(value, list | tuple)
        and all(type(side) is int for side in value)
        and not input_size_mistake(value)
    )


def read_class_names(source: str, value: object) -> tuple[tuple[str, ...], str]:
    """Return class names and a sentence about them. The names are empty if the value is invalid.

    Class names must be unique, but COCO's placeholder "N/A" occurs several times. Such duplicates
    get their index appended.

    Args:
        source: where the value is from, for the sentence.
        value: a list of names, or a mapping from 0 … n-1 to names.
    """
    if isinstance(value, Mapping):
        name_by_key = {str(key): name for key, name in value.items() if _is_class_name(key)}
        value = [name_by_key.get(str(index)) for index in range(len(value))]
    if not isinstance(value, list | tuple) or not value or not all(map(_is_class_name, value)):
        return (), f"{source} is ignored: expected {{0: 'name', 1: …}} without gaps"
    names = [str(name) for name in value]
    counts = Counter(names)
    unique = [name if counts[name] == 1 else f'{name} {index}' for index, name in enumerate(names)]
    if mistake := names_mistake(unique):
        return (), f'{source} is ignored: expected {mistake["expected"]} (got {mistake["found"]})'
    remark = '' if unique == names else ' (duplicate names have their index appended)'
    return tuple(unique), f'{source} -> {len(names)} classes{remark}'


def _is_class_name(value: object) -> bool:
    """Return whether a value is a text, or a number with few enough digits to be printed."""
    return isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**53)
