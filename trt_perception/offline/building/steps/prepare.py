"""Determine preprocessing, decoder, class names and output shapes of a model before its build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trt_perception.files.plain_text import counted
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.input_layout import constant_inputs, image_size
from trt_perception.model.model_spec import resolve_model_spec
from trt_perception.model.recognition.parameter_syntax import OPTION_SYNTAX
from trt_perception.model.recognition.recognise import (
    ModelDescription,
    ModelOverrides,
    apply_overrides,
    recognise,
)
from trt_perception.model.tensors import INPUT_DTYPES, ModelInfo, TensorSpec
from trt_perception.offline.building.calibration.activations import open_session
from trt_perception.offline.building.graph.mac_count import infer_shapes
from trt_perception.offline.building.graph.onnx_model import OnnxSource, unknown_operators
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.options.sources import names_file_text, read_class_names

#: Options that are fields of Preprocessing.
_PREPROCESSING_OPTIONS: Final = (
    'resize',
    'shorter_side',
    'filter',
    'antialias',
    'pad_value',
    'color_order',
    'scale',
    'mean',
    'std',
)


@dataclass(frozen=True)
class RecognisedModel:
    """A recognised model, and the shapes of its engine.

    Attributes:
        shapes: maps each input's name to its final shape, the image input first.
        other_shapes: shapes of the second profile; equal to ``shapes`` with fewer profiles.
    """

    recognised: ModelDescription
    shapes: Mapping[str, tuple[int, ...]]
    other_shapes: Mapping[str, tuple[int, ...]]

    @property
    def image_name(self) -> str:
        """The name of the image input."""
        return next(iter(self.shapes))

    @property
    def image_shape(self) -> tuple[int, ...]:
        """The shape of the image input that TensorRT optimises for."""
        return self.shapes[self.image_name]


def infer_outputs(
    source: OnnxSource,
    shapes: Mapping[str, tuple[int, ...]],
    image: TensorSpec,
    auxiliary: Sequence[TensorSpec],
) -> tuple[TensorSpec, ...]:
    """Return the outputs with the shapes that result from the final inputs.

    ONNX shape inference gives the shapes. If a shape remains unknown, ONNX Runtime runs the model
    on a black image, if possible.

    Args:
        shapes: maps each input's name to its final shape.

    Raises:
        EngineError: shapes in the graph contradict each other.
    """
    if unknown_operators(source.model):
        return source.outputs
    inferred = {
        value.name: tuple(side.dim_value or -1 for side in value.type.tensor_type.shape.dim)
        for value in infer_shapes(source.model, shapes).graph.output
    }
    outputs = tuple(replace(t, shape=inferred[t.name] or t.shape) for t in source.outputs)
    closed = all(tensor.shape and -1 not in tensor.shape for tensor in outputs)
    size = image_size(image)
    if closed or size is None or image.dtype not in INPUT_DTYPES:
        return outputs
    batch = image.shape[0] if len(image.shape) == 4 else 1
    feed = {
        image.name: np.zeros(image.shape, image.dtype),
        **constant_inputs(auxiliary, size, batch),
    }
    try:
        found = open_session(source.model).run([tensor.name for tensor in outputs], feed)
    except Exception:  # TensorRT may run it; check_loadable checks the engine
        return outputs
    return tuple(
        replace(tensor, shape=tuple(side or -1 for side in array.shape))
        for tensor, array in zip(outputs, found, strict=True)
    )


def recognise_source(
    source: OnnxSource,
    options: BuildOptions,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> ModelDescription:
    """Return preprocessing, decoder, task and class names from options, manifest or model.

    Args:
        options: options of the group ``model`` take precedence over manifest and model.

    Raises:
        EngineError: the model is not a supported detector, or a property remains unknown.
        ConfigError: the file of class names cannot be read.
    """
    given = _model_overrides(options, inputs[0])
    name, manifest = source.file.path.name, source.file.manifest
    if manifest is None:
        model = ModelInfo(
            name, inputs, outputs, source.metadata, source.file.config, str(source.file.path)
        )
        return recognise(model, given)
    return apply_overrides(manifest, given, _evidence_sentences(f'{name}.json', given))


def _model_overrides(options: BuildOptions, image: TensorSpec) -> ModelOverrides:
    values: dict[str, Any] = {name: getattr(options, name) for name in _PREPROCESSING_OPTIONS}
    values = {'input_size': image_size(image), **values}
    values = {name: value for name, value in values.items() if value is not None}
    return ModelOverrides(
        values,
        options.decoder or '',
        read_class_names(options),
        options.task or '',
        syntax=OPTION_SYNTAX,
        class_names_source=names_file_text(options.class_names_file),
    )


def _evidence_sentences(manifest: str, given: ModelOverrides) -> tuple[str, ...]:
    """Return sentences that say which properties came from the options or the manifest."""
    evidence, rest = [], ['preprocessing']
    if flags := [
        OPTION_SYNTAX.name(name) for name in _PREPROCESSING_OPTIONS if name in given.preprocessing
    ]:
        evidence, rest = (
            [f'{", ".join(flags)} -> preprocessing'],
            ['the rest of the preprocessing'],
        )
    if given.decoder:
        evidence.append(f'--decoder -> {given.decoder}')
    else:
        rest.append('decoder')
    if given.class_names:
        evidence.append(
            f'{given.names_source} -> {counted(len(given.class_names), "class", "classes")}'
        )
    else:
        rest.append('class names')
    return *evidence, f'{manifest} -> {", ".join(rest)}'


def check_loadable(model: ModelFile, names_source: str = '') -> None:
    """Check a model against its manifest, as pipelines do when they load a model.

    Args:
        model: the ONNX model or its engine. Dynamic sides are -1.
        names_source: where the class names of the manifest are from, for messages; empty for the
            manifest.

    Raises:
        EngineError: a pipeline would refuse the engine, because inputs or outputs do not fit.
    """
    manifest = model.manifest
    assert manifest is not None
    if not all(tensor.shape for tensor in manifest.outputs):
        return  # ONNX cannot infer the shapes, but the engine has them
    loaded = ModelInfo(model.path.name, manifest.inputs, manifest.outputs)
    same_names = manifest.class_names if names_source else ()
    given = ModelOverrides(
        class_names=same_names, syntax=OPTION_SYNTAX, class_names_source=names_source
    )
    resolve_model_spec(loaded, manifest, given)
