"""The description of a model that pipelines need, from its tensors, manifest and parameters.

A parameter replaces the value of the manifest, and the tensors must match both. Without a
manifest, recognition (``model/recognition``) describes the model. Nothing is guessed: if a value
is unknown, the error lists the parameters to set.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trt_perception.errors import EngineError, ManifestError, OutputShapeError
from trt_perception.model.decoder import Decoder
from trt_perception.model.decoders.table import presets_for_task
from trt_perception.model.input_layout import (
    batch_size,
    constant_inputs,
    has_size_input,
    image_size,
    pixel_mask_input,
    split_inputs,
)
from trt_perception.model.manifest import Manifest, rebuild_command
from trt_perception.model.output_tensor import OutputTensor, assign_outputs, shapes_match
from trt_perception.model.preprocessing import Preprocessing, uint8_input_mistake
from trt_perception.model.recognition.manifest_command import export_command
from trt_perception.model.recognition.missing_info import outputs_mismatch
from trt_perception.model.recognition.recognise import (
    FindOutputShapes,
    ModelDescription,
    ModelOverrides,
    apply_overrides,
    recognise,
)
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import (
    INPUT_DTYPES,
    MAX_TENSOR_VALUES,
    ModelInfo,
    TensorSpec,
    check_tensor_sizes,
    tensor_sizes_mistake,
    tensors_text,
)

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSpec:
    """The description of a model that a pipeline needs.

    Attributes:
        input: the image input with fixed dimensions: (B, 3, height, width), (B, height, width, 3)
            or (3, height, width).
        preprocessing: how pixels become the input.
        class_names: names of the classes, in the order of the network's outputs.
        has_manifest: whether a manifest describes the model. If False, recognition does.
        evidence: one sentence for each finding of recognition: observation -> conclusion. Empty
            with a manifest.
        auxiliary_inputs: the inputs besides the image, with fixed dimensions.
        task: the model's task, such as ``detect`` or ``pose``.
        model: the model as the runtime reports it, with its dynamic dimensions; None in tests.
        derives_size: whether the size of the input follows from the images.
    """

    input: TensorSpec
    outputs: tuple[TensorSpec, ...]
    preprocessing: Preprocessing
    decoder: Decoder
    class_names: tuple[str, ...]
    has_manifest: bool
    evidence: tuple[str, ...] = ()
    auxiliary_inputs: tuple[TensorSpec, ...] = ()
    task: Task = DETECT
    model: ModelInfo | None = None
    derives_size: bool = False

    @property
    def batch(self) -> int:
        """The batch size of the model."""
        return batch_size(self.input)

    @property
    def pixel_mask(self) -> TensorSpec | None:
        """The input that marks the pixels of the image, (B, rows, columns); None if missing."""
        return pixel_mask_input(self.auxiliary_inputs)

    @functools.cached_property
    def decoder_outputs(self) -> tuple[tuple[OutputTensor, int], ...]:
        """The outputs that the decoder reads, each with its index in ``outputs``."""
        wanted = self.decoder.outputs(len(self.class_names), self.task)
        assigned = assign_outputs(wanted, self.outputs)
        assert assigned is not None, 'checked when the model was opened'
        return tuple(zip(wanted, assigned, strict=True))

    def with_batch_size(self, batch: int) -> ModelSpec:
        """Return the same description with another batch size. Unused outputs may lack the batch.

        Args:
            batch: number of images. The model must have a dynamic batch.

        Raises:
            EngineError: an input or output with this batch is too large.
        """
        if batch == self.batch:
            return self

        def with_batch(tensor: TensorSpec) -> TensorSpec:
            return replace(tensor, shape=(batch, *tensor.shape[1:]))

        read = {place for _, place in self.decoder_outputs}
        outputs = (
            with_batch(tensor)
            if place in read or tensor.shape[:1] in ((-1,), (self.batch,))
            else tensor
            for place, tensor in enumerate(self.outputs)
        )
        changed = replace(
            self,
            input=with_batch(self.input),
            outputs=tuple(outputs),
            auxiliary_inputs=tuple(map(with_batch, self.auxiliary_inputs)),
        )
        check_tensor_sizes(
            'the model', (changed.input, *changed.outputs, *changed.auxiliary_inputs)
        )
        return changed

    def check_outputs(self, found: tuple[TensorSpec, ...]) -> None:
        """Check the outputs of an opened model, whose final shapes are known only now.

        Args:
            found: the outputs with their final shapes.

        Raises:
            EngineError: the shapes do not match decoder, class names, task or batch size, or an
                output is too large.
        """
        classes = len(self.class_names)
        _check_outputs('the model', self.decoder, self.task, found, classes, self.batch)

    def computed_shapes_error(
        self, shapes: Sequence[tuple[int, ...]], *, frames: int, batch: int
    ) -> OutputShapeError | None:
        """Return why the decoder cannot read the outputs of one computed batch; None if it can.

        Outputs with dynamic dimensions may have other shapes in each batch. An answer of a server
        or a model may have any shape.

        Args:
            shapes: the shape of each computed output, in the order of ``outputs``.
            batch: number of images in the input, with unused places.
        """
        wanted = [output for output, _ in self.decoder_outputs]
        read = [shapes[place] for _, place in self.decoder_outputs]
        has_batch_axis = frames == 1 or any('B' in output.shape for output in wanted)
        is_small = all(math.prod(shape) <= MAX_TENSOR_VALUES for shape in shapes)
        if has_batch_axis and is_small and shapes_match(wanted, read, batch=batch):
            return None
        found = tuple(
            replace(tensor, shape=shape)
            for tensor, shape in zip(self.outputs, shapes, strict=True)
        )
        if mistake := tensor_sizes_mistake(found):
            fix = 'export the model again with fixed shapes'
            return OutputShapeError('the model', **mistake, fix=fix)
        classes = len(self.class_names)
        mismatch = outputs_mismatch(self.decoder, self.task, found, classes, batch)
        if not has_batch_axis:
            mismatch['found'] += f' for {frames} images'
        return OutputShapeError('the model', **mismatch)


def resolve_model_spec(
    model: ModelInfo,
    manifest: Manifest | None,
    overrides: ModelOverrides,
    *,
    find_output_shapes: FindOutputShapes | None = None,
) -> ModelSpec:
    """Return the description of a model. A dynamic batch becomes a batch of one image.

    Args:
        model: the loaded model. Its metadata and config.json count only without a manifest.
        manifest: the manifest next to the file; None if the file is missing.
        overrides: values that the user has set. They replace the values of all other sources.
        find_output_shapes: returns the shape of each output for given inputs. Recognition calls
            this function if outputs have dynamic dimensions.

    Raises:
        EngineError: the tensors do not fit an image detector, or a value is unknown.
        ManifestError: the manifest describes other tensors than the model has.
    """
    image, auxiliary_inputs = split_inputs(model.name, model.inputs)
    if manifest is not None:
        _check_manifest_tensors(model, manifest)
        known = apply_overrides(manifest, overrides)
    else:
        known = recognise(model, overrides, find_output_shapes)
        _log_recognition(model.name, known)
    if known.decoder.has_constant_scores(len(known.class_names)):
        _report_constant_scores(model.name, known, manifest, overrides)
    preprocessing, derives_size = _with_derived_size(known.preprocessing, image, overrides)
    known.task.check_preprocessing(model.name, preprocessing)
    known.task.check_class_count(model.name, len(known.class_names))
    resolved = _fixed_image_input(model.name, image, preprocessing, overrides.syntax.name)
    batch = batch_size(resolved)
    constants = constant_inputs(auxiliary_inputs, preprocessing.input_size, batch)
    classes = len(known.class_names)
    # An engine with a dynamic batch may report the outputs with the batch of its first profile.
    is_dynamic = len(image.shape) == 4 and image.shape[0] < 0
    assigned = _check_outputs(
        model.name,
        known.decoder,
        known.task,
        model.outputs,
        classes,
        batch,
        any_batch=is_dynamic,
        names_source=known.names_source,
    )
    unused = [tensor for place, tensor in enumerate(model.outputs) if place not in assigned]
    if unused:
        _LOG.info('%s: unused outputs: %s', model.name, tensors_text(unused))
    if known.decoder.needs_size_input and not has_size_input(auxiliary_inputs):
        raise EngineError(
            model.name,
            tensors_text(model.inputs),
            expected='a second input orig_target_sizes, which defines the units of boxes with '
            f'{known.decoder}',
            fix='export the detector with this input',
        )
    return ModelSpec(
        resolved,
        model.outputs,
        preprocessing,
        known.decoder,
        known.class_names if known.task.has_classes else (),
        manifest is not None,
        known.evidence,
        tuple(replace(tensor, shape=constants[tensor.name].shape) for tensor in auxiliary_inputs),
        known.task,
        model,
        derives_size,
    )


def _report_constant_scores(
    model_name: str, known: ModelDescription, manifest: Manifest | None, overrides: ModelOverrides
) -> None:
    """Refuse a decoder that gives each image the same score. For a manifest, only warn.

    Raises:
        EngineError: recognition or the user has chosen the decoder.
    """
    error = EngineError(
        model_name,
        f'the score is 1 for each image, because the decoder is {known.decoder}, and the model '
        'has one class',
        fix=f'set {overrides.syntax.name("decoder")} to class_sigmoid if the output is a logit, '
        'or to class_probabilities if it is a probability',
    )
    if manifest is None or overrides.decoder:
        raise error
    _LOG.warning('%s', error, extra={'show': True})


def _with_derived_size(
    preprocessing: Preprocessing, image: TensorSpec, overrides: ModelOverrides
) -> tuple[Preprocessing, bool]:
    """Return the preprocessing for the images, and whether the size follows from them.

    Raises:
        EngineError: the images need too large an input.
    """
    derives_size = (
        preprocessing.size_multiple is not None
        and preprocessing.resize == 'stretch'
        and image_size(image) is None
        and 'input_size' not in overrides.preprocessing
    )
    if derives_size and overrides.image_wh is not None:
        if mistake := preprocessing.derived_size_mistake(overrides.image_wh):
            fix = f'set {overrides.syntax.name("input_size")}'
            raise EngineError('size of the image', fix=fix, **mistake)
        input_size = preprocessing.size_for(overrides.image_wh)
        preprocessing = replace(preprocessing, input_size=input_size)
    return preprocessing, derives_size


def _log_recognition(model_name: str, known: ModelDescription) -> None:
    for sentence in known.evidence:
        _LOG.info('%s: %s', model_name, sentence)
    if known.assumption:
        _LOG.warning('%s: %s', model_name, known.assumption, extra={'show': True})


def _fill_dynamic_sides(
    described: tuple[TensorSpec, ...], found: tuple[TensorSpec, ...], first: int | None = None
) -> tuple[TensorSpec, ...]:
    """Replace dynamic dimensions of the manifest with the dimensions that the engine reports.

    An engine reports fixed outputs if all its profiles have one shape, and fixed inputs if it has
    a single profile.

    Args:
        found: tensors of the engine.
        first: number of leading dimensions to replace; None for all.
    """
    if [len(tensor.shape) for tensor in described] != [len(tensor.shape) for tensor in found]:
        return described
    return tuple(
        replace(
            one,
            shape=tuple(
                reported_side if side < 0 and (first is None or index < first) else side
                for index, (side, reported_side) in enumerate(
                    zip(one.shape, other.shape, strict=True)
                )
            ),
        )
        for one, other in zip(described, found, strict=True)
    )


def _check_manifest_tensors(model: ModelInfo, manifest: Manifest) -> None:
    """Refuse a manifest whose inputs or outputs differ from the model's."""
    # Without profiles in the manifest, only the batch may be dynamic.
    first = None if manifest.build and manifest.build.profiles else 1
    for role, described, found in (
        ('input', _fill_dynamic_sides(manifest.inputs, model.inputs, first), model.inputs),
        ('output', _fill_dynamic_sides(manifest.outputs, model.outputs), model.outputs),
    ):
        if described != found:
            command = (
                export_command(model.path)
                if model.is_served
                else rebuild_command(manifest, Path(model.name))
            )
            raise ManifestError(
                model.name,
                f'the manifest describes {role}s {tensors_text(described)}, the model has '
                f'{tensors_text(found)}',
                fix=f'build model and manifest again, because they do not match: {command}',
            )


