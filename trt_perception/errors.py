"""The exceptions of trt_perception.

    TrtPerceptionError
    ├── ConfigError     a parameter or option has an invalid value
    │   └── ValuesError     several parameters have
    ├── EngineError     an engine or ONNX file cannot be used
    │   ├── MissingFileError    it cannot be opened
    │   ├── ManifestError   its manifest is malformed or does not describe the file
    │   ├── MissingModelInfoError   parameters are needed to say how to feed or read it
    │   └── UnavailableError    build options need what this release or machine lacks
    ├── CudaError       a CUDA call failed
    │   └── GpuMemoryError  GPU memory or page-locked memory is exhausted
    ├── ImageError      one image cannot be read; has the drop reason
    ├── InterruptionError   the process was asked to end during a long task
    └── WriteError      a file cannot be written

An error holds what was found, what was expected and what to do as fields. ``str`` makes a sentence
of them; who needs a part takes the field and never reads the sentence. An error of a lower layer
is always attached as the cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = [
    *('ConfigError', 'CudaError', 'EngineError', 'GpuMemoryError', 'ImageError'),
    *('InterruptionError', 'ManifestError', 'MissingFileError', 'MissingModelInfoError'),
    *('TrtPerceptionError', 'UnavailableError', 'ValuesError', 'WriteError'),
]


class TrtPerceptionError(Exception):
    """Base class of all errors that the package raises on purpose.

    Attributes:
        subject: what the error is about: a file, a parameter, a call.
        found: what is there.
        expected: what should be there; empty where ``found`` says it all.
        fix: what to do, as an instruction; empty where nobody can do anything.
    """

    def __init__(self, subject: str, found: str, *, expected: str = '', fix: str = '') -> None:
        super().__init__(subject, found, expected, fix)
        self.subject = subject
        self.found = found
        self.expected = expected
        self.fix = fix

    @property
    def statement(self) -> str:
        """What is wrong, without what to do."""
        if self.expected:
            return f'{self.subject}: expected {self.expected} (got {self.found})'
        return f'{self.subject}: {self.found}'

    def __str__(self) -> str:
        return f'{self.statement}; {self.fix}' if self.fix else self.statement


class ConfigError(TrtPerceptionError):
    """Raised when a parameter or option has an invalid value."""


class ValuesError(ConfigError):
    """Raised when several parameters have invalid values; lists them all.

    Attributes:
        mistakes: one sentence for each.
    """

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__('values', '; '.join(mistakes))
        self.mistakes = tuple(mistakes)

    @property
    def statement(self) -> str:
        """All mistakes, a line each."""
        return '\n'.join(self.mistakes)


class EngineError(TrtPerceptionError):
    """Raised when an engine or ONNX file cannot be used."""


class UnavailableError(EngineError):
    """Raised when build options need what this TensorRT release or this machine lacks.

    Attributes:
        refused: an error for each option.
    """

    def __init__(self, subject: str, refused: Sequence[EngineError]) -> None:
        super().__init__(
            subject,
            '\n'.join(error.statement for error in refused),
            fix='\n'.join(error.fix for error in refused if error.fix),
        )
        self.refused = tuple(refused)

    def __str__(self) -> str:
        return f'{self.subject}: ' + '\n'.join(map(str, self.refused))


class MissingFileError(EngineError):
    """Raised when a model file cannot be opened."""


class ManifestError(EngineError):
    """Raised when a manifest is malformed or does not describe its model file."""


class MissingModelInfoError(EngineError):
    """Raised when parameters are needed to say how to feed or read a model.

    Attributes:
        missing: what is unknown: names of parameters without ``model.``, each with its choices.
        seen: what the model shows, one sentence each.
    """

    def __init__(
        self,
        subject: str,
        found: str,
        *,
        fix: str,
        missing: Mapping[str, str],
        seen: Sequence[str],
    ) -> None:
        super().__init__(subject, found, fix=fix)
        self.missing = dict(missing)
        self.seen = tuple(seen)


class CudaError(TrtPerceptionError):
    """Raised when a CUDA call fails.

    Attributes:
        status: name of CUDA's status, such as ``cudaErrorMemoryAllocation``; empty where the error
            is none of CUDA's own.
        sticky: the GPU context is lost; nothing in this process can use the GPU any more.
    """

    def __init__(
        self,
        subject: str,
        found: str,
        *,
        expected: str = '',
        fix: str = '',
        status: str = '',
        sticky: bool = False,
    ) -> None:
        super().__init__(subject, found, expected=expected, fix=fix)
        self.status = status
        self.sticky = sticky


class GpuMemoryError(CudaError):
    """Raised when GPU memory or page-locked memory is exhausted; the GPU stays usable."""


class ImageError(TrtPerceptionError):
    """Raised when one image cannot be read, or its detections cannot be published.

    Attributes:
        reason: a short snake_case word; dropped frames are counted by it (``bad_step``,
            ``bad_length`` …).
    """

    def __init__(
        self, reason: str, subject: str, found: str, *, expected: str = '', fix: str = ''
    ) -> None:
        super().__init__(subject, found, expected=expected, fix=fix)
        self.reason = reason


class InterruptionError(TrtPerceptionError):
    """Raised when the process was asked to end during a long task."""


class WriteError(TrtPerceptionError):
    """Raised when a file cannot be written."""
