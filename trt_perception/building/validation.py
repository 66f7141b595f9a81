"""The step that holds what was built against the original, on whatever images there are."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from trt_perception.building.accuracy_gate import Accuracy
from trt_perception.building.accuracy_gate import measure_accuracy
from trt_perception.building.accuracy_gate import onnx_file
from trt_perception.building.accuracy_gate import opened
from trt_perception.building.agreement_gate import Compared
from trt_perception.building.agreement_gate import compare_until_sure
from trt_perception.building.agreement_gate import hold_to
from trt_perception.building.agreement_gate import judge
from trt_perception.building.agreement_gate import unmeasured
from trt_perception.building.build_inputs import BuildInputs
from trt_perception.building.engine.capabilities import not_by_onnx_runtime
from trt_perception.building.graph.quantise_check import is_quantised
from trt_perception.building.graph.query_decoder import QueryDecoder
from trt_perception.building.precision.calibration_images import ImageSet
from trt_perception.building.precision.prepare_precision import ConvertedModel
from trt_perception.building.report import Context
from trt_perception.errors import EngineError
from trt_perception.evaluation.agreement import Agreement
from trt_perception.model.build_record import AccuracyRecord
from trt_perception.model.build_record import AgreementRecord
from trt_perception.model.model_file import ModelFile
from trt_perception.model.recognition.recognise import Recognised

__all__ = ['Candidate', 'validate']


@dataclass(frozen=True)
class Candidate:
    """What is compared with the original.

    Attributes:
        inputs: the original, and the images.
        recognised: how both are fed and read.
        precise: the model that the engine was built from.
        engine: the engine, with its manifest.
        runs: the engine can be run here.
        queries: its decoder where it is one of queries, in a type of 16 bits; else None.
    """

    inputs: BuildInputs
    recognised: Recognised
    precise: ConvertedModel
    engine: ModelFile
    runs: bool
    queries: QueryDecoder | None

    @property
    def original(self) -> str:
        """What the original is, in words."""
        narrow = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
        types = {tensor.data_type for tensor in self.inputs.source.model.graph.initializer}
        exact = not narrow & types and not is_quantised(self.inputs.source.model)
        return 'FP32' if exact else 'the ONNX file'


def validate(
    context: Context, candidate: Candidate
) -> tuple[AccuracyRecord | None, AgreementRecord]:
    """Compare what was built with the original, and hold it to the gates.

    Args:
        context: of the build; --validate names the images, else those of the calibration serve.
        candidate: what was built.

    Raises:
        EngineError: it lost more than --max-accuracy-drop, or is another detector by now.
        TrtPerceptionError: --validate was given, and a model or an image cannot be used.
    """
    look = _Look(context, candidate)
    report = context.report
    with report.step('validate', context.progress) as step:
        accuracy: Accuracy | None = None
        if context.options.validate_images is None:
            found = look.at_calibration()
        else:
            accuracy, found = look.at_validation()
        lines = []
        if accuracy is not None and accuracy.record is not None:
            report.accuracy = accuracy.as_dict()
            if accuracy.record.measure != 'agreement':  # which another line tells
                lines.append(accuracy.summary)
            look.hold_to_gate(accuracy)
        if isinstance(found, str):
            record = unmeasured(found)
            report.agreement = {**vars(record), 'summary': 'not measured'}
            step.outcome = '\n'.join([*lines, 'not measured'])
            if look.has_no_images:
                step.skip('no images given (--validate)')
        else:
            record = judge(found, context.options)
            report.agreement = {**vars(record), **found.as_dict()}
            step.outcome = '\n'.join([*lines, found.summary])
            hold_to(record, found, context.options)
        report.warn(record.warning, _about_queries(context, candidate, record))
        return (None if accuracy is None else accuracy.record), record


def _about_queries(context: Context, candidate: Candidate, record: AgreementRecord) -> str:
    """Return what is known of decoders of queries, empty where the engine itself did well."""
    queries = candidate.queries
    if queries is None or queries.is_kept(candidate.precise.kept_nodes):
        return ''
    if candidate.runs and record.f1 is not None and not record.warning:
        return ''
    return queries.advice(context.options.precision)


class _Look:
    """One comparison of what was built with the original."""

    def __init__(self, context: Context, candidate: Candidate) -> None:
        self._options = context.options
        self._progress = context.progress
        self._candidate = candidate
        self._inputs = candidate.inputs
        tensorrt = context.report.configuration['tensorrt']
        self._runtime = f'{tensorrt["flavour"]} {tensorrt["version"]}'
        if not candidate.runs:
            self._runtime = 'ONNX Runtime, not the engine'

    @property
    def has_no_images(self) -> bool:
        """Whether nobody gave any."""
        return not self._inputs.validation and self._inputs.calibration is None

    def at_validation(self) -> tuple[Accuracy | None, Compared | str]:
        """Return what all images of --validate show, or why nothing can be measured."""
        options = self._options
        itself = self._is_itself()
        if itself and options.annotations is None:
            if options.max_accuracy_drop is not None:
                raise EngineError('--max-accuracy-drop', f'cannot be held: {itself}')
            return None, itself
        try:
            reference = self._reference()
            built = self._candidate.engine if self._candidate.runs else self._stand_in()
        except EngineError as error:
            raise EngineError(
                f'accuracy in {options.precision}',
                f'cannot be measured: {error.statement}',
                fix='build without --validate, and measure on the target with evaluate_engine',
            ) from error
        accuracy = measure_accuracy(
            options,
            self._inputs.validation,
            reference,
            built,
            self._runtime,
            self._progress,
            self._candidate.original,
        )
        count = accuracy.images
        return accuracy, itself or self._compared(
            accuracy.agreement, count, count, (), 'validation'
        )

    def at_calibration(self) -> Compared | str:
        """Return what some images of the calibration show, or why nothing can be measured."""
        runs, target = self._candidate.runs, self._on_the_target()
        unlike = not_by_onnx_runtime(self._options.precision)
        if not runs and unlike:
            return f'no GPU runs the engine here, and ONNX Runtime {unlike}: {target}'
        if itself := self._is_itself():
            return itself
        images = self._inputs.calibration
        if images is None:
            return (
                'no images were given: give --validate DIR with images as the camera sees them; '
                'labels are not needed'
            )
        try:
            return self._on(images)
        except EngineError as error:
            if runs:  # an engine that does not run is no engine
                raise
            return f'{error}; {target}'

    def _on(self, images: ImageSet) -> Compared | str:
        """Compare on some images of the calibration; a reason where the original does not load."""
        with contextlib.ExitStack() as stack:
            try:
                reference = stack.enter_context(opened(self._reference()))
            except EngineError as error:
                return f'{error}; {self._on_the_target()}'
            candidate = self._candidate
            engine = candidate.engine if candidate.runs else self._stand_in()
            built = stack.enter_context(opened(engine))
            agreement, used = compare_until_sure(
                reference, built, images.paths, self._progress, candidate.original
            )
        return self._compared(agreement, len(used), len(images.paths), used, 'calibration')

    def hold_to_gate(self, accuracy: Accuracy) -> None:
        """Refuse what lost more than --max-accuracy-drop."""
        most = self._options.max_accuracy_drop
        if most is not None and accuracy.drop > most:
            raise EngineError(
                'accuracy',
                f'falls by {accuracy.drop:.4f}, more than --max-accuracy-drop {most}: '
                f'{accuracy.summary}',
                fix=(
                    'keep sensitive layers in a wider type (--keep-fp32, --keep-float), '
                    'calibrate with more images, or use fp16'
                ),
            )

    def _compared(
        self, agreement: Agreement, images: int, given: int, files: Sequence[Path], of: str
    ) -> Compared:
        original = self._candidate.original
        return Compared(agreement, images, given, files, of, self._runtime, original)

    def _is_itself(self) -> str:
        """Return why what could be run is the original itself, empty where it is not."""
        if self._candidate.runs or not is_quantised(self._candidate.inputs.source.model):
            return ''
        return (
            'the ONNX file came quantised, and without a GPU there is nothing else to compare it '
            f'with: {self._on_the_target()}'
        )

    def _on_the_target(self) -> str:
        """Return the command that measures on the machine that runs the engine."""
        files = shlex.join([str(self._options.onnx), str(self._options.engine_path())])
        return (
            f'on the target: ros2 run trt_perception evaluate_engine --engine {files} --images DIR'
        )

    def _reference(self) -> ModelFile:
        source = self._candidate.inputs.source
        return onnx_file(source.file.path, source.model, self._candidate.recognised)

    def _stand_in(self) -> ModelFile:
        """Return what ONNX Runtime runs in the engine's place."""
        path = self._candidate.inputs.source.file.path
        return onnx_file(path, self._candidate.precise.stand_in, self._candidate.recognised)
