# SPDX-License-Identifier: Apache-2.0
"""The information that exporters write into metadata or a config.json.

Both are untrusted input. Sizes are bounded, values are parsed as literals, and a value of an
unexpected form is ignored. Each exporter has a module that reads its files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trt_perception.files.plain_text import MAX_CLASSES, counted, repair_names
from trt_perception.model.preprocessing import input_size_mistake
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task


@dataclass(frozen=True)
class ExporterInfo:
    """The information from the exporter of a model.

    Attributes:
        class_names: names of the classes, in the order of the network's outputs; empty if unknown.
        input_size: width and height in pixels; None if unknown.
        preprocessing: maps fields of Preprocessing to the exporter's values; unknown ones are
            missing.
        exporter: `ultralytics`, `yolov5`, `libreyolo`, `huggingface`, `timm`, or `unknown` if
            metadata do not show the exporter; empty without metadata.
        decoder_candidates: sets of decoder names, the smallest set first. Recognition uses the
            first set that has a decoder for the output shapes.
        task: the model's task, such as ``detect`` or ``pose``.
        problems: maps fields of Preprocessing to the reason why the exporter's value is unknown
            or unsupported.
        unsupported: why no decoder reads these outputs as the exporter's own code does; empty if
            one does, or if the exporter does not say.
        other_model: what the files say the model is, if no decoder reads such models; empty
            otherwise. The files may belong to another model.
        evidence: one sentence for each value found.
    """

    class_names: tuple[str, ...] = ()
    input_size: tuple[int, int] | None = None
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    exporter: str = ''
    decoder_candidates: tuple[tuple[str, ...], ...] = ()
    task: Task = DETECT
    problems: Mapping[str, str] = field(default_factory=dict)
    unsupported: str = ''
    other_model: str = ''
    evidence: tuple[str, ...] = ()

    @property
    def known_decoders(self) -> frozenset[str]:
        """All decoders of ``decoder_candidates``."""
        return frozenset(name for names in self.decoder_candidates for name in names)

    @property
    def names_source(self) -> str:
        """Where the class names are from, for messages."""
        sources = {'huggingface': 'config.json "id2label"', 'timm': 'config.json'}
        return sources.get(self.exporter, 'metadata "names"')

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
    """Return class names and a sentence about them. The names are empty if the value has none.

    An invalid name is replaced, and its neighbours stay. A class without a name between named
    classes gets a name by its id. Class names must be unique, but COCO's placeholder "N/A" occurs
    several times.

    Args:
        source: where the value is from, for the sentence.
        value: a list of names, or a mapping from class ids to names.
    """
    names: Sequence[object] = ()
    if isinstance(value, Mapping):
        name_by_id = {index: name for key, name in value.items() if (index := _class_id(key)) >= 0}
        names = [name_by_id.get(index) for index in range(max(name_by_id, default=-1) + 1)]
    elif isinstance(value, list | tuple):
        names = value
    if not names or all(name is None for name in names):
        return (), f"{source} is ignored: expected {{0: 'name', 1: …}}"
    if len(names) > MAX_CLASSES:
        return (), f'{source} is ignored: expected at most {MAX_CLASSES} names (got {len(names)})'
    texts = [str(name) if _is_short_number(name) else name for name in names]
    found, remark = repair_names(texts)
    remark = f' ({remark})' if remark else ''
    if isinstance(value, Mapping) and len(name_by_id) < len(value):
        remark += f' ({len(value) - len(name_by_id)} keys are no class id)'
    return found, f'{source} -> {counted(len(found), "class", "classes")}{remark}'


def _class_id(key: object) -> int:
    """Return the class id that a key of a mapping means; -1 if the key is no class id."""
    text = str(key) if _is_short_number(key) or isinstance(key, str) else ''
    is_id = text.isascii() and text.isdecimal() and len(text) <= len(str(MAX_CLASSES))
    return int(text) if is_id and int(text) < MAX_CLASSES else -1


def _is_short_number(value: object) -> bool:
    """Return whether a value is a whole number with few enough digits to be printed."""
    return isinstance(value, int) and abs(value) < 2**53
