"""The step that holds what was built against the original, on whatever images there are."""

from __future__ import annotations

import contextlib
import shlex

import onnx

from trt_perception.building.build_state import BuildState
from trt_perception.building.engine.capabilities import not_by_onnx_runtime
from trt_perception.building.engine_manifest import described, in_memory, with_results
from trt_perception.building.graph.rounded import rounded
from trt_perception.building.precision.quantise_check import is_quantised
from trt_perception.building.steps.accuracy_gate import measure_accuracy
from trt_perception.building.steps.agreement_gate import (
    Compared,
    agreement_record,
    check_agreement,
    compare_until_sure,
    unmeasured,
)
from trt_perception.errors import EngineError
from trt_perception.evaluation.run import open_for_evaluation
from trt_perception.model.build_record import AccuracyRecord, AgreementRecord
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.stages.onnx_runtime import OnnxModel

__all__ = ['opened', 'validate']


def validate(state: BuildState) -> None:
    """Compare what was built with the original, hold it to the gates, and note what was found.

    The images are those of --validate, else those of the calibration.

    Raises:
        EngineError: it lost more than --max-accuracy-drop, or is another detector by now.
        TrtPerceptionError: --validate was given, and a model or an image cannot be used.
    """
    options, report = state.options, state.report
    with state.step('validate') as step:
        accuracy: AccuracyRecord | None = None
        if options.validate is None:
            found = _on_calibration_images(state)
        else:
            accuracy, found = _on_validation_images(state)
        if isinstance(found, str):
            record = unmeasured(found)
            report.agreement = {**vars(record), 'summary': 'not measured'}
            if options.validate is None and state.calibration is None:
                step.skip('no images given (--validate)')
        else:
            record = agreement_record(found, options)
            report.agreement = {**vars(record), **found.as_dict()}
            check_agreement(record, found, options)
        step.outcome = step.outcome or report.agreement['summary']
        if report.accuracy and report.accuracy['measure'] != 'agreement':
            step.outcome = f'{report.accuracy["summary"]}\n{step.outcome}'
        report.warn(record.warning, _about_queries(state, record))
        state.engine = with_results(state, accuracy, record)


def _about_queries(state: BuildState, record: AgreementRecord) -> str:
    """Return what is known of decoders of queries, empty where the engine itself did well."""
    if state.queries is None or state.queries.is_kept(state.converted.kept_nodes):
        return ''
    if state.verified is not None and record.f1 is not None and not record.warning:
        return ''
    return state.queries.advice(state.options.precision)


def _on_validation_images(state: BuildState) -> tuple[AccuracyRecord | None, Compared | str]:
    """Return what all images of --validate show, or why nothing can be measured."""
    options = state.options
    itself = _is_itself(state)
    if itself and options.annotations is None:
        if options.max_accuracy_drop is not None:
            raise EngineError('--max-accuracy-drop', f'cannot be held: {itself}')
        return None, itself
    with contextlib.ExitStack() as stack:
        try:
            reference = stack.enter_context(opened(onnx_file(state, state.source.model)))
            built = stack.enter_context(opened(_built(state)))
        except EngineError as error:
            raise EngineError(
                f'accuracy in {options.precision}',
                f'cannot be measured: {error.statement}',
                fix='build without --validate, and measure on the target with evaluate_engine',
            ) from error
        accuracy, compared = measure_accuracy(state, reference, built)
    return accuracy, itself or compared


def _on_calibration_images(state: BuildState) -> Compared | str:
    """Return what some images of the calibration show, or why nothing can be measured."""
    target = _on_the_target(state)
    unlike = not_by_onnx_runtime(state.options.precision)
    if state.verified is None and unlike:
        return f'no GPU runs the engine here, and ONNX Runtime {unlike}: {target}'
    if itself := _is_itself(state):
        return itself
    if state.calibration is None:
        return (
            'no images were given: give --validate DIR with images as the camera sees them; '
            'labels are not needed'
        )
    images, original = state.calibration.paths, state.original
    with contextlib.ExitStack() as stack:
        try:
            reference = stack.enter_context(opened(onnx_file(state, state.source.model)))
        except EngineError as error:
            return f'{error}; {target}'
        try:
            built = stack.enter_context(opened(_built(state)))
            agreement, used = compare_until_sure(
                reference, built, images, state.progress, original
            )
        except EngineError as error:
            if state.verified is not None:  # an engine that does not run is no engine
                raise
            return f'{error}; {target}'
    count = len(images)
    return Compared(agreement, len(used), count, used, 'calibration', state.runtime, original)


def _is_itself(state: BuildState) -> str:
    """Return why what could be run is the original itself, empty where it is not."""
    if state.verified is not None or not is_quantised(state.source.model):
        return ''
    return (
        'the ONNX file came quantised, and without a GPU there is nothing else to compare it '
        f'with: {_on_the_target(state)}'
    )


def _on_the_target(state: BuildState) -> str:
    """Return the command that measures on the machine that runs the engine."""
    files = shlex.join([str(state.options.onnx), str(state.engine.path)])
    return f'on the target: ros2 run trt_perception evaluate_engine --engine {files} --images DIR'


def _built(state: BuildState) -> ModelFile:
    """Return the engine, or what ONNX Runtime runs in its place."""
    if state.verified is not None:
        return state.engine
    return onnx_file(state, rounded(state.converted.typed))


def onnx_file(state: BuildState, model: onnx.ModelProto) -> ModelFile:
    """Return a model in memory as a file with a manifest, weights within.

    Raises:
        EngineError: ONNX Runtime cannot load it.
    """
    file = in_memory(state.source.file.path, model.SerializeToString())
    loaded = OnnxModel(file, 1)
    return described(file, state.recognised, loaded.inputs, loaded.outputs)


def opened(model: ModelFile) -> contextlib.closing[Pipeline]:
    """Open a model to be compared; it is closed with the ``with`` statement.

    Raises:
        EngineError: it cannot be run here.
        CudaError: an engine, and no GPU to run it.
    """
    return contextlib.closing(open_for_evaluation(model, PipelineOptions()))
