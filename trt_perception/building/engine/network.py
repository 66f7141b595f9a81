"""From ONNX bytes to TensorRT's network: parsing, tensors, profiles, layers that stay in FP32."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from trt_perception.building.engine.hints import tensorrt_error
from trt_perception.building.engine.release import TensorRt
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.options.values import ShapeProfile
from trt_perception.errors import EngineError
from trt_perception.files.plain_text import join_first
from trt_perception.model.input_layout import auxiliary_shapes, split_inputs
from trt_perception.model.tensors import TensorSpec, parse_tensorrt_dtype
from trt_perception.stages.tensorrt_log import TensorRtLog

__all__ = ['add_profiles', 'keep_in_fp32', 'parse_onnx', 'resolve_profiles', 'tensor_specs']

_SHOWN: Final = 20
# How TensorRT and TensorRT-RTX 1.4 say that they have no such operator, with another error code.
_UNKNOWN: Final = re.compile(r'Plugin not found|Op type \S+ is not supported')


def parse_onnx(
    tensorrt: TensorRt, network: Any, said: TensorRtLog, content: bytes, name: str
) -> None:
    """Fill the network.

    Args:
        tensorrt: that builds.
        network: empty.
        said: what TensorRT says.
        content: the ONNX model, weights within.
        name: of the file, for messages.

    Raises:
        EngineError: the model is damaged, or TensorRT cannot take it; all operators that it does
            not support are listed, with where they are.
    """
    parser = tensorrt.module.OnnxParser(network, said.logger)
    # Not supports_model_v2: it logs all errors again, and on releases that were tried it names
    # whole subgraphs, supported nodes among them.
    if not parser.parse(content):
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        raise _parse_error(tensorrt, errors, said, name)
    if network.num_inputs == 0 or network.num_outputs == 0:
        raise EngineError(
            name,
            f'{network.num_inputs} inputs, {network.num_outputs} outputs in {len(content)} bytes',
            expected='an ONNX model with inputs and outputs',
        )


def _parse_error(
    tensorrt: TensorRt, errors: list[Any], said: TensorRtLog, name: str
) -> EngineError:
    unsupported: dict[str, list[str]] = {}
    others = []
    for error in errors:
        node, operator = str(error.node_name()), str(error.node_operator())
        text = ' '.join(str(error.desc()).split())
        if not operator:
            others.append(text)
        elif error.code().name.startswith('UNSUPPORTED_NODE') or _UNKNOWN.search(text):
            # TensorRT says "false" where a sentence should stand.
            reason = '' if text in ('false', '') or _UNKNOWN.search(text) else f' ({text})'
            unsupported.setdefault(operator, []).append(f'{node or "unnamed node"}{reason}')
        else:
            others.append(f'node {node} ({operator}): {text}')
    untaken = f'{tensorrt.label} cannot take this model'
    if unsupported:
        found = '; '.join(
            f'{operator} at {join_first(nodes, _SHOWN)}' for operator, nodes in unsupported.items()
        )
        lines = [untaken, f'unsupported operators: {found}', *others[:_SHOWN]]
        fix = 'export the model without them, or load their plugin library with --plugins'
        return EngineError(name, '\n'.join(lines), fix=fix)
    details = others[:_SHOWN] or list(said.errors)[-3:]
    return tensorrt_error(name, untaken, details, [*others, *said.errors])


def tensor_specs(network: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return inputs and outputs of a network; -1 for a side that is open."""
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    return tuple(map(_spec, inputs)), tuple(map(_spec, outputs))


def _spec(tensor: Any) -> TensorSpec:
    shape = tuple(int(side) for side in tensor.shape)
    return TensorSpec(str(tensor.name), shape, parse_tensorrt_dtype(tensor.dtype.name))


