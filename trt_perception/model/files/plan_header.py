# SPDX-License-Identifier: Apache-2.0
"""Reads the header of a TensorRT plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trt_perception.errors import EngineError

#: For each builder's module, the modules that may load its plans, in order of preference.
#: ``tensorrt_lean`` loads only version-compatible plans.
LOADERS: Final = {
    'tensorrt': ('tensorrt', 'tensorrt_lean'),
    'tensorrt_rtx': ('tensorrt_rtx',),
}
#: Maps each compute capability that TensorRT-RTX builds for to its bit in byte 32 of a plan.
#: TensorRT-RTX 1.4 has no 12.1. NVIDIA does not document the bits. They were read from plans of
#: 1.4 and 1.7, each built for one compute capability.
RTX_TARGET_BITS: Final = {'7.5': 1, '8.0': 2, '8.6': 4, '8.9': 8, '12.0': 16, '12.1': 32}


@dataclass(frozen=True)
class PlanHeader:
    """The header of a plan.

    Attributes:
        module: the Python module that built the plan: ``tensorrt`` or ``tensorrt_rtx``.
        version: (major, minor, patch, build) of the TensorRT that built the plan.
    """

    module: str
    version: tuple[int, int, int, int]

    @property
    def loaders(self) -> tuple[str, ...]:
        """The Python modules that may load the plan, in order of preference."""
        return LOADERS[self.module]


def read_plan_header(content: bytes, name: str) -> PlanHeader:
    """Read the header of a plan, without loading TensorRT.

    ``trtexec --getPlanVersionOnly`` reads the same layout: the magic number in bytes 0 to 3, and
    the version in bytes 24 to 27.

    Raises:
        EngineError: the content is not a plan.
    """
    module = {b'ftrt': 'tensorrt', b'vtrt': 'tensorrt_rtx'}.get(content[:4])
    if module is None or len(content) < 64:
        raise EngineError(
            f'{name} is not a TensorRT plan',
            f'{len(content)} bytes{"" if module else ", which start otherwise"}',
            expected='at least 64 bytes that start with "ftrt" (TensorRT) or "vtrt" '
            '(TensorRT-RTX)',
            fix='copy the engine again, or build it again',
        )
    major, minor, patch, build = content[24:28]
    return PlanHeader(module, (major, minor, patch, build))
