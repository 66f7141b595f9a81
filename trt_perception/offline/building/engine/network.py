# SPDX-License-Identifier: Apache-2.0
"""Makes TensorRT's network from ONNX bytes: parsing, profiles, and layers that stay in FP32."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

from trt_perception.errors import EngineError
from trt_perception.files.plain_text import join_first_items
from trt_perception.model.input_layout import auxiliary_shapes, split_inputs
from trt_perception.model.tensors import TensorSpec, parse_tensorrt_dtype
from trt_perception.offline.building.engine.hints import UNSUPPORTED_OPERATOR, tensorrt_error
from trt_perception.offline.building.engine.release import TensorRt
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.options.values import ShapeProfile
from trt_perception.stages.tensorrt.log import TensorRtLog

_MAX_LISTED: Final = 20
# TensorRT and TensorRT-RTX 1.4 report a missing operator with this text and a general code.
_UNKNOWN_OPERATOR_MESSAGE: Final = re.compile(r'Plugin not found|Op type \S+ is not supported')


def parse_onnx(
    tensorrt: TensorRt, network: Any, trt_log: TensorRtLog, content: bytes, name: str
) -> None:
    """Parse an ONNX model into a TensorRT network.

    Args:
        network: an empty network.
        content: the ONNX model with embedded weights.

    Raises:
        EngineError: the model is damaged, or TensorRT cannot use it. The message lists all
            unsupported operators with their nodes.
    """
    parser = tensorrt.module.OnnxParser(network, trt_log.logger)
    # Do not use supports_model_v2. It would log all errors again. In the tested releases, it
    # names whole subgraphs, which include supported nodes.
    if not parser.parse(content):
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        raise _parse_error(tensorrt, errors, trt_log, name)
    if network.num_inputs == 0 or network.num_outputs == 0:
        raise EngineError(
            name,
            f'{network.num_inputs} inputs, {network.num_outputs} outputs in {len(content)} bytes',
            expected='an ONNX model with inputs and outputs',
        )


def _parse_error(
    tensorrt: TensorRt, errors: list[Any], trt_log: TensorRtLog, name: str
) -> EngineError:
    unsupported: dict[str, list[str]] = {}
    others = []
    for error in errors:
        node, operator = str(error.node_name()), str(error.node_operator())
        text = ' '.join(str(error.desc()).split())
        if not operator:
            others.append(text)
        elif error.code().name.startswith('UNSUPPORTED_NODE') or _UNKNOWN_OPERATOR_MESSAGE.search(
            text
        ):
            # For some nodes TensorRT's text is "false" instead of a sentence.
            reason = (
                ''
                if text in ('false', '') or _UNKNOWN_OPERATOR_MESSAGE.search(text)
                else f' ({text})'
            )
            unsupported.setdefault(operator, []).append(f'{node or "unnamed node"}{reason}')
        else:
            others.append(f'node {node} ({operator}): {text}')
    summary = f'{tensorrt.label} cannot use this model'
    if unsupported:
        found = '; '.join(
            f'{operator} at {join_first_items(nodes, _MAX_LISTED)}'
            for operator, nodes in unsupported.items()
        )
        lines = [summary, f'unsupported operators: {found}', *others[:_MAX_LISTED]]
        return EngineError(name, '\n'.join(lines), fix=UNSUPPORTED_OPERATOR.fix(tensorrt))
    details = others[:_MAX_LISTED] or list(trt_log.errors)[-3:]
    return tensorrt_error(tensorrt, name, summary, details, [*others, *trt_log.errors])


def input_and_output_specs(network: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs and the outputs of a network. A dynamic dimension is -1."""
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    return tuple(map(_tensor_spec, inputs)), tuple(map(_tensor_spec, outputs))


def _tensor_spec(tensor: Any) -> TensorSpec:
    shape = tuple(int(side) for side in tensor.shape)
    return TensorSpec(str(tensor.name), shape, parse_tensorrt_dtype(tensor.dtype.name))


def resolve_profiles(image: TensorSpec, options: BuildOptions) -> tuple[ShapeProfile, ...]:
    """Return the profiles for an image input; () if all its dimensions are fixed.

    Raises:
        EngineError: the options give no value for a dynamic dimension, or contradict a fixed
            dimension.
    """
    allowed = 'x'.join('?' if side < 0 else str(side) for side in image.shape)
    profiles = options.shapes or _profiles_from_sizes(image, options, allowed)
    for ranges in profiles:
        for shape in (ranges.min, ranges.opt, ranges.max):
            if len(shape) != len(image.shape) or any(
                side not in (-1, wanted) for side, wanted in zip(image.shape, shape, strict=True)
            ):
                raise EngineError(
                    f'input {image.name!r}',
                    'x'.join(map(str, shape)),
                    expected=allowed + ', with any number for ?' * ('?' in allowed),
                    fix='export the model for other shapes'
                    + '; a model with dynamic batch supports every --batch' * bool(options.batch),
                )
    return profiles if -1 in image.shape else ()


def _profiles_from_sizes(
    image: TensorSpec, options: BuildOptions, allowed: str
) -> tuple[ShapeProfile, ...]:
    """Return a profile of one shape for each value of --batch, with the input size of the options.

    Other dimensions come from the model.

    Raises:
        EngineError: a dimension stays dynamic.
    """
    wanted = [image.shape]
    if len(image.shape) == 4:
        batch, channels, height, width = image.shape
        width, height = options.input_size or (width, height)
        wanted = [(size, channels, height, width) for size in options.batch or (batch,)]
    if all(-1 not in shape[1:] for shape in wanted) and len(image.shape) == 4:
        fix = 'add --batch 1, or --batch 1,4,8 for several cameras'
    else:
        fix = (
            'add --input-size 640x640 and --batch 1, or --shapes, such as '
            '1x3x320x320:1x3x640x640:1x3x1280x1280'
        )
    if any(-1 in shape for shape in wanted):
        raise EngineError(f'input {image.name!r}', f'has dynamic dimensions ({allowed})', fix=fix)
    return tuple(ShapeProfile(shape, shape, shape) for shape in wanted)


def add_profiles(
    builder: Any, config: Any, inputs: tuple[TensorSpec, ...], options: BuildOptions
) -> tuple[ShapeProfile, ...]:
    """Add optimisation profiles to the configuration, and return the image input's shapes.

    Dynamic dimensions of the auxiliary inputs follow the image's shape.

    Raises:
        EngineError: TensorRT refuses a shape. See also resolve_profiles and split_inputs.
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
    """Make the layers of these ONNX nodes compute in FP32, in a weakly typed network.

    Layers without floating-point outputs, and constants, are not changed.
    """
    trt = tensorrt.module
    floats = (trt.DataType.FLOAT, trt.DataType.HALF)
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        # A node can become several layers, whose names differ from the node's name. Only the
        # metadata has the node's name then.
        origin = re.match(r'\[ONNX Layer: (.*?)\]', str(layer.metadata))
        if (origin[1] if origin else layer.name) not in nodes:
            continue
        outputs = [i for i in range(layer.num_outputs) if layer.get_output(i).dtype in floats]
        if not outputs or layer.type == trt.LayerType.CONSTANT:
            continue
        layer.precision = trt.DataType.FLOAT
        for i in outputs:
            layer.set_output_type(i, trt.DataType.FLOAT)
