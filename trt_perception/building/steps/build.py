"""Building an engine, step by step: from an ONNX file to an engine, its manifest and a report.

Guarantees: whatever fails, fails before anything is written or leaves what was there; the report
has of each step how long it took and what came of it, up to the one that failed. What is cheap
to check is checked before what takes long.
"""

from __future__ import annotations

from collections.abc import Callable

from trt_perception.building.build_state import BuildState
from trt_perception.building.engine.config import plugin_files
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.output_files import check_outputs, write
from trt_perception.building.report import BuildReport, Step, StepProgress
from trt_perception.building.steps import engine_steps, model_steps
from trt_perception.building.steps.reuse import StorePlace
from trt_perception.building.steps.validation import validate
from trt_perception.errors import ConfigError

__all__ = ['build']

#: From what was read to an engine that was looked at.
_STEPS = (
    *(model_steps.check, model_steps.recognise, model_steps.slim, model_steps.precision),
    *(engine_steps.build, engine_steps.verify, engine_steps.compare, validate),
)


def build(
    options: BuildOptions,
    report: BuildReport,
    progress: StepProgress,
    ended: Callable[[Step], None],
) -> None:
    """Build an engine.

    Args:
        options: what is wanted.
        report: filled as the steps go, so that the caller has it when this raises.
        progress: called with what is done, how many parts of it, and of how many.
        ended: called with each step when it has ended.

    Raises:
        ConfigError: the options do not fit the files.
        WriteError: engine and manifest cannot be written.
        EngineError: the model cannot be built as asked, or its accuracy falls too far.
        TrtPerceptionError: an image cannot be read, or the GPU fails.
        KeyboardInterrupt: Ctrl-C.
    """
    try:
        _run(BuildState(options, report, progress, ended))
    except BaseException as error:
        report.fail(error)
        raise
    report.status = 'done'


def _run(state: BuildState) -> None:
    options, report = state.options, state.report
    report.configuration['options'] = options.as_dict()
    replaces = check_outputs(options)
    plugin_files(options.plugins)
    model_steps.read(state)
    model_steps.release(state)
    model_steps.find_images(state)
    place = None if options.store is None else StorePlace(state)
    if place is not None:
        place.look()
    if not report.reused:
        for step in _STEPS:
            step(state)
    write(state, replaces)
    if place is not None and not report.reused:
        try:
            place.keep()
        except ConfigError as error:  # the engine is there
            report.warn(f'the engine was not kept for the next build: {error}')