def resolve_profiles(image: TensorSpec, options: BuildOptions) -> tuple[ShapeProfile, ...]:
    """Return the profiles for an image input, none where all its sides are fixed.

    Raises:
        EngineError: sides are open and the options do not say what they are, or the options
            contradict sides that are fixed.
    """
    allowed = 'x'.join('?' if side < 0 else str(side) for side in image.shape)
    given = options.shapes or _from_sizes(image, options, allowed)
    for ranges in given:
        for shape in (ranges.min, ranges.opt, ranges.max):
            if len(shape) != len(image.shape) or any(
                side not in (-1, wanted) for side, wanted in zip(image.shape, shape, strict=True)
            ):
                raise EngineError(
                    f'input {image.name!r}',
                    'x'.join(map(str, shape)),
                    expected=f'{allowed}, where ? may be any number',
                    fix='export another ONNX model for other shapes'
                    + '; one that leaves the batch open takes every --batch' * bool(options.batch),
                )
    return given if -1 in image.shape else ()


def _from_sizes(
    image: TensorSpec, options: BuildOptions, allowed: str
) -> tuple[ShapeProfile, ...]:
    """Make the shape that input size and each batch ask for, as far as they are given."""
    wanted = [image.shape]
    if len(image.shape) == 4:
        batch, channels, height, width = image.shape
        width, height = options.input_size or (width, height)
        wanted = [(size, channels, height, width) for size in options.batch or (batch,)]
    if any(-1 in shape for shape in wanted):
        raise EngineError(
            f'input {image.name!r}',
            f'leaves sides open ({allowed})',
            fix='give --shapes, as in 1x3x640x640 or 1x3x320x320:1x3x640x640:1x3x1280x1280; '
            '--batch 1 does where only the first is open',
        )
    return tuple(ShapeProfile(shape, shape, shape) for shape in wanted)


def add_profiles(
    builder: Any, config: Any, inputs: tuple[TensorSpec, ...], options: BuildOptions
) -> tuple[ShapeProfile, ...]:
    """Add the profiles of the image input to the configuration; return them.

    Open sides of the auxiliary inputs follow the image's.

    Raises:
        EngineError: as resolve_profiles and split_inputs.
    """
    image, auxiliary = split_inputs(options.onnx.name, inputs)
    profiles = resolve_profiles(image, options)
    open_auxiliary = [tensor for tensor in auxiliary if -1 in tensor.shape]
    wanted_for = profiles or ((ShapeProfile(*(image.shape,) * 3),) if open_auxiliary else ())
    for wanted in wanted_for:
        profile = builder.create_optimization_profile()
        profile.set_shape(image.name, wanted.min, wanted.opt, wanted.max)
        sizes = [
            auxiliary_shapes(replace(image, shape=shape), auxiliary)
            for shape in (wanted.min, wanted.opt, wanted.max)
        ]
        for tensor in open_auxiliary:
            profile.set_shape(tensor.name, *(size[tensor.name] for size in sizes))
        if config.add_optimization_profile(profile) < 0:
            raise EngineError(f'input {image.name!r}', f'TensorRT refuses the shapes {wanted}')
    return profiles


def keep_in_fp32(tensorrt: TensorRt, network: Any, nodes: Collection[str]) -> None:
    """Hold the layers made from these ONNX nodes to FP32, in a weakly typed network.

    A layer that computes no floating-point numbers stays as it is.
    """
    trt = tensorrt.module
    floats = (trt.DataType.FLOAT, trt.DataType.HALF)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        # One node can become several layers; only the metadata names the node then.
        origin = re.match(r'\[ONNX Layer: (.*?)\]', str(layer.metadata))
        if (origin[1] if origin else layer.name) not in nodes:
            continue
        outputs = [i for i in range(layer.num_outputs) if layer.get_output(i).dtype in floats]
        if not outputs or layer.type == trt.LayerType.CONSTANT:
            continue
        layer.precision = trt.DataType.FLOAT
        for i in outputs:
            layer.set_output_type(i, trt.DataType.FLOAT)