def _fixed_image_input(
    name: str,
    image: TensorSpec,
    preprocessing: Preprocessing,
    parameter_name: Callable[[str], str],
) -> TensorSpec:
    """Return the image input with fixed dimensions, checked against the preprocessing."""
    width, height = preprocessing.input_size
    batch = max(1, batch_size(image))
    if preprocessing.layout == 'nhwc':
        wanted: tuple[int, ...] = (batch, height, width, 3)
    else:
        wanted = (batch, 3, height, width)[-len(image.shape) :]
    found = tensors_text((image,))
    if len(image.shape) != len(wanted) or any(
        side not in (-1, want) for side, want in zip(image.shape, wanted, strict=True)
    ):
        raise EngineError(
            name, found, expected=f'an input of {list(wanted)}', fix='check the input size'
        )
    if image.dtype not in INPUT_DTYPES:
        raise EngineError(
            name,
            found,
            expected=f'an input of {" or ".join(INPUT_DTYPES)}',
            fix='export the detector with one of these types',
        )
    if image.dtype != preprocessing.dtype:
        raise EngineError(
            name, found, expected=f'a {preprocessing.dtype} input, as its manifest says'
        )
    if mistake := uint8_input_mistake(preprocessing, parameter_name):
        raise EngineError(f'{name}: {found}', **mistake)
    fixed = replace(image, shape=wanted)
    check_tensor_sizes(name, (fixed,))
    return fixed


def _check_outputs(
    name: str,
    decoder: Decoder,
    task: Task,
    outputs: tuple[TensorSpec, ...],
    classes: int,
    batch: int,
    *,
    any_batch: bool = False,
    names_source: str = '',
) -> tuple[int, ...]:
    """Check the sizes of outputs, and that they match decoder, class names, task and batch.

    Args:
        names_source: where the class names are from, for messages; empty if unknown.

    Returns:
        The indices of the outputs that the decoder reads.
    """
    check_tensor_sizes(name, outputs)
    wanted = decoder.outputs(classes, task)
    if not wanted:
        raise EngineError(
            name,
            f'the decoder {decoder}',
            expected=f'one of {", ".join(presets_for_task(task))} for the task {task}',
            fix='correct model.decoder, or the manifest',
        )
    assigned = assign_outputs(wanted, outputs)
    if assigned is None or any(
        output.shape[0] == 'B' and not any_batch and outputs[place].shape[0] not in (batch, -1)
        for output, place in zip(wanted, assigned, strict=True)
    ):
        mismatch = outputs_mismatch(decoder, task, outputs, classes, batch, names_source)
        raise EngineError(name, **mismatch)
    return assigned
