"""Building an engine, step by step: from an ONNX file to an engine, its manifest and a report.

Guarantees: whatever fails, fails before anything is written or leaves what was there; the report
tells of each step how long it took and what came of it, up to the one that failed. What is cheap
to check is checked before what takes long.
"""

from __future__ import annotations

from trt_perception.building import engine_steps
from trt_perception.building import model_steps
from trt_perception.building import output_steps
from trt_perception.building.build_inputs import BuildInputs
from trt_perception.building.engine.config import plugin_files
from trt_perception.building.engine_manifest import with_results
from trt_perception.building.graph.quantise_check import is_quantised
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.output_files import check_outputs
from trt_perception.building.precision.calibrate import choose_images
from trt_perception.building.precision.calibrate import unused_options
from trt_perception.building.precision.calibration_images import find_files
from trt_perception.building.report import BuildReport
from trt_perception.building.report import Context
from trt_perception.building.report import StepProgress
from trt_perception.building.store.reuse import StorePlace
from trt_perception.building.validation import Candidate
from trt_perception.building.validation import validate
from trt_perception.errors import ConfigError
from trt_perception.model.model_file import ModelFile

__all__ = ['build']


def _silent(_step: str, _done: int, _total: int) -> None:
    """Say nothing."""


def build(
    options: BuildOptions,
    *,
    progress: StepProgress = _silent,
    report: BuildReport | None = None,
) -> BuildReport:
    """Build an engine.

    Args:
        options: what is wanted.
        progress: told what is done, how many parts of it, and of how many; 0 of 0 where a step
            begins.
        report: filled as the steps go, so that the caller has it when this raises.

    Returns:
        the report.

    Raises:
        ConfigError: the options do not fit the files.
        WriteError: engine and manifest cannot be written.
        EngineError: the model cannot be built as asked, or its accuracy falls too far.
        TrtPerceptionError: an image cannot be read, or the GPU fails.
        KeyboardInterrupt: Ctrl-C.
    """
    report = BuildReport() if report is None else report
    try:
        _run(Context(options, progress, report))
    except BaseException as error:
        report.fail(error)
        raise
    report.status = 'done'
    return report


def _run(context: Context) -> None:
    options = context.options
    context.report.configuration['options'] = options.as_dict()
    replaces = check_outputs(options)
    plugin_files(options.plugins)
    source = model_steps.read(context)
    tensorrt = model_steps.release(context)
    quantised = is_quantised(source.model)
    images = choose_images(options, quantised=quantised)
    context.report.warn(unused_options(options, quantised=quantised))
    # Looked for now, because a wrong name must not cost a build.
    validation = find_files(options.validate_images) if options.validate_images else []
    inputs = BuildInputs(source, tensorrt, images, tuple(validation))
    if inputs.in_both:
        context.report.warn(
            f'{inputs.in_both} images serve calibration and validation both, and flatter the '
            'accuracy: validate on others'
        )
    place = engine = qdq_model = None
    if options.store is not None:
        place = StorePlace(options, inputs)
        engine = _stored(context, place)
    if engine is None:
        engine, qdq_model = _make(context, inputs)
    output_steps.write(context, engine, qdq_model, replaces)
    if place is not None and not context.report.reused:
        try:
            place.keep(engine, context.report)
        except ConfigError as error:  # the engine is there
            context.report.warn(f'the engine was not kept for the next build: {error}')


def _stored(context: Context, place: StorePlace) -> ModelFile | None:
    with context.report.step('store', context.progress) as step:
        if context.options.qdq_onnx is not None:
            step.skip('not asked: it keeps no models with Q/DQ nodes (--qdq-onnx)')
            return None
        engine = place.find(context.report)
        step.outcome = f'{"reused" if engine else "no entry"} {place.key[:16]}'
        return engine


def _make(context: Context, inputs: BuildInputs) -> tuple[ModelFile, ModelFile | None]:
    source, tensorrt = inputs.source, inputs.tensorrt
    model_steps.check(context, source)
    shapes, recognised = model_steps.recognise(context, source, inputs.validation)
    slimmed = model_steps.slim(context, source.model, shapes)
    precise = model_steps.precision(
        context, slimmed, inputs.calibration, recognised, tensorrt, shapes
    )
    queries = model_steps.queries(context, slimmed, recognised, shapes)
    plan = engine_steps.build(context, source, recognised, precise, tensorrt)
    engine = output_steps.describe(context, source, recognised, plan, precise.calibration)
    verified = engine_steps.verify(context, engine, plan, precise, shapes)
    engine_steps.compare(context, slimmed, tensorrt, verified, shapes)
    built = Candidate(inputs, recognised, precise, engine, verified is not None, queries)
    accuracy, agreement = validate(context, built)
    layers = verified.precisions if verified else None
    return (
        with_results(engine, layers, accuracy, agreement),
        output_steps.quantised_model(context.options, source, precise, recognised),
    )
