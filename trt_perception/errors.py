# SPDX-License-Identifier: Apache-2.0
"""The exceptions of trt_perception.

    TrtPerceptionError
    ├── ConfigError     a parameter or option has an invalid value
    │   └── ValuesError     several parameters have invalid values
    ├── EngineError     an engine or ONNX file cannot be used
    │   ├── MissingFileError    the file cannot be opened
    │   ├── ManifestError   the manifest is malformed or does not describe the file
    │   ├── MissingModelInfoError   parameters must complete a model's description
    │   ├── UnavailableError    this release or machine lacks support for build options
    │   └── OutputError     one image has no valid outputs; carries the drop reason
    │       ├── OutputShapeError    the outputs have sizes that the decoder cannot read
    │       ├── UnnamedClassError   a reported class has no name
    │       └── ServerError     a Triton server has no result for the image
    │           └── ServerTimeoutError  the server did not answer in time
    ├── CudaError       a CUDA call failed
    │   └── GpuMemoryError  GPU memory or page-locked memory is exhausted
    ├── ImageError      one image cannot be read; carries the drop reason
    │   └── DepthError      depth, calibration or masks give no boxes in space
    ├── InterruptionError   the process was asked to end during a long task
    └── WriteError      a file cannot be written

An error has fields for the finding, the expectation and the remedy. ``str`` joins the fields to a
sentence. Code that needs a part reads the field instead of parsing the sentence. The error of a
lower layer is always attached as the cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class TrtPerceptionError(Exception):
    """Base class of all errors that the package raises on purpose.

    Attributes:
        subject: the subject of the sentence, such as a file, a parameter or a call.
        found: the actual value or state.
        expected: the required value or state; empty if ``found`` is enough.
        fix: an instruction to the user; empty if the user cannot help.

    >>> try:
    ...     tp.load('digits.onnx', confidence_threshold=40)
    ... except tp.TrtPerceptionError as error:
    ...     print(error.subject, '|', error.found, '|', error.expected)
    parameter 'confidence_threshold' | 40.0 | a number from 0 to 1
    """

    def __init__(self, subject: str, found: str, *, expected: str = '', fix: str = '') -> None:
        super().__init__(subject, found, expected, fix)
        self.subject = subject
        self.found = found
        self.expected = expected
        self.fix = fix

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling by default calls the class with positional arguments only.
        return _restored, (type(self), self.args, vars(self))

    @property
    def statement(self) -> str:
        """The sentence without the fix."""
        if self.expected:
            return f'{self.subject}: expected {self.expected} (got {self.found})'
        return f'{self.subject}: {self.found}'

    def __str__(self) -> str:
        return f'{self.statement}; {self.fix}' if self.fix else self.statement


def _restored(
    kind: type[TrtPerceptionError], args: tuple[str, ...], fields: dict[str, Any]
) -> TrtPerceptionError:
    """Return an error that another process has pickled."""
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error


class ConfigError(TrtPerceptionError):
    """Raised when a parameter or option has an invalid value."""


class ValuesError(ConfigError):
    """Raised when several parameters have invalid values. The error lists all of them.

    Attributes:
        mistakes: one sentence for each invalid parameter.
    """

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__('values', '; '.join(mistakes))
        self.mistakes = tuple(mistakes)

    @property
    def statement(self) -> str:
        """All mistakes, one on each line."""
        return '\n'.join(self.mistakes)


class EngineError(TrtPerceptionError):
    """Raised when an engine or ONNX file cannot be used."""


class UnavailableError(EngineError):
    """Raised when this TensorRT release or this machine does not support build options.

    Attributes:
        refused: an error for each option that is not supported.
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


class OutputError(EngineError):
    """Raised when the decoder cannot read a model's outputs for one image.

    The node drops the image. Tools and the trial run of a model do not continue.

    Attributes:
        reason: the drop reason, as in ImageError.
    """

    reason: ClassVar[str] = 'bad_output'


class OutputShapeError(OutputError):
    """Raised when the outputs of a batch have sizes that the decoder cannot read.

    Outputs with dynamic dimensions may have such sizes for one batch only.
    """


class UnnamedClassError(OutputError):
    """Raised when a reported class has no name. Names of other classes may be wrong, too."""


class ServerError(OutputError):
    """Raised when a Triton server has no result for one image. A later image may have one."""

    reason: ClassVar[str] = 'server_error'


class ServerTimeoutError(ServerError):
    """Raised when a Triton server did not answer within the time limit for one image."""

    reason: ClassVar[str] = 'timeout'


class MissingFileError(EngineError):
    """Raised when a model file cannot be opened."""


class ManifestError(EngineError):
    """Raised when a manifest is malformed or does not describe its model file."""


class MissingModelInfoError(EngineError):
    """Raised when parameters must complete the description of a model.

    Attributes:
        arguments: what the user adds to the command or call, with placeholders in capitals.
        missing: maps each missing parameter, without ``model.``, to its possible values.
        seen: sentences about the known values of the model.
        other_networks: networks of no task whose outputs have the same shapes.
    """

    def __init__(
        self,
        subject: str,
        found: str,
        *,
        fix: str,
        arguments: str,
        missing: Mapping[str, str],
        seen: Sequence[str],
        other_networks: Sequence[str] = (),
    ) -> None:
        super().__init__(subject, found, fix=fix)
        self.arguments = arguments
        self.missing = dict(missing)
        self.seen = tuple(seen)
        self.other_networks = tuple(other_networks)

    def __str__(self) -> str:
        return f'{self.statement}\n{self.fix}'


class CudaError(TrtPerceptionError):
    """Raised when a CUDA call fails.

    Attributes:
        status: name of CUDA's status, such as ``cudaErrorMemoryAllocation``; empty if CUDA did not
            report the error.
        sticky: the GPU context is lost, and this process cannot use the GPU any more.
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
    """Raised when GPU memory or page-locked memory is exhausted. The GPU stays usable."""


class ImageError(TrtPerceptionError):
    """Raised when one image cannot be read, or its detections cannot be published.

    Attributes:
        reason: a snake_case word, such as ``bad_step``. Dropped frames are counted by reason.
    """

    def __init__(
        self, reason: str, subject: str, found: str, *, expected: str = '', fix: str = ''
    ) -> None:
        super().__init__(subject, found, expected=expected, fix=fix)
        self.reason = reason


class DepthError(ImageError):
    """Raised when depth images, calibrations or masks give no boxes in space, or wrong ones.

    Attributes:
        reason: a snake_case word. The node detections_3d logs each reason once.
    """


class InterruptionError(TrtPerceptionError):
    """Raised when the process was asked to end during a long task."""


class WriteError(TrtPerceptionError):
    """Raised when a file cannot be written."""
