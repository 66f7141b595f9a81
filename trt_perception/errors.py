"""The exceptions of trt_perception.

    TrtPerceptionError
    ├── ConfigError     a parameter or option has a value that cannot work
    ├── EngineError     an engine or ONNX file cannot be used
    │   ├── ManifestError   its manifest is missing something, malformed or contradicts the file
    │   ├── BatchError      it takes several images at once, and one is all there is
    │   └── UnsaidError     nothing says how to feed or read it; parameters could
    ├── CudaError       a CUDA call failed
    ├── ImageError      one image cannot be read; carries the reason it is counted under
    ├── InterruptionError   the process was asked to end in the middle of something long
    └── WriteError      a file cannot be written: no room, no permission

Each message says what was expected, what was found and what to do. An error of a lower layer is
always attached as the cause.
"""

from __future__ import annotations

__all__ = [
    'BatchError',
    'ConfigError',
    'CudaError',
    'EngineError',
    'ImageError',
    'InterruptionError',
    'ManifestError',
    'MissingModelInfoError',
    'TrtPerceptionError',
    'WriteError',
]


class TrtPerceptionError(Exception):
    """Base of all errors that this package raises on purpose."""


class ConfigError(TrtPerceptionError):
    """Raised when a parameter or option has a value that cannot work."""


class EngineError(TrtPerceptionError):
    """Raised when an engine or ONNX file cannot be used."""


class ManifestError(EngineError):
    """Raised when a manifest is malformed or contradicts the file it stands beside."""


class BatchError(EngineError):
    """Raised when a model takes several images at once where they come one by one."""


class MissingModelInfoError(EngineError):
    """Raised when nothing says how to feed or read a model, and parameters could."""


class CudaError(TrtPerceptionError):
    """Raised when a CUDA call fails.

    Attributes:
        sticky: the GPU context is lost; nothing in this process can use the GPU any more.
    """

    def __init__(self, message: str, *, sticky: bool = False) -> None:
        super().__init__(message)
        self.sticky = sticky


class ImageError(TrtPerceptionError):
    """Raised when one image cannot be read.

    Attributes:
        reason: a short snake_case word; dropped frames are counted by it (``bad_step``,
            ``bad_length`` …).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class InterruptionError(TrtPerceptionError):
    """Raised between two steps of something long, when the process was asked to end."""


class WriteError(TrtPerceptionError):
    """Raised when a file cannot be written: no room, no permission, no folder."""
