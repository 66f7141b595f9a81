# SPDX-License-Identifier: Apache-2.0
"""Determine preprocessing, decoder, class names and output shapes of a model before its build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from trt_perception.files.plain_text import counted
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.input_layout import constant_inputs, image_size
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.recognition.parameter_syntax import OPTION_SYNTAX
from trt_perception.model.recognition.recognise import (
    ModelOverrides,
    apply_overrides,
    recognise,
)
from trt_perception.model.resolve_spec import check_model_spec, resolve_model_spec
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
) -> ModelSpec:
    """Describe a model by options, manifest or its own tensors and metadata, and check the result.

    Args:
        inputs: the image input first, with the dimensions that TensorRT optimises for.
        options: options of the group ``model`` take precedence over manifest and model.

    Raises:
        EngineError: the model is not a supported detector, or a property remains unknown.
        ConfigError: the file of class names cannot be read.
    """
    given = _model_overrides(options, inputs[0])
    file, name = source.file, source.file.path.name
    model = ModelInfo(name, inputs, outputs, source.metadata, file.config, str(file.path))
    if file.manifest is None:
        spec = recognise(model, given)
    else:
        evidence = _evidence_sentences(f'{name}.json', given)
        spec = apply_overrides(model, file.manifest, given, evidence)
    # The node will read the manifest of the engine, and no options of the build.
    check_model_spec(
        replace(spec, has_manifest=True),
        ModelOverrides(syntax=OPTION_SYNTAX),
        knows_outputs=all(tensor.shape for tensor in outputs),
    )
    return spec


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


def check_loadable(engine: ModelFile) -> None:
    """Check an engine against its manifest, as pipelines do when they load the engine.

    Raises:
        EngineError: a pipeline would refuse the engine, because inputs or outputs do not fit.
    """
    manifest = engine.manifest
    assert manifest is not None
    if not all(tensor.shape for tensor in manifest.outputs):
        return  # ONNX cannot infer the shapes, but the engine has them
    loaded = ModelInfo(engine.path.name, manifest.inputs, manifest.outputs)
    resolve_model_spec(loaded, manifest, ModelOverrides(syntax=OPTION_SYNTAX))
