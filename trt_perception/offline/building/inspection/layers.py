# SPDX-License-Identifier: Apache-2.0
"""Reads the layers of an engine from the report of TensorRT's inspector.

A layer is one kernel, made from several ONNX nodes or from a part of a node. The profiling
verbosity of the build decides what the inspector reports: ``detailed`` includes types,
``layer_names_only`` has names, and ``none`` nothing. This module uses the same type names for
both flavours. TensorRT reports a type with its memory format (``Channel major FP16 format where
channel % 8 == 0``), TensorRT-RTX without (``Half``). The inspector cannot distinguish FP32 and
TF32.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trt_perception.errors import EngineError

#: At least this share of the convolutions and matrix products must have the requested precision.
MIN_PRECISION_SHARE: Final = 0.5
_TYPE_WORD: Final = re.compile(r'[a-z]+[0-9]*')
# Types of arithmetic, narrowest first. A layer computes in the narrowest type that it reads.
_TYPES_BY_WIDTH: Final[tuple[str, ...]] = (
    'fp4',
    'int4',
    'fp8',
    'int8',
    'uint8',
    'fp16',
    'bf16',
    'fp32',
)
# Maps words for types in TensorRT's and TensorRT-RTX's reports to this package's type names.
_TYPE_BY_WORD: Final = {name: name for name in (*_TYPES_BY_WIDTH, 'int32', 'int64', 'bool')} | {
    'float': 'fp32',
    'float32': 'fp32',
    'half': 'fp16',
    'float16': 'fp16',
    'bfloat16': 'bf16',
}
# For each requested precision, the types of layers that fulfil the request.
_ACCEPTED_TYPES: Final = {
    'fp32': ('fp32',),
    'tf32': ('fp32',),
    'fp16': ('fp16', 'fp8', 'int8'),
    'bf16': ('bf16', 'fp8', 'int8'),
    'int8': ('int8', 'uint8'),
    'fp8': ('fp8',),
}
_COMPUTE_LAYER_WORDS: Final = re.compile(
    r'conv|corr|gemm|matmul|matrix_?mult|fully', re.IGNORECASE
)


@dataclass(frozen=True)
class LayerInfo:
    """One layer of an engine.

    Attributes:
        name: TensorRT's name, also used by its profiler.
        kind: TensorRT's layer type; empty if not reported.
        inputs: data type of each input; an unknown type is empty.
        outputs: data type of each output; an unknown type is empty.
        tactic: name of the kernel; empty if not reported.
        nodes: names of the ONNX nodes that the layer was made from.
    """

    name: str
    kind: str = ''
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    tactic: str = ''
    nodes: tuple[str, ...] = ()

    @property
    def precision(self) -> str:
        """The type of the arithmetic: the narrowest input type; empty if not reported."""
        reported = [kind for kind in _TYPES_BY_WIDTH if kind in self.inputs] or list(
            self.inputs[:1]
        )
        return reported[0] if reported else ''

    @property
    def is_compute_layer(self) -> bool:
        """Whether the layer's kind or name stands for a convolution or matrix product."""
        return bool(_COMPUTE_LAYER_WORDS.search(f'{self.kind} {self.name}'))


@dataclass(frozen=True)
class PrecisionCheck:
    """The result of comparing an engine's layers with the requested precision.

    The requested type is accepted. For FP16 and BF16, FP8 and INT8 are accepted too.

    Attributes:
        share: share of convolutions and matrix products with a known type that have an accepted
            type, 0…1; 1 if there are none.
        deviations: type of each convolution or matrix product in a type that is not accepted, by
            name of the ONNX node or layer.
    """

    requested: str
    share: float
    deviations: Mapping[str, str]
    node_count: int


