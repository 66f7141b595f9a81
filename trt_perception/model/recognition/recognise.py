# SPDX-License-Identifier: Apache-2.0
"""Recognises decoder, preprocessing and class names of a model without a manifest.

The sources, in this order, are the parameters, the metadata in the file, a config.json next to the
file, and the names and shapes of tensors. Each finding becomes a sentence of evidence. If no
decoder or several decoders fit, the error lists the evidence, the possible values and the
parameters to set.

Page: docs/recognition.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.files.plain_text import counted, join_alternatives
from trt_perception.model.decoder import Decoder
from trt_perception.model.decoders.table import (
    PRESETS,
    ULTRALYTICS,
    ULTRALYTICS_CLASSIFIER,
)
from trt_perception.model.input_layout import (
    batch_size,
    constant_inputs,
    image_layout,
    image_size,
    split_inputs,
    with_fixed_size,
)
from trt_perception.model.manifest import Manifest
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.other_networks import (
    check_outputs_fit_a_task,
    possible_networks,
)
from trt_perception.model.preprocessing import Preprocessing, fields_text
from trt_perception.model.recognition.decoder_search import (
    add_task_of_outputs,
    find_decoders,
    find_decoders_by_shape,
)
from trt_perception.model.recognition.exporter_info import ExporterInfo
from trt_perception.model.recognition.huggingface_config import read_huggingface_config
from trt_perception.model.recognition.image_tasks import (
    image_task,
    task_of_preset,
)
from trt_perception.model.recognition.libreyolo_metadata import (
    is_libreyolo,
    read_libreyolo_metadata,
)
from trt_perception.model.recognition.missing_info import (
    REQUIRED_FIELDS,
    RecognitionState,
    check_nothing_is_missing,
)
from trt_perception.model.recognition.parameter_syntax import ROS_SYNTAX, ParameterSyntax
from trt_perception.model.recognition.requested_task import requested_task
from trt_perception.model.recognition.timm_config import is_timm_config, read_timm_config
from trt_perception.model.recognition.ultralytics_metadata import (
    is_ultralytics,
    read_metadata_of_unknown_exporter,
    read_ultralytics_metadata,
)
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import (
    INPUT_DTYPES,
    ModelInfo,
    TensorSpec,
    check_tensor_sizes,
    tensors_text,
)

#: Takes a mapping from input names to arrays. Returns the shape of each output, in order.
FindOutputShapes = Callable[[Mapping[str, npt.NDArray[Any]]], Sequence[tuple[int, ...]]]

# PIL, with antialiasing, resized the training images of usual classifiers.
_TASK_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {Classify.name: {'antialias': True}}

# Exporters that write the class names into the file.
_EXPORTERS_OF_METADATA: Final = ('ultralytics', 'yolov5', 'libreyolo')
# Values of ExporterInfo.exporter if no file describes the outputs.
_UNKNOWN_EXPORTERS: Final = ('', 'unknown')
# Fields of Preprocessing that no parameter sets.
_FIELDS_OF_MANIFESTS: Final = (
    *('round_pixels', 'size_multiple', 'size_rounding', 'keeps_aspect_ratio'),
)
# Fields that a file of an exporter states, or whose usual values are assumed.
_STATED_FIELDS: Final = ('resize', 'color_order', 'scale', 'mean', 'std')


@dataclass(frozen=True)
class ModelOverrides:
    """Values of the user, which replace the values of a model's files.

    Attributes:
        preprocessing: maps fields of Preprocessing to values; fields that are not set are missing.
        decoder: a name in PRESETS; empty if not set.
        class_names: names of the classes, in the order of the network's outputs; empty if not set.
        task: a name in TASKS; empty if not set.
        keypoint_names: names of an object's keypoints in the order of the outputs; empty if not
            set. Only for the task ``pose``.
        image_wh: width and height of the images in pixels, for models that derive the size of
            their input from them; None if unknown.
        syntax: how the user sets parameters, for messages.
        class_names_source: the option and file of the class names, for messages; empty for the
            parameter of ``syntax``.
    """

    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    decoder: str = ''
    class_names: tuple[str, ...] = ()
    task: str = ''
    keypoint_names: tuple[str, ...] = ()
    image_wh: tuple[int, int] | None = None
    syntax: ParameterSyntax = ROS_SYNTAX
    class_names_source: str = ''

    @property
    def names_source(self) -> str:
        """Where the class names of the user are from, for messages."""
        return self.class_names_source or self.syntax.name('class_names')

    @property
    def has_values(self) -> bool:
        """Whether the user has set a value."""
        return replace(self, syntax=ROS_SYNTAX) != ModelOverrides()


def apply_overrides(
    model: ModelInfo,
    manifest: Manifest,
    overrides: ModelOverrides,
    evidence: tuple[str, ...] = (),
) -> ModelSpec:
    """Describe a model by its manifest. Values that the user has set replace values of the file.

    The result is not compared with the model's tensors: see ``check_model_spec``.

    Args:
        evidence: sentences that say which values are from the user and which from the file.

    Raises:
        EngineError: the user has set another task, whose values the manifest lacks, or the images
            need too large an input.
    """
    if overrides.task not in ('', manifest.task.name):
        raise EngineError(
            overrides.syntax.name('task'),
            overrides.task,
            expected=f'{manifest.task.name}, as in the manifest',
            fix='do not set this parameter, or correct the manifest',
        )
    decoder = manifest.decoder
    if overrides.decoder:
        decoder = PRESETS[overrides.decoder].decoder.for_outputs(manifest.outputs)
    return _model_spec(
        model,
        overrides,
        replace(manifest.preprocessing, **overrides.preprocessing),
        decoder=decoder,
        class_names=overrides.class_names or manifest.class_names,
        task=manifest.task,
        evidence=evidence,
        has_manifest=True,
        names_source=overrides.names_source if overrides.class_names else 'the manifest',
    )


def _model_spec(
    model: ModelInfo,
    overrides: ModelOverrides,
    preprocessing: Preprocessing,
    *,
    decoder: Decoder,
    class_names: tuple[str, ...],
    task: Task,
    has_manifest: bool,
    evidence: tuple[str, ...],
    names_source: str,
    assumption: str = '',
) -> ModelSpec:
    """Return a description with fixed inputs. A dynamic batch becomes a batch of one image.

    Args:
        model: the model. Its outputs are those of the description.

    Raises:
        EngineError: the images need too large an input.
    """
    image, auxiliary = split_inputs(model.name, model.inputs)
    preprocessing, derives_size = _with_derived_size(preprocessing, image, overrides)
    width, height = preprocessing.input_size
    batch = max(1, batch_size(image))
    shape: tuple[int, ...] = (batch, 3, height, width)[-len(image.shape) :]
    if preprocessing.layout == 'nhwc':
        shape = (batch, height, width, 3)
    constants = constant_inputs(auxiliary, preprocessing.input_size, batch)
    return ModelSpec(
        input=replace(image, shape=shape),
        outputs=model.outputs,
        preprocessing=preprocessing,
        decoder=decoder,
        class_names=class_names if task.has_classes else (),
        has_manifest=has_manifest,
        evidence=evidence,
        auxiliary_inputs=tuple(
            replace(tensor, shape=constants[tensor.name].shape) for tensor in auxiliary
        ),
        task=task,
        model=model,
        derives_size=derives_size,
        assumption=assumption,
        names_source=names_source,
    )


def _with_derived_size(
    preprocessing: Preprocessing, image: TensorSpec, overrides: ModelOverrides
) -> tuple[Preprocessing, bool]:
    """Return the preprocessing for the images, and whether the size follows from them.

    Raises:
        EngineError: the images need too large an input.
    """
    derives_size = (
        preprocessing.size_multiple is not None
        and preprocessing.resize == 'stretch'
        and image_size(image) is None
        and 'input_size' not in overrides.preprocessing
    )
    if derives_size and overrides.image_wh is not None:
        if mistake := preprocessing.derived_size_mistake(overrides.image_wh):
            fix = f'set {overrides.syntax.name("input_size")}'
            raise EngineError('size of the image', fix=fix, **mistake)
        input_size = preprocessing.size_for(overrides.image_wh)
        preprocessing = replace(preprocessing, input_size=input_size)
    return preprocessing, derives_size


def recognise(
    model: ModelInfo, overrides: ModelOverrides, find_output_shapes: FindOutputShapes | None = None
) -> ModelSpec:
    """Describe a model that has no manifest.

    The result is not compared with the model's tensors: see ``check_model_spec``.

    Args:
        overrides: values that the user has set, used instead of recognised values.
        find_output_shapes: returns the shape of each output for given inputs. Called once if
            outputs have dynamic dimensions. If None, dynamic dimensions stay unknown.

    Raises:
        MissingModelInfoError: a value is unknown that parameters can set. The error lists them.
        EngineError: the model is not a detector of boxes, no decoder fits, or the shapes cannot be
            found.
    """
    image, _ = split_inputs(model.name, model.inputs)
    known_size = overrides.preprocessing.get('input_size') or image_size(image)
    info = _read_exporter_info(model, known_size)
    size = known_size or info.input_size
    loaded = model
    if not overrides.decoder and find_output_shapes is not None and size is not None:
        model = _with_output_shapes(model, size, find_output_shapes)
        info = _read_exporter_info(model, known_size)  # the shapes may show the task
    if info.unsupported and not overrides.decoder:
        raise EngineError(
            model.name,
            info.unsupported,
            expected='outputs that docs/decoders.md lists',
            fix=f'set {overrides.syntax.name("decoder")} if another decoder reads the outputs, or '
            'write a manifest (docs/manifest.md)',
        )
    may_be_other = info.exporter in _UNKNOWN_EXPORTERS and not overrides.decoder
    decoder_parameter = overrides.syntax.name('decoder')
    try:
        if may_be_other:
            check_outputs_fit_a_task(model, image, decoder_parameter, by_shape=not overrides.task)
        spec = _describe(model, info, size, overrides)
    except EngineError as error:
        if may_be_other and overrides.task and not isinstance(error, MissingModelInfoError):
            check_outputs_fit_a_task(model, image, decoder_parameter, by_shape=True)
        if not info.other_model or overrides.decoder or overrides.task:
            raise
        # Advice about values that are unknown would not help.
        raise EngineError(
            model.name,
            info.other_model,
            expected='a model of a task in docs/decoders.md',
            fix='if the file belongs to another model, move it to another folder, or set '
            + overrides.syntax.name('decoder'),
        ) from error
    return replace(spec, outputs=loaded.outputs, model=loaded)


def _describe(
    model: ModelInfo,
    info: ExporterInfo,
    size: tuple[int, int] | None,
    overrides: ModelOverrides,
) -> ModelSpec:
    """Describe a model whose outputs and exporter are known.

    Args:
        size: width and height of the network's input in pixels; None if dynamic.

    Raises:
        MissingModelInfoError: a value is unknown that parameters can set.
        EngineError: no decoder fits.
    """
    image, _ = split_inputs(model.name, model.inputs)
    class_names = overrides.class_names or info.class_names
    evidence, sentence_count = list(info.evidence), len(info.evidence)
    if overrides.class_names:
        count = counted(len(class_names), 'class', 'classes')
        evidence.append(f'{overrides.names_source} -> {count}')
    info = _with_task(model, info, class_names, size, overrides)
    evidence += info.evidence[sentence_count:]
    decoders: tuple[str, ...] = (overrides.decoder,)
    others: tuple[str, ...] = ()  # decoders that fit another number of class names
    if overrides.decoder:
        evidence.append(f'{overrides.syntax.name("decoder")} -> {overrides.decoder}')
    else:
        decoders, others = _find_decoders_for_names(model, size, len(class_names), info, overrides)
        if len(decoders) == 1:
            by = f' by {info.exporter}' if info.decoder_candidates else ''
            evidence.append(f'{tensors_text(model.outputs)}{by} -> {decoders[0]}')
    chosen = decoders[0] if len(decoders) == 1 else ''
    usual = _usual_preprocessing(chosen, info, size, evidence)
    values = _known_values(usual, info, size, overrides)
    problems = {**info.problems, **_unknown_resize(chosen, values)}
    state = RecognitionState(
        decoders=decoders,
        decoders_with_other_names=others,
        class_count=len(class_names),
        names_source=_names_source(info, overrides),
        missing_fields=_missing_fields(values, info.task),
        with_preprocessing=tuple(
            name for name, each in PRESETS.items() if usual or each.preprocessing
        ),
        problems={key: why for key, why in problems.items() if key not in overrides.preprocessing},
        task=info.task,
        is_task_given=bool(overrides.task),
        is_exporter_known=info.exporter not in _UNKNOWN_EXPORTERS,
        is_decoder_given=bool(overrides.decoder),
        replaced_names=f'{info.names_source} has {counted(len(info.class_names), "name")}'
        if overrides.class_names and info.class_names
        else '',
    )
    check_nothing_is_missing(model, evidence, state, overrides.syntax)
    decoder = PRESETS[chosen].decoder.for_outputs(model.outputs)
    if decoder.is_background_first:
        evidence.append(f'{chosen} -> label 0, the background, has the name {class_names[0]!r}')
    layout = 'nhwc' if image_layout(image) == 'nhwc' else 'nchw'
    preprocessing = Preprocessing(**values, layout=layout, dtype=image.dtype)
    doubts = (
        _assumed_layout_sentence(chosen, info, overrides),
        _assumed_task_sentence(model, info, overrides),
        _assumption_sentence(usual, info, overrides),
    )
    return _model_spec(
        model,
        overrides,
        preprocessing,
        decoder=decoder,
        class_names=class_names,
        task=info.task,
        evidence=tuple(evidence),
        has_manifest=False,
        assumption='; '.join(filter(None, doubts)),
        names_source=_names_source(info, overrides),
    )


def _names_source(info: ExporterInfo, overrides: ModelOverrides) -> str:
    return overrides.names_source if overrides.class_names else info.names_source


def _known_values(
    usual: Mapping[str, Any],
    info: ExporterInfo,
    size: tuple[int, int] | None,
    overrides: ModelOverrides,
) -> dict[str, Any]:
    """Return the known fields of Preprocessing. Later sources replace earlier sources."""
    defaults = _TASK_DEFAULTS.get(info.task.name, {})
    values = {**defaults, **usual, **info.preprocessing, **overrides.preprocessing}
    return values if size is None else {**values, 'input_size': size}


def _missing_fields(values: Mapping[str, Any], task: Task) -> tuple[str, ...]:
    """Return the fields of Preprocessing that the user must set.

    Most networks that describe the whole image need mean and standard deviation, so these are
    required too if another value than the input size is missing. Otherwise their defaults apply.
    """
    missing = tuple(key for key in REQUIRED_FIELDS if key not in values)
    if not task.finds_objects and set(missing) - {'input_size'}:
        missing += tuple(key for key in ('mean', 'std') if key not in values)
    return missing


def _with_task(
    model: ModelInfo,
    info: ExporterInfo,
    class_names: tuple[str, ...],
    size: tuple[int, int] | None,
    overrides: ModelOverrides,
) -> ExporterInfo:
    """Return the information with the task that the user has set or the outputs prove.

    If the user has set a decoder for the whole image, its task applies.
    """
    info = add_task_of_outputs(model, info, class_names)
    if not overrides.task:
        if task := task_of_preset(overrides.decoder):
            sentence = f'{overrides.syntax.name("decoder")} -> task {task}'
        elif info.task == DETECT and (found := image_task(model, size, len(class_names))):
            task, sentence = found, f'{tensors_text(model.outputs)} -> task {found}'
            if found == Depth() and not overrides.decoder:
                sentence = f'{tensors_text(model.outputs)} -> may be a depth'
        else:
            return info
        return replace(info, task=task, evidence=(*info.evidence, sentence))
    task = requested_task(model, info.task, class_names, overrides.task, overrides.keypoint_names)
    sentence = f'{overrides.syntax.name("task")} -> {task}'
    return replace(info, task=task, evidence=(*info.evidence, sentence))


def _usual_preprocessing(
    chosen: str, info: ExporterInfo, size: tuple[int, int] | None, evidence: list[str]
) -> Mapping[str, Any]:
    """Return the preprocessing of the usual training; empty if unknown. Append the evidence.

    Args:
        chosen: preset of the decoder; empty if several fit.
        size: width and height of the input in pixels; None if unknown.
        evidence: list to which a sentence is added if the exporter gives no preprocessing.
    """
    usual: Mapping[str, Any] = {}
    if chosen:
        added = PRESETS[chosen].task_preprocessing if info.task != DETECT else {}
        usual = {**PRESETS[chosen].preprocessing, **added}
    if info.is_yolo_export and info.task == Classify():
        # The exporter's own code stretches images only for inputs that are not square.
        is_square = size is None or size[0] == size[1]
        usual = {**ULTRALYTICS_CLASSIFIER, **({} if is_square else {'resize': 'stretch'})}
    elif info.is_yolo_export and (not usual or info.task == Semantic()):
        usual = ULTRALYTICS
    if usual and not info.preprocessing:
        evidence.append(
            f'{chosen or info.exporter} -> preprocessing of the usual training: '
            + fields_text(usual)
        )
    return usual


def _unknown_resize(chosen: str, values: Mapping[str, Any]) -> dict[str, str]:
    """Return why the resize mode is unknown, by the name of the field; empty if it is known.

    Args:
        chosen: preset of the decoder; empty if several fit.
    """
    networks = PRESETS[chosen].networks_by_resize if chosen else {}
    if not networks or 'resize' in values:
        return {}
    return {'resize': 'the outputs do not show which network the model is'}


def _assumed_layout_sentence(chosen: str, info: ExporterInfo, overrides: ModelOverrides) -> str:
    """Return a sentence about the boxes of an unknown exporter; empty if nothing is assumed.

    Exporters write boxes as centres or as corners, with equal shapes.
    """
    if info.exporter != 'unknown' or overrides.decoder or not info.task.finds_objects:
        return ''
    return (
        f'assumed decoder: {chosen}, with boxes as {PRESETS[chosen].decoder.documented_boxes}, '
        'because the metadata do not show which program wrote the model. Compare boxes with your '
        f'images, and add {overrides.syntax.arguments({"decoder": chosen})} if they are right'
    )


def _assumed_task_sentence(model: ModelInfo, info: ExporterInfo, overrides: ModelOverrides) -> str:
    """Return a sentence about logits of classes that only class names show; empty for others."""
    image, _ = split_inputs(model.name, model.inputs)
    # The names of torchvision's two outputs show the task.
    other = possible_networks(model.outputs, image) if len(model.outputs) == 1 else ()
    is_given = overrides.task or overrides.decoder
    if info.exporter not in _UNKNOWN_EXPORTERS or is_given or info.task != Semantic() or not other:
        return ''
    return (
        f'assumed task: {info.task}, because the output has a channel for each class name. It may '
        f'also be {join_alternatives(other)}, which no task reads. Compare masks with your '
        f'images, and add {overrides.syntax.arguments({"task": info.task.name})} if they are right'
    )


def _assumption_sentence(
    usual: Mapping[str, Any], info: ExporterInfo, overrides: ModelOverrides
) -> str:
    """Return a sentence about assumed preprocessing; empty if the exporter or user states all.

    Ultralytics and YOLOv5 train all their models with the same preprocessing, so their metadata
    state it.
    """
    if info.is_yolo_export:
        return ''
    assumed = {**_TASK_DEFAULTS.get(info.task.name, {}), **usual}
    if info.preprocessing:
        # The filter of a file is known, and its padding follows from the resize.
        assumed = {key: assumed[key] for key in _STATED_FIELDS if key in assumed}
        assumed = {key: value for key, value in assumed.items() if key not in info.preprocessing}
    # Only a manifest can set some fields, and a padding of 0 after normalisation (None).
    fields = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in assumed.items()
        if key not in {*overrides.preprocessing, *_FIELDS_OF_MANIFESTS} and value is not None
    }
    if not fields:
        return ''
    shown = {key: '1/255' if value == 1 / 255 else value for key, value in fields.items()}
    return (
        f'assumed preprocessing: {fields_text(shown)}, because the model does not state it. '
        f'Compare it with your training, and add {overrides.syntax.arguments(fields)} with the '
        'right values, or write a manifest (docs/manifest.md)'
    )


def stated_input_size(model: ModelInfo) -> tuple[int, int] | None:
    """Return the width and height of the input that the exporter of a model states.

    Raises:
        EngineError: the metadata name an unsupported task or lack a value that the task needs.
    """
    return _read_exporter_info(model, None).input_size


def _read_exporter_info(model: ModelInfo, size: tuple[int, int] | None) -> ExporterInfo:
    """Return the information in the metadata of the model, or else in its config.json.

    Args:
        size: width and height of the network's input in pixels; None if dynamic.

    Raises:
        EngineError: the metadata name an unsupported task or lack a value that the task needs.
    """
    if is_libreyolo(model.metadata):
        return read_libreyolo_metadata(model.metadata)
    if 'names' in model.metadata:
        read = read_metadata_of_unknown_exporter
        if is_ultralytics(model.metadata):
            read = read_ultralytics_metadata
        return read(model.name, model.metadata)
    if model.config and is_timm_config(model.config):
        return read_timm_config(model.config, model.outputs, size)
    if model.config:
        return read_huggingface_config(model.config, model.outputs)
    return ExporterInfo()


def _with_output_shapes(
    model: ModelInfo, size: tuple[int, int], find_output_shapes: FindOutputShapes
) -> ModelInfo:
    """Return the model, with the output shapes for a black image instead of dynamic shapes."""
    found, auxiliary_inputs = split_inputs(model.name, model.inputs)
    image = with_fixed_size(found, size)
    has_dynamic_outputs = any(not tensor.shape or -1 in tensor.shape for tensor in model.outputs)
    # An unsupported input type is refused later, with a better message than the runtime's.
    if not has_dynamic_outputs or image.dtype not in INPUT_DTYPES:
        return model
    check_tensor_sizes(model.name, (image,))
    black = np.zeros(image.shape, image.dtype)
    constants = constant_inputs(auxiliary_inputs, size, batch_size(image))
    shapes = find_output_shapes({image.name: black, **constants})
    # A size of 0 depends on the objects in the image, so the dimension stays dynamic.
    outputs = tuple(
        replace(tensor, shape=tuple(side or -1 for side in shape))
        for tensor, shape in zip(model.outputs, shapes, strict=True)
    )
    check_tensor_sizes(model.name, outputs)
    return replace(model, outputs=outputs)


def _find_decoders_for_names(
    model: ModelInfo,
    size: tuple[int, int] | None,
    classes: int,
    info: ExporterInfo,
    overrides: ModelOverrides,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the decoders that fit, and the decoders that would fit other class names.

    The second tuple is empty if a decoder fits.
    """
    source = _names_source(info, overrides)
    found = find_decoders(model, size, classes or None, info, overrides.syntax, source)
    if found or not classes:
        return found, ()
    if info.exporter in _EXPORTERS_OF_METADATA and not overrides.class_names:
        # The names are right if they fit another decoder, or boxes without values of the task.
        if find_decoders_by_shape(model, classes, info.task):
            return (), ()
        if info.task != DETECT and find_decoders_by_shape(
            model, classes, allow_dynamic=False, known=info.known_decoders
        ):
            return (), ()
    return (), find_decoders(model, size, None, info, overrides.syntax)
