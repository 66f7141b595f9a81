"""What an engine is built from: the model, how it is fed and read, in which shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from trt_perception.building.engine.network import resolve_profiles
from trt_perception.building.engine_manifest import described
from trt_perception.building.graph.mac_count import infer_shapes
from trt_perception.building.graph.onnx_model import OnnxSource
from trt_perception.building.graph.onnx_model import unknown_operators
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.options.sources import read_class_names
from trt_perception.building.options.values import ShapeProfile
from trt_perception.building.precision.calibration import open_session
from trt_perception.model.decoder_spec import DECODERS
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.input_layout import image_size
from trt_perception.model.input_layout import shapes_beside
from trt_perception.model.input_layout import split_inputs
from trt_perception.model.model_spec import resolve_model_spec
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.recognition.recognise import Recognised
from trt_perception.model.recognition.recognise import recognise
from trt_perception.model.tensors import INPUT_DTYPES
from trt_perception.model.tensors import TensorSpec

__all__ = [
    *('check_readable', 'image_input', 'outputs_at', 'recognise_source', 'run_shapes'),
    'wanted_profiles',
]


def image_input(source: OnnxSource) -> TensorSpec:
    """Return the input that takes the image.

    Raises:
        EngineError: there is none, or more than one.
    """
    return split_inputs(source.file.path.name, source.inputs)[0]


def wanted_profiles(source: OnnxSource, options: BuildOptions) -> tuple[ShapeProfile, ...]:
    """Return the shapes to build for, none where the model's are fixed.

    Raises:
        EngineError: the model leaves sides open that the options do not say, or they contradict.
    """
    return resolve_profiles(image_input(source), options)


def run_shapes(
    source: OnnxSource, profiles: tuple[ShapeProfile, ...]
) -> dict[str, tuple[int, ...]]:
    """Return one final shape of each input, the image's first.

    It is the one that the engine is made fastest for.
    """
    image, beside = split_inputs(source.file.path.name, source.inputs)
    closed = replace(image, shape=profiles[0].opt if profiles else image.shape)
    return {closed.name: closed.shape, **shapes_beside(closed, beside)}


def outputs_at(
    source: OnnxSource, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[TensorSpec, ...]:
    """Return the outputs with the shapes that follow from the image's.

    ONNX infers them; what it cannot, one run on a black image tells.

    Raises:
        EngineError: the graph contradicts itself.
    """
    if unknown_operators(source.model):
        return source.outputs
    inferred = {
        value.name: tuple(side.dim_value or -1 for side in value.type.tensor_type.shape.dim)
        for value in infer_shapes(source.model, shapes).graph.output
    }
    outputs = tuple(replace(t, shape=inferred[t.name] or t.shape) for t in source.outputs)
    if all(tensor.shape and -1 not in tensor.shape for tensor in outputs):
        return outputs
    return _run_once(source, shapes, outputs)


def _run_once(
    source: OnnxSource, shapes: Mapping[str, tuple[int, ...]], outputs: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    """Return the outputs as ONNX Runtime gives them, where it takes the model."""
    image, beside = split_inputs(source.file.path.name, source.inputs)
    closed = replace(image, shape=shapes[image.name])
    size = image_size(closed)
    if size is None or image.dtype not in INPUT_DTYPES:
        return outputs
    batch = closed.shape[0] if len(closed.shape) == 4 else 1
    feed = {
        image.name: np.zeros(closed.shape, image.dtype),
        **constant_inputs(beside, size, batch),
    }
    try:
        found = open_session(source.model).run([tensor.name for tensor in outputs], feed)
    except Exception:  # of ONNX Runtime; TensorRT may know better, and the engine is looked at
        return outputs
    return tuple(
        replace(tensor, shape=tuple(side or -1 for side in array.shape))
        for tensor, array in zip(outputs, found, strict=True)
    )


def recognise_source(
    source: OnnxSource,
    options: BuildOptions,
    outputs: tuple[TensorSpec, ...],
    shape: tuple[int, ...],
) -> Recognised:
    """Tell how the model is fed and read: the options, its manifest, else the model itself.

    Args:
        source: the model.
        options: whose ``model`` group wins over everything.
        outputs: with final shapes.
        shape: final shape of the image input.

    Raises:
        EngineError: it is no detector that can be read, or something remains unknown.
        ConfigError: the file of class names cannot be read.
    """
    found, beside = split_inputs(source.file.path.name, source.inputs)
    image = replace(found, shape=shape)
    given = _given(options, image)
    manifest = source.file.manifest
    if manifest is None:
        return recognise(
            source.file.path.name,
            (image, *beside),
            outputs,
            source.metadata,
            source.file.config,
            given=given,
        )
    return Recognised(
        DECODERS[given.decoder] if given.decoder else manifest.decoder,
        replace(manifest.preprocessing, **given.preprocessing),
        given.class_names or manifest.class_names,
        _sources(f'{source.file.path.name}.json', options, given),
    )


def _sources(manifest: str, options: BuildOptions, given: ModelOverrides) -> tuple[str, ...]:
    """Tell what came from the options and what from the manifest, a sentence each."""
    fields = ('resize', 'antialias', 'pad_value', 'color_order', 'scale', 'mean', 'std')
    flags = [_flag(name) for name in fields if getattr(options, name) is not None]
    evidence = [f'{", ".join(flags)} -> preprocessing'] if flags else []
    rest = 'the rest of the preprocessing' if flags else 'preprocessing'
    if given.decoder:
        evidence.append(f'--decoder -> {given.decoder}')
    else:
        rest += ', decoder'
    if given.class_names:
        flag = '--class-names-file' if options.class_names_file else '--class-names'
        evidence.append(f'{flag} -> {len(given.class_names)} classes')
    else:
        rest += ', class names'
    return *evidence, f'{manifest} -> {rest}'


def check_readable(
    source: OnnxSource,
    recognised: Recognised,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> None:
    """Hold tensors to what was recognised, as whatever loads the engine will.

    Args:
        source: the model.
        recognised: how it would be fed and read.
        inputs: of the model, or of the network that TensorRT made of it; -1 for an open side.
        outputs: likewise.

    Raises:
        EngineError: an engine of it could not be loaded: it takes or gives something else.
    """
    if not all(tensor.shape for tensor in outputs):
        return  # operators of others: only the engine will tell
    name = source.file.path.name
    manifest = described(source.file, recognised, inputs, outputs).manifest
    given = ModelOverrides(written=_flag)
    resolve_model_spec(name, manifest, inputs, outputs, given, any_batch=True)


def _flag(name: str) -> str:
    """Return the option that says what the node's parameter ``model.NAME`` does."""
    return '--' + name.replace('_', '-')


def _given(options: BuildOptions, image: TensorSpec) -> ModelOverrides:
    values: dict[str, Any] = {
        'input_size': image_size(image),
        'resize': options.resize,
        'antialias': options.antialias,
        'pad_value': options.pad_value,
        'color_order': options.color_order,
        'scale': options.scale,
        'mean': options.mean,
        'std': options.std,
    }
    values = {key: value for key, value in values.items() if value is not None}
    return ModelOverrides(values, options.decoder or '', read_class_names(options), _flag)
