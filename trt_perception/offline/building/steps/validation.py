# SPDX-License-Identifier: Apache-2.0
"""Compares the built model with the original on validation or calibration images."""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass
from pathlib import Path

import onnx

from trt_perception.errors import EngineError
from trt_perception.model.build_record import AccuracyRecord
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.offline.building.build_inputs import BuildInputs
from trt_perception.offline.building.engine.capabilities import onnx_runtime_problem
from trt_perception.offline.building.engine.verify import EngineCheck
from trt_perception.offline.building.engine_manifest import (
    model_file_in_memory,
    with_description,
    with_measurements,
)
from trt_perception.offline.building.graph.emulate_rounding import emulate_rounding
from trt_perception.offline.building.precision.prepare_precision import ConvertedModel
from trt_perception.offline.building.precision.quantise_check import is_quantised
from trt_perception.offline.building.report import BuildLog
from trt_perception.offline.building.steps.accuracy_gate import BUILT_MODEL_NAME, measure_accuracy
from trt_perception.offline.building.steps.agreement_gate import (
    AgreementResult,
    agreement_record,
    check_agreement,
    compare_on_sample,
    unmeasured_record,
)
from trt_perception.offline.evaluation.offline_detection import open_for_evaluation
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.stages.onnx_runtime import OnnxModel


@dataclass(frozen=True)
class _ModelPair:
    """The original model and the built engine.

    Attributes:
        stand_in: ONNX model that ONNX Runtime runs instead of the engine; None if a GPU runs the
            engine.
    """

    inputs: BuildInputs
    spec: ModelSpec
    engine: ModelFile
    stand_in: onnx.ModelProto | None

    @property
    def original_description(self) -> str:
        """Description of the original model, for messages."""
        model = self.inputs.source.model
        narrow = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
        types = {tensor.data_type for tensor in model.graph.initializer}
        return 'the ONNX file' if narrow & types or is_quantised(model) else 'FP32'

    @property
    def runtime_description(self) -> str:
        """Description of the runtime that runs the built model here."""
        if self.stand_in is not None:
            return 'ONNX Runtime, not the engine'
        tensorrt = self.inputs.tensorrt
        return f'{tensorrt.flavour} {tensorrt.version}'

    @property
    def target_advice(self) -> str:
        """Advice with the command that measures the engine on the target machine."""
        files = shlex.join([str(self.inputs.options.onnx), str(self.engine.path)])
        return f'on the target: evaluate_engine {files} --images DIR'

    @property
    def why_not_comparable(self) -> str:
        """Why the built model cannot differ from the original here; empty if it can."""
        if self.stand_in is None or not is_quantised(self.inputs.source.model):
            return ''
        return (
            'the ONNX file is quantised already, so without a GPU it could only be compared '
            f'with itself: {self.target_advice}'
        )

    def open_original(self) -> contextlib.closing[Pipeline]:
        """Open the original. Raise EngineError if this machine cannot run it."""
        path, model = self.inputs.source.file.path, self.inputs.source.model
        return open_model(onnx_model_file(path, model, self.spec))

    def open_built(self) -> contextlib.closing[Pipeline]:
        """Open the engine or its stand-in. Raise EngineError if this machine cannot run it."""
        if self.stand_in is None:
            return open_model(self.engine)
        path = self.inputs.source.file.path
        return open_model(onnx_model_file(path, emulate_rounding(self.stand_in), self.spec))


