"""What a model without a manifest is: decoder, preprocessing and class names, from what it shows.

Asked in this order: the parameters, the metadata in the file, a config.json next to it, names
and shapes of its tensors. Each finding is kept as a sentence. Where more than one reading fits or
none does, the error lists what was seen, what it could be, and which parameters to set.

Page: docs/decoders.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from trt_perception.model.decoder import Decoder
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.decoders.training import ULTRALYTICS
from trt_perception.model.input_layout import (
    batch_size,
    closed_image,
    constant_inputs,
    image_shape,
    image_size,
    split_inputs,
)
from trt_perception.model.manifest import Manifest
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.exporter_info import ExporterInfo
from trt_perception.model.recognition.huggingface_config import read_huggingface_config
from trt_perception.model.recognition.outputs import (
    candidates,
    with_own_outputs,
)
from trt_perception.model.recognition.refusal import NEEDED, MissingModelInfo, refuse_missing_info
from trt_perception.model.recognition.ultralytics_metadata import read_ultralytics_metadata
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import INPUT_DTYPES, LoadedModel, tensors_text

__all__ = [
    *('ModelOverrides', 'Recognised', 'RunOnce', 'overridden', 'recognise'),
]

#: Runs a model on its inputs, by name, and returns the shapes of its outputs, in their order.
RunOnce = Callable[[Mapping[str, npt.NDArray[Any]]], Sequence[tuple[int, ...]]]


@dataclass(frozen=True)
class ModelOverrides:
    """What the user said; it wins over everything that a model shows.

    Attributes:
        preprocessing: fields of Preprocessing.
        decoder: a name of PRESETS, or empty.
        class_names: in the network's order, or empty.
        parameter_name: makes of a parameter's name, without ``model.``, what the user writes, for
            messages.
    """

    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    decoder: str = ''
    class_names: tuple[str, ...] = ()
    parameter_name: Callable[[str], str] = 'model.{}'.format


@dataclass(frozen=True)
class Recognised:
    """How to feed a model and how to read it.

    Attributes:
        decoder: family and constants.
        preprocessing: how pixels become the input.
        class_names: in the network's order.
        evidence: one sentence for each finding: what was seen -> what was chosen.
        task: what the outputs say of each object.
    """

    decoder: Decoder
    preprocessing: Preprocessing
    class_names: tuple[str, ...]
    evidence: tuple[str, ...]
    task: Task = DETECT


def overridden(
    manifest: Manifest, given: ModelOverrides, evidence: tuple[str, ...] = ()
) -> Recognised:
    """Return what a manifest says, except for what the user said."""
    return Recognised(
        PRESETS[given.decoder].decoder if given.decoder else manifest.decoder,
        replace(manifest.preprocessing, **given.preprocessing),
        given.class_names or manifest.class_names,
        evidence,
        manifest.task,
    )


def recognise(model: LoadedModel, given: ModelOverrides, run: RunOnce | None = None) -> Recognised:
    """Find out how to feed and read a model, or which parameters would say it.

    Args:
        model: what it shows of itself.
        given: what the user said.
        run: runs the model; asked for the shapes that the file leaves open.

    Raises:
        MissingModelInfoError: something remains unknown that parameters could say.
        EngineError: the model is no detector of boxes, or no parameter would make it readable, or
            it does not run.
    """
    facts = _exporter_info(model)
    evidence, known = list(facts.evidence), len(facts.evidence)
    image, _ = split_inputs(model.name, model.inputs)
    class_names = given.class_names or facts.class_names
    if given.class_names:
        evidence.append(f'{given.parameter_name("class_names")} -> {len(class_names)} classes')
    size = given.preprocessing.get('input_size') or image_size(image) or facts.input_size
    if not given.decoder and run is not None and size is not None:
        model = _with_output_shapes(model, size, run)
    if facts.is_yolo_export:
        facts = replace(facts, task=facts.task.of_outputs(model))
    facts = with_own_outputs(model, facts, class_names)
    evidence += facts.evidence[known:]
    fitting: tuple[str, ...] = (given.decoder,)
    others: tuple[str, ...] = ()
    if given.decoder:
        evidence.append(f'{given.parameter_name("decoder")} -> {given.decoder}')
    else:
        fitting, others = _fitting(model, size, len(class_names), facts, given)
        if len(fitting) == 1:
            by = f' by {facts.exporter}' if facts.decoder_candidates else ''
            evidence.append(f'{tensors_text(model.outputs)}{by} -> {fitting[0]}')
    chosen = fitting[0] if len(fitting) == 1 else ''
    trained = _trained_preprocessing(chosen, facts, evidence)
    values = {**trained, **facts.preprocessing, **given.preprocessing}
    if size is not None:
        values['input_size'] = size
    unknown = MissingModelInfo(
        fitting=fitting,
        with_other_names=others,
        class_names=len(class_names),
        missing=tuple(key for key in NEEDED if key not in values),
        trained=tuple(name for name, each in PRESETS.items() if trained or each.preprocessing),
        resampling='' if 'antialias' in given.preprocessing else facts.filter_problem,
        task=facts.task,
    )
    refuse_missing_info(model, evidence, unknown, given.parameter_name)
    decoder = PRESETS[chosen].decoder
    if decoder.is_background_first:
        evidence.append(f'{chosen} -> label 0, the background, is called {class_names[0]!r}')
    layout = 'nhwc' if image_shape(image) == 'nhwc' else 'nchw'
    preprocessing = Preprocessing(**values, layout=layout, dtype=image.dtype)
    return Recognised(decoder, preprocessing, class_names, tuple(evidence), facts.task)


def _trained_preprocessing(
    chosen: str, facts: ExporterInfo, evidence: list[str]
) -> Mapping[str, Any]:
    """Return the preprocessing of the usual training; empty if unknown. Add the evidence.

    Args:
        chosen: preset of the decoder; empty if several fit.
        facts: what the exporter's files say.
        evidence: gets a sentence if the exporter's files say nothing of the preprocessing.
    """
    trained = PRESETS[chosen].preprocessing if chosen else {}
    if not trained and facts.is_yolo_export:
        trained = ULTRALYTICS
    if trained and not facts.preprocessing:
        evidence.append(
            f'{chosen or facts.exporter} -> preprocessing that such models are trained with: '
            + ', '.join(f'{key} {value}' for key, value in trained.items())
        )
    return trained


def _exporter_info(model: LoadedModel) -> ExporterInfo:
    """Return what the metadata of the model say, or else what its config.json says.

    Raises:
        EngineError: the metadata name an unsupported task or lack what their task needs.
    """
    if 'names' in model.metadata:
        return read_ultralytics_metadata(model.name, model.metadata)
    return read_huggingface_config(model.config) if model.config else ExporterInfo()


def _with_output_shapes(model: LoadedModel, size: tuple[int, int], run: RunOnce) -> LoadedModel:
    """Return the model with the shapes that open outputs have for a black image."""
    found, auxiliary_inputs = split_inputs(model.name, model.inputs)
    image = closed_image(found, size)
    is_open = any(not tensor.shape or -1 in tensor.shape for tensor in model.outputs)
    if (
        not is_open or image.dtype not in INPUT_DTYPES
    ):  # refused with better words than a runtime's
        return model
    black = np.zeros(image.shape, image.dtype)
    constants = constant_inputs(auxiliary_inputs, size, batch_size(image))
    shapes = run({image.name: black, **constants})
    # No rows at all: their number follows from what is in the image, and stays open.
    outputs = tuple(
        replace(tensor, shape=tuple(side or -1 for side in shape))
        for tensor, shape in zip(model.outputs, shapes, strict=True)
    )
    return replace(model, outputs=outputs)


def _fitting(
    model: LoadedModel,
    size: tuple[int, int] | None,
    classes: int,
    facts: ExporterInfo,
    given: ModelOverrides,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the decoders that fit; where none does, what would with other class names."""
    found = candidates(model, size, classes or None, facts, given.parameter_name)
    # Names within the file itself are the model's own.
    if found or not classes or (facts.is_yolo_export and not given.class_names):
        return found, ()
    return (), candidates(model, size, None, facts, given.parameter_name)
