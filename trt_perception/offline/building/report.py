# SPDX-License-Identifier: Apache-2.0
"""Holds the report of a build. Each step fills its part, so a failed build also has a report."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trt_perception.errors import TrtPerceptionError
from trt_perception.files.plain_text import size_text

#: Called with the current activity, and its finished and total number of parts.
StepProgress = Callable[[str, int, int], None]

StepStatus = Literal['done', 'skipped', 'failed', 'interrupted']


@dataclass
class Step:
    """One step of a build.

    Attributes:
        seconds: duration of the step.
    """

    name: str
    status: StepStatus = 'done'
    seconds: float = 0.0
    outcome: str = ''

    def skip(self, reason: str) -> None:
        """Mark the step as skipped, with the reason."""
        self.status, self.outcome = 'skipped', reason


@dataclass
class BuildReport:
    """The report of a build that may still run.

    Attributes:
        status: ``running`` until the end, then ``done``, ``failed`` or ``interrupted``.
        error: the reason for a failure; otherwise empty.
        reused: whether the engine came from the store.
        output_engine: file, size, hash and manifest; empty until both files are written.
        optimization: number of nodes before and after slimming, precision by layer, fusions.
        performance: duration of the build in seconds, size, expected latency.
        accuracy: accuracy on the validation images; None without a measurement.
        agreement: agreement with the original's detections, or why the agreement was not
            measured; None until the step ``validate``.
        steps: the steps in order.
        warnings: one sentence each.
    """

    status: Literal['running', 'done', 'failed', 'interrupted'] = 'running'
    error: str = ''
    reused: bool = False
    input_model: dict[str, Any] = field(default_factory=dict)
    output_engine: dict[str, Any] = field(default_factory=dict)
    configuration: dict[str, Any] = field(default_factory=dict)
    optimization: dict[str, Any] = field(default_factory=dict)
    performance: dict[str, Any] = field(default_factory=dict)
    accuracy: dict[str, Any] | None = None
    agreement: dict[str, Any] | None = None
    steps: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def warn(self, *sentences: str) -> None:
        """Add warnings that are neither empty nor repeated."""
        self.warnings += [text for text in sentences if text and text not in self.warnings]

    def fail(self, error: BaseException) -> None:
        """Set status and error from the exception that ended the build."""
        interrupted = isinstance(error, KeyboardInterrupt)
        self.status = 'interrupted' if interrupted else 'failed'
        self.error = 'interrupted' if interrupted else failure_reason(error)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON content."""
        return {
            'operation': 'build_engine',
            **asdict(self),
            'error': self.error or None,
            'output_engine': self.output_engine or None,
        }

    def json_text(self) -> bytes:
        """Return the bytes of the JSON file."""
        return (json.dumps(self.as_dict(), indent=2) + '\n').encode()

    def text(self) -> str:
        """Return the results and warnings that are printed below the steps."""
        facts = _summary(self)
        width = max(map(len, facts), default=0)
        lines = [f'{key:<{width}}  {value}' for key, value in facts.items()]
        return '\n'.join([*lines, *(f'warning: {text}' for text in self.warnings)])


@dataclass(frozen=True)
class BuildLog:
    """Collects what the steps of a build report.

    Attributes:
        progress: called with the current activity, and its finished and total number of parts;
            both are 0 at the beginning of a step.
        on_step_ended: called with each step after its end.
    """

    report: BuildReport
    progress: StepProgress
    on_step_ended: Callable[[Step], None]

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Time a step and record how it ended. Exceptions of the step are raised again."""
        step = Step(name)
        self.report.steps.append(step)
        self.progress(name, 0, 0)
        start = time.perf_counter()
        try:
            yield step
        except KeyboardInterrupt:
            step.status, step.outcome = 'interrupted', 'stopped on request'
            raise
        except BaseException as error:
            step.status, step.outcome = 'failed', failure_reason(error)
            raise
        finally:
            step.seconds = time.perf_counter() - start
            self.on_step_ended(step)


def failure_reason(error: BaseException) -> str:
    """Return the message of an error. Errors of other libraries get their class as a prefix."""
    if isinstance(error, TrtPerceptionError):
        return str(error)
    return f'{type(error).__name__}: {error}'


def format_step(step: Step) -> str:
    """Return a step as a row of the table. The reason of a failure is printed elsewhere."""
    mark = {'done': 'ok', 'skipped': '-', 'failed': 'FAILED', 'interrupted': 'STOPPED'}
    outcome = step.outcome if step.status in ('done', 'skipped') else ''
    first, *others = outcome.splitlines() or ['']
    seconds = '' if step.status == 'skipped' else f'{step.seconds:.1f} s'
    line = f'{step.name:<14}{mark[step.status]:<8}{seconds:>8}  {first}'
    return '\n'.join([line.rstrip(), *(f'{"":32}{other}' for other in others)])


def _summary(report: BuildReport) -> dict[str, str]:
    """Return the results that are printed below the steps, by name."""
    engine = report.output_engine
    if not engine:
        return {}
    facts = {
        'engine': f'{engine["file"]} ({size_text(engine["size_bytes"])})',
        'manifest': engine['manifest'],
        **({'Q/DQ model': engine['qdq_onnx']} if 'qdq_onnx' in engine else {}),
        'precision': _precision_summary(report.optimization),
    }
    if report.performance.get('latency_ms'):
        latency = report.performance['latency_ms']
        facts['latency'] = f'{latency["p50"]:.2f} ms, 99th percentile {latency["p99"]:.2f} ms'
    if report.accuracy and report.accuracy['measure'] != 'agreement':
        facts['accuracy'] = report.accuracy['summary']
    if report.agreement:
        facts['agreement'] = report.agreement['summary']
    return facts


def _precision_summary(optimization: Mapping[str, Any]) -> str:
    asked, built = optimization['precision_asked'], optimization.get('precision_as_built')
    if not built:
        mute = 'the engine reports no types (build with --profiling-verbosity detailed)'
        why = mute if 'layers' in optimization else 'no GPU here can load the engine'
        return f'{asked} requested; as built: unverified, {why}'
    layers = ', '.join(f'{count} {kind}' for kind, count in built.items())
    return f'{asked} requested; layers as built: {layers}'