def parse_layers(text: str) -> tuple[LayerInfo, ...]:
    """Return the layers in the inspector's JSON; () if the text is empty.

    Raises:
        EngineError: the text is not a known report of TensorRT.
    """
    if not text.strip():
        return ()
    try:
        content = json.loads(text, strict=False)
        return tuple(_parse_layer(entry) for entry in content['Layers'])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineError(
            "the inspector's text",
            f'is not a known report of TensorRT ({error!r}): {text[:200]!r}',
        ) from error


def _parse_layer(entry: Any) -> LayerInfo:
    if isinstance(entry, str):
        return LayerInfo(entry)
    return LayerInfo(
        name=str(entry['Name']),
        kind=' '.join(str(entry[key]) for key in ('LayerType', 'ParameterType') if entry.get(key)),
        inputs=tuple(_tensor_type(tensor) for tensor in entry.get('Inputs', ())),
        outputs=tuple(_tensor_type(tensor) for tensor in entry.get('Outputs', ())),
        tactic=str(entry.get('TacticName') or ''),
        nodes=tuple(
            dict.fromkeys(re.findall(r'\[ONNX Layer: (.*?)\]', str(entry.get('Metadata', ''))))
        ),
    )


def _tensor_type(tensor: Mapping[str, Any]) -> str:
    words = _TYPE_WORD.findall(str(tensor.get('Format/Datatype', '')).lower())
    return next((_TYPE_BY_WORD[word] for word in words if word in _TYPE_BY_WORD), '')


def layer_precisions(layers: Sequence[LayerInfo]) -> dict[str, int]:
    """Return the number of layers for each type of arithmetic, the most frequent type first.

    Layers without inputs, or of unknown type, are left out.
    """
    return dict(Counter(layer.precision for layer in layers if layer.precision).most_common())


def compare_precision(
    layers: Sequence[LayerInfo],
    requested: str,
    nodes: Collection[str] | None = None,
    excluded_nodes: Collection[str] = (),
) -> PrecisionCheck:
    """Compare an engine's layers with the requested precision.

    Args:
        requested: ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``int8`` or ``fp8``.
        nodes: names of the convolutions and matrix products in the ONNX model; None if the model
            is unknown. Then the kind or name of a layer shows whether the layer is a convolution
            or matrix product.
        excluded_nodes: ONNX nodes that deliberately have another precision.
    """
    type_by_name: dict[str, str] = {}
    for layer in layers:
        if nodes is None:
            names = [layer.name] if layer.is_compute_layer else []
            names = [] if set(layer.nodes) & set(excluded_nodes) else names
        else:
            names = [name for name in layer.nodes if name in nodes and name not in excluded_nodes]
        for name in names:
            # A node may also have a conversion layer, which reads a wider type.
            type_by_name[name] = _narrower_type(type_by_name.get(name, ''), layer.precision)
    reported = {name: kind for name, kind in type_by_name.items() if kind}
    deviations = {
        name: kind for name, kind in reported.items() if kind not in _ACCEPTED_TYPES[requested]
    }
    share = 1 - len(deviations) / len(reported) if reported else 1.0
    return PrecisionCheck(requested, share, deviations, len(reported))


def _narrower_type(first: str, second: str) -> str:
    return min(
        (first, second),
        key=lambda kind: _TYPES_BY_WIDTH.index(kind) if kind in _TYPES_BY_WIDTH else 99,
    )


def check_precision(check: PrecisionCheck, name: str) -> None:
    """Refuse an engine that mostly computes in a wider type than requested.

    Raises:
        EngineError: less than half of the convolutions and matrix products with a known type have
            an accepted type.
    """
    if check.share >= MIN_PRECISION_SHARE:
        return
    counts = Counter(check.deviations.values())
    built = ', '.join(f'{count} in {kind}' for kind, count in counts.most_common())
    raise EngineError(
        name,
        f'{check.share:.0%} of {check.node_count}; {built}',
        expected=f'at least half of the convolutions and matrix products in {check.requested} '
        'or narrower',
        fix='use another --precision, because the GPU or the release may lack fast kernels '
        f'for {check.requested}',
    )
