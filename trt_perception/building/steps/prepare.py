"""What an engine is built from: how the model is fed and read, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from trt_perception.building.calibration.activations import open_session
from trt_perception.building.graph.mac_count import infer_shapes
from trt_perception.building.graph.onnx_model import OnnxSource, unknown_operators
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.options.sources import read_class_names
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.input_layout import constant_inputs, image_size
from trt_perception.model.model_spec import resolve_model_spec
from trt_perception.model.recognition.recognise import (
    ModelDescription,
    ModelOverrides,
    apply_overrides,
    recognise,
)
from trt_perception.model.tensors import INPUT_DTYPES, ModelInfo, TensorSpec

__all__ = ['RecognisedModel', 'check_loadable', 'infer_outputs', 'recognise_source']

#: Options that are fields of Preprocessing.
_PREPROCESSING: Final = (
    *('resize', 'antialias', 'pad_value', 'color_order', 'scale', 'mean', 'std'),
)


@dataclass(frozen=True)
class RecognisedModel:
    """How a model is fed and read, and the shapes that its engine is built for.

    Attributes:
        recognised: how it is fed and read.
        shapes: final shape of each input by name, the image's first.
        other_shapes: those of the second profile, where there are several.
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
        """The shape of the image input that the engine is made fastest for."""
        return self.shapes[self.image_name]


def infer_outputs(
    source: OnnxSource,
    shapes: Mapping[str, tuple[int, ...]],
    image: TensorSpec,
    auxiliary: Sequence[TensorSpec],
) -> tuple[TensorSpec, ...]:
    """Return the outputs with the shapes that follow from the inputs'.

    ONNX infers them; what it cannot, one run on a black image shows, where ONNX Runtime takes the
    model.

    Args:
        source: the model.
        shapes: final shapes of the inputs.
        image: the image input in its final shape.
        auxiliary: the other inputs.

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
    except Exception:  # of ONNX Runtime; TensorRT may know better, and the engine is looked at
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
    """Return how the model is fed and read: the options, its manifest, else the model itself.

    Args:
        source: the model.
        options: whose ``model`` group wins over everything.
        inputs: the image first, in its final shape.
        outputs: with final shapes.

    Raises:
        EngineError: it is not a detector that can be read, or something remains unknown.
        ConfigError: the file of class names cannot be read.
    """
    given = _overrides(options, inputs[0])
    name, manifest = source.file.path.name, source.file.manifest
    if manifest is None:
        model = ModelInfo(name, inputs, outputs, source.metadata, source.file.config)
        return recognise(model, given)
    return apply_overrides(manifest, given, _evidence(f'{name}.json', given))


def _overrides(options: BuildOptions, image: TensorSpec) -> ModelOverrides:
    values: dict[str, Any] = {name: getattr(options, name) for name in _PREPROCESSING}
    values = {'input_size': image_size(image), **values}
    values = {name: value for name, value in values.items() if value is not None}
    return ModelOverrides(values, options.decoder or '', read_class_names(options), _flag)


def _evidence(manifest: str, given: ModelOverrides) -> tuple[str, ...]:
    """Return what came from the options and what from the manifest, a sentence each."""
    evidence, rest = [], ['preprocessing']
    if flags := [_flag(name) for name in _PREPROCESSING if name in given.preprocessing]:
        evidence, rest = (
            [f'{", ".join(flags)} -> preprocessing'],
            ['the rest of the preprocessing'],
        )
    if given.decoder:
        evidence.append(f'--decoder -> {given.decoder}')
    else:
        rest.append('decoder')
    if given.class_names:
        evidence.append(f'--class-names -> {len(given.class_names)} classes')
    else:
        rest.append('class names')
    return *evidence, f'{manifest} -> {", ".join(rest)}'


def check_loadable(model: ModelFile) -> None:
    """Hold a model to its manifest, as whatever loads it will.

    Args:
        model: the ONNX model, or the engine that TensorRT made of it; -1 for an open side.

    Raises:
        EngineError: an engine of it could not be loaded: it takes or gives something else.
    """
    manifest = model.manifest
    assert manifest is not None
    if not all(tensor.shape for tensor in manifest.outputs):
        return  # operators of others: only the engine will show
    loaded = ModelInfo(model.path.name, manifest.inputs, manifest.outputs)
    resolve_model_spec(loaded, manifest, ModelOverrides(parameter_name=_flag))


def _flag(name: str) -> str:
    """Return the option that says what the node's parameter ``model.NAME`` does."""
    return '--' + name.replace('_', '-')
