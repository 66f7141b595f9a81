"""What the first bytes of a TensorRT plan say of it."""

from __future__ import annotations

from dataclasses import dataclass

from trt_perception.errors import EngineError

__all__ = ['PlanHeader', 'read_plan_header']


@dataclass(frozen=True)
class PlanHeader:
    """The first bytes of a plan.

    Attributes:
        module: the Python module that reads it, ``tensorrt`` or ``tensorrt_rtx``.
        version: (major, minor, patch, build) of the TensorRT that built it.
    """

    module: str
    version: tuple[int, int, int, int]


def read_plan_header(content: bytes, name: str) -> PlanHeader:
    """Tell what built a plan, without TensorRT.

    The layout is that which trtexec --getPlanVersionOnly reads: magic in bytes 0 to 3, version in
    bytes 24 to 27.

    Raises:
        EngineError: these are not the bytes of a plan.
    """
    module = {b'ftrt': 'tensorrt', b'vtrt': 'tensorrt_rtx'}.get(content[:4])
    if module is None or len(content) < 64:
        raise EngineError(
            f'{name} is no TensorRT plan',
            f'{len(content)} bytes, the first are {content[:4].hex(" ")}',
            expected='at least 64 bytes that start with "ftrt" (TensorRT) or "vtrt" '
            '(TensorRT-RTX)',
            fix='copy the engine again, or build it again',
        )
    major, minor, patch, build = content[24:28]
    return PlanHeader(module, (major, minor, patch, build))
