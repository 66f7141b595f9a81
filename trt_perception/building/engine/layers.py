"""The layers of a finished engine, as TensorRT's inspector reports them: types, tactics, origin.

A layer is one kernel, made from several ONNX nodes or from a part of one. What is reported depends
on the profiling verbosity of the build: ``detailed`` reports types, ``layer_names_only`` names,
and ``none`` nothing. Types are the same words for TensorRT and TensorRT-RTX here; TensorRT reports
them with the memory format (``Channel major FP16 format where channel % 8 == 0``), TensorRT-RTX
without (``Half``). Non-guarantee: FP32 and TF32 look the same to the inspector.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from trt_perception.errors import EngineError

__all__ = [
    'LayerInfo',
    'PrecisionCheck',
    'check_precision',
    'layer_precisions',
    'parse_layers',
    'require_precision',
]

#: Less than this share of the convolutions and matrix products in the precision asked for is an
#: error.
MIN_SHARE: Final = 0.5
_WORD: Final = re.compile(r'[a-z]+[0-9]*')
# Those that compute, from narrow to wide: a layer computes in the narrowest type that it reads.
_WIDTH: Final[tuple[str, ...]] = ('fp4', 'int4', 'fp8', 'int8', 'uint8', 'fp16', 'bf16', 'fp32')
# By the word that TensorRT or TensorRT-RTX has for it.
_TYPES: Final = {name: name for name in (*_WIDTH, 'int32', 'int64', 'bool')} | {
    'float': 'fp32',
    'float32': 'fp32',
    'half': 'fp16',
    'float16': 'fp16',
    'bfloat16': 'bf16',
}
# What may stand in for the type asked for, because it is no wider.
_FULFILS: Final = {
    'fp32': ('fp32',),
    'tf32': ('fp32',),
    'fp16': ('fp16', 'fp8', 'int8'),
    'bf16': ('bf16', 'fp8', 'int8'),
    'int8': ('int8', 'uint8'),
    'fp8': ('fp8',),
}
_COMPUTE: Final = re.compile(r'conv|corr|gemm|matmul|matrix_?mult|fully', re.IGNORECASE)


@dataclass(frozen=True)
class LayerInfo:
    """One layer of an engine.

    Attributes:
        name: TensorRT's, which its profiler uses too.
        kind: TensorRT's word for what it is, empty where it does not report.
        inputs: type of each input, in the words of _TYPES.
        outputs: type of each output.
        tactic: the kernel chosen, empty where it does not report.
        nodes: the ONNX nodes it was made from.
    """

    name: str
    kind: str = ''
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    tactic: str = ''
    nodes: tuple[str, ...] = ()

    @property
    def precision(self) -> str:
        """The type it computes in: the narrowest it reads; empty where nothing is reported."""
        known = [kind for kind in _WIDTH if kind in self.inputs] or list(self.inputs[:1])
        return known[0] if known else ''

    @property
    def is_compute_layer(self) -> bool:
        """Whether kind or name speak of a convolution or a matrix product."""
        return bool(_COMPUTE.search(f'{self.kind} {self.name}'))


@dataclass(frozen=True)
class PrecisionCheck:
    """How far an engine has the precision asked for.

    Attributes:
        requested: the precision.
        share: of the convolutions and matrix products, those that compute in it or in a narrower
            type; by number, 0…1. 1 where there are none.
        deviations: type of each of the others, by ONNX node or by layer.
        node_count: how many there are.
    """

    requested: str
    share: float
    deviations: Mapping[str, str]
    node_count: int


def parse_layers(text: str) -> tuple[LayerInfo, ...]:
    """Read the inspector's JSON; () where the engine was built to report nothing.

    Raises:
        EngineError: it is not what TensorRT writes.
    """
    if not text.strip():
        return ()
    try:
        content = json.loads(text, strict=False)
        return tuple(_layer(entry) for entry in content['Layers'])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EngineError(
            "the inspector's text",
            f'is not what TensorRT is known to write ({error!r}): {text[:200]!r}',
        ) from error


def _layer(entry: Any) -> LayerInfo:
    if isinstance(entry, str):
        return LayerInfo(entry)
    return LayerInfo(
        name=str(entry['Name']),
        kind=' '.join(str(entry[key]) for key in ('LayerType', 'ParameterType') if entry.get(key)),
        inputs=tuple(_type(tensor) for tensor in entry.get('Inputs', ())),
        outputs=tuple(_type(tensor) for tensor in entry.get('Outputs', ())),
        tactic=str(entry.get('TacticName') or ''),
        nodes=tuple(
            dict.fromkeys(re.findall(r'\[ONNX Layer: (.*?)\]', str(entry.get('Metadata', ''))))
        ),
    )


def _type(tensor: Mapping[str, Any]) -> str:
    words = _WORD.findall(str(tensor.get('Format/Datatype', '')).lower())
    return next((_TYPES[word] for word in words if word in _TYPES), '')


def layer_precisions(layers: Sequence[LayerInfo]) -> dict[str, int]:
    """Return the number of layers by the type they compute in, most first.

    Layers that read nothing, and those whose type the inspector does not report, are left out.
    """
    return dict(Counter(layer.precision for layer in layers if layer.precision).most_common())


def check_precision(
    layers: Sequence[LayerInfo],
    requested: str,
    nodes: Collection[str] | None = None,
    excluded_nodes: Collection[str] = (),
) -> PrecisionCheck:
    """Compare an engine's layers with the precision asked for.

    Args:
        layers: from parse_layers, with types.
        requested: ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``int8`` or ``fp8``.
        nodes: the ONNX model's convolutions and matrix products that were to have it; None
            where the model is not there: then layers whose name or kind speaks of one.
        excluded_nodes: ONNX nodes that were to stay in another precision.
    """
    found: dict[str, str] = {}
    for layer in layers:
        if nodes is None:
            names = [layer.name] if layer.is_compute_layer else []
            names = [] if set(layer.nodes) & set(excluded_nodes) else names
        else:
            names = [name for name in layer.nodes if name in nodes and name not in excluded_nodes]
        for name in names:
            # A node's layers may include a conversion that reads the wider type.
            found[name] = _narrower(found.get(name, ''), layer.precision)
    known = {name: kind for name, kind in found.items() if kind}
    deviations = {name: kind for name, kind in known.items() if kind not in _FULFILS[requested]}
    share = 1 - len(deviations) / len(known) if known else 1.0
    return PrecisionCheck(requested, share, deviations, len(known))


def _narrower(one: str, other: str) -> str:
    return min((one, other), key=lambda kind: _WIDTH.index(kind) if kind in _WIDTH else 99)


def require_precision(check: PrecisionCheck, name: str) -> None:
    """Refuse an engine that mostly lacks the precision asked for.

    Raises:
        EngineError: less than half of its convolutions and matrix products have it.
    """
    if check.share >= MIN_SHARE:
        return
    counts = Counter(check.deviations.values())
    built = ', '.join(f'{count} in {kind}' for kind, count in counts.most_common())
    raise EngineError(
        name,
        f'only {check.share:.0%} of {check.node_count} convolutions and matrix '
        f'products in it or narrower; {built}',
        expected=check.requested,
        fix='use another --precision: the GPU or the release may lack fast kernels for it',
    )