def validate(
    inputs: BuildInputs,
    spec: ModelSpec,
    converted: ConvertedModel,
    engine: ModelFile,
    verified: EngineCheck | None,
    log: BuildLog,
) -> ModelFile:
    """Compare the built model with the original, and check accuracy and agreement.

    The images come from --validate or, without this option, from the calibration.

    Returns:
        the engine with the measurements in its manifest.

    Raises:
        EngineError: accuracy fell by more than --max-accuracy-drop, or agreement is below 0.5.
        TrtPerceptionError: --validate was given, and a model or an image cannot be used.
    """
    options, report = inputs.options, log.report
    stand_in = converted.typed if verified is None else None
    pair = _ModelPair(inputs, spec, engine, stand_in)
    with log.step('validate') as step:
        accuracy: AccuracyRecord | None = None
        if options.validate is None:
            found = _compare_on_calibration_images(pair, log)
        else:
            accuracy, found = _compare_on_validation_images(pair, log)
        if isinstance(found, str):
            record = unmeasured_record(found)
            report.agreement = {**vars(record), 'summary': 'not measured'}
            if options.validate is None and inputs.calibration is None:
                step.skip('no images given (--validate)')
        else:
            record = agreement_record(found, options)
            report.agreement = {**vars(record), **found.as_dict()}
            check_agreement(record, found, options)
        step.outcome = step.outcome or report.agreement['summary']
        if report.accuracy and report.accuracy['measure'] != 'agreement':
            step.outcome = f'{report.accuracy["summary"]}\n{step.outcome}'
        report.warn(record.warning)
        was_good = verified is not None and record.f1 is not None and not record.warning
        queries = converted.queries
        if queries and not was_good and not queries.is_kept_in_fp32(converted.kept_nodes):
            report.warn(queries.advice(options.precision))
    return with_measurements(engine, verified, accuracy, record)


def _compare_on_validation_images(
    pair: _ModelPair, log: BuildLog
) -> tuple[AccuracyRecord | None, AgreementResult | str]:
    """Compare on all images of --validate. Return both results, or why there is no comparison."""
    options = pair.inputs.options
    if pair.why_not_comparable and options.annotations is None:
        if options.max_accuracy_drop is not None:
            raise EngineError(
                '--max-accuracy-drop', f'cannot be checked: {pair.why_not_comparable}'
            )
        return None, pair.why_not_comparable
    with contextlib.ExitStack() as stack:
        try:
            reference = stack.enter_context(pair.open_original())
            built = stack.enter_context(pair.open_built())
        except EngineError as error:
            raise EngineError(
                f'accuracy in {options.precision}',
                f'cannot be measured: {error.statement}',
                fix='build without --validate, and measure on the target with evaluate_engine',
            ) from error
        models = {pair.original_description: reference, BUILT_MODEL_NAME: built}
        accuracy, compared = measure_accuracy(pair.inputs, models, pair.runtime_description, log)
    return accuracy, pair.why_not_comparable or compared


def _compare_on_calibration_images(pair: _ModelPair, log: BuildLog) -> AgreementResult | str:
    """Compare on some calibration images. Return the result, or why there is no comparison."""
    calibration, original = pair.inputs.calibration, pair.original_description
    is_engine = pair.stand_in is None
    unlike = onnx_runtime_problem(pair.inputs.options.precision)
    if not is_engine and unlike:
        return f'no GPU here can run the engine, and ONNX Runtime {unlike}: {pair.target_advice}'
    if pair.why_not_comparable:
        return pair.why_not_comparable
    if calibration is None:
        return (
            'no images were given: give --validate DIR with images from the camera; '
            'labels are not needed'
        )
    with contextlib.ExitStack() as stack:
        try:
            reference = stack.enter_context(pair.open_original())
        except EngineError as error:
            return f'{error}; {pair.target_advice}'
        try:
            built = stack.enter_context(pair.open_built())
            return compare_on_sample(
                reference,
                built,
                calibration.paths,
                log.progress,
                original,
                pair.runtime_description,
            )
        except EngineError as error:
            if is_engine:  # fail, so that an engine that cannot run is not written
                raise
            return f'{error}; {pair.target_advice}'


def onnx_model_file(path: Path, model: onnx.ModelProto, spec: ModelSpec) -> ModelFile:
    """Return an ONNX model in memory with its weights and a manifest.

    Raises:
        EngineError: ONNX Runtime cannot load the model.
    """
    file = model_file_in_memory(path, model.SerializeToString())
    loaded = OnnxModel(file, 1)
    return with_description(file, spec, loaded.inputs, loaded.outputs)


def open_model(model: ModelFile) -> contextlib.closing[Pipeline]:
    """Open a model for a comparison. A ``with`` statement closes the pipeline.

    Raises:
        EngineError: this machine cannot run the model.
        CudaError: the model is an engine, and no GPU can run it.
    """
    manifest = model.manifest
    # Models that could derive the size from the images are compared at the size of the engine.
    size = {} if manifest is None else {'input_size': manifest.preprocessing.input_size}
    options = PipelineOptions(onnx_provider='cpu', overrides=ModelOverrides(size))
    return contextlib.closing(open_for_evaluation(model, options))
