"""Model inputs and outputs: tensors, manifest and parameters brought together.

A parameter wins over the manifest; the tensors must agree with both. Without a manifest the model
itself is asked (model.recognition). What nothing says is an error that lists the parameters to
set: nothing about a model is ever guessed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trt_perception.errors import EngineError, ManifestError
from trt_perception.model.decoder import Decoder
from trt_perception.model.decoders.table import families_for_task
from trt_perception.model.input_layout import (
    batch_size,
    constant_inputs,
    has_size_input,
    split_inputs,
)
from trt_perception.model.manifest import Manifest, rebuild_command
from trt_perception.model.output_tensor import OutputTensor, assign_outputs, outputs_text
from trt_perception.model.preprocessing import Preprocessing, pixels_fault
from trt_perception.model.recognition.recognise import (
    ModelOverrides,
    RunForShapes,
    apply_overrides,
    recognise,
)
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import INPUT_DTYPES, ModelInfo, TensorSpec, tensors_text

__all__ = ['ModelSpec', 'resolve_model_spec']

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSpec:
    """Everything a pipeline must know of a model.

    Attributes:
        input: the image tensor without open dimensions: (B, 3, height, width), or
            (B, height, width, 3), or (3, height, width).
        outputs: as the runtime reports them.
        preprocessing: how pixels become the input.
        decoder: how the outputs become boxes.
        class_names: in the network's order.
        has_manifest: False where the model itself and parameters say what a manifest would.
        evidence: without a manifest: what was seen -> what was chosen, a sentence each.
        auxiliary_inputs: the inputs next to the image, without open dimensions.
        task: what the outputs say of each object.
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

    @property
    def batch(self) -> int:
        """How many images the model takes at once."""
        return batch_size(self.input)

    @functools.cached_property
    def decoder_outputs(self) -> tuple[tuple[OutputTensor, int], ...]:
        """The outputs that the decoder reads, each with its place in ``outputs``."""
        wanted = self.decoder.outputs(len(self.class_names), self.task)
        assigned = assign_outputs(wanted, self.outputs)
        assert assigned is not None, 'checked when the model was opened'
        return tuple(zip(wanted, assigned, strict=True))

    def with_batch_size(self, batch: int) -> ModelSpec:
        """Return what is known of the model where it takes so many images at once."""
        if batch == self.batch:
            return self

        def sized(tensor: TensorSpec) -> TensorSpec:
            return replace(tensor, shape=(batch, *tensor.shape[1:]))

        return replace(
            self,
            input=sized(self.input),
            outputs=tuple(map(sized, self.outputs)),
            auxiliary_inputs=tuple(map(sized, self.auxiliary_inputs)),
        )

    def check_outputs(self, found: tuple[TensorSpec, ...]) -> None:
        """Hold outputs as they came to what the decoder reads; a model may leave shapes open.

        Raises:
            EngineError: they are not what decoder and class names make, or hold another batch.
        """
        classes = len(self.class_names)
        _check_outputs('the model', self.decoder, self.task, found, classes, self.batch)


def resolve_model_spec(
    model: ModelInfo,
    manifest: Manifest | None,
    overrides: ModelOverrides,
    *,
    run_for_shapes: RunForShapes | None = None,
) -> ModelSpec:
    """Bring tensors, manifest and parameters together; an open batch becomes one image.

    Args:
        model: what it shows of itself; metadata and config.json are read without a manifest.
        manifest: the one next to the file, None where there is none.
        overrides: what the user said; it wins over everything.
        run_for_shapes: runs the model; asked where it must be recognised and leaves shapes open.

    Raises:
        EngineError: the tensors are none that an image detector has, or something remains unknown.
        ManifestError: the manifest names other tensors than the model has.
    """
    if manifest is not None:
        _check_tensors(model, manifest)
    image, auxiliary_inputs = split_inputs(model.name, model.inputs)
    if manifest is not None:
        known = apply_overrides(manifest, overrides)
    else:
        known = recognise(model, overrides, run_for_shapes)
        for sentence in known.evidence:
            _LOG.info('%s: %s', model.name, sentence)
    preprocessing = known.preprocessing
    known.task.check_preprocessing(model.name, preprocessing)
    resolved = _image_input(model.name, image, preprocessing, overrides.parameter_name)
    batch = batch_size(resolved)
    constants = constant_inputs(auxiliary_inputs, preprocessing.input_size, batch)
    classes = len(known.class_names)
    # Where the batch is open, an engine may report outputs of its first profile's.
    is_open = len(image.shape) == 4 and image.shape[0] < 0
    _check_outputs(
        model.name, known.decoder, known.task, model.outputs, classes, batch, any_batch=is_open
    )
    if known.decoder.needs_size_input and not has_size_input(auxiliary_inputs):
        raise EngineError(
            model.name,
            tensors_text(model.inputs),
            expected=f'a second input orig_target_sizes, in whose units the boxes of '
            f'{known.decoder} are',
            fix='export the detector with it',
        )
    return ModelSpec(
        resolved,
        model.outputs,
        preprocessing,
        known.decoder,
        known.class_names,
        manifest is not None,
        known.evidence,
        tuple(replace(tensor, shape=constants[tensor.name].shape) for tensor in auxiliary_inputs),
        known.task,
    )


def _fill_dynamic_sides(
    described: tuple[TensorSpec, ...], found: tuple[TensorSpec, ...], first: int | None = None
) -> tuple[TensorSpec, ...]:
    """Fill in open sides that the engine knows, or the first of them only.

    Profiles of one shape settle outputs, and a single one the inputs, too.
    """
    if [len(tensor.shape) for tensor in described] != [len(tensor.shape) for tensor in found]:
        return described
    return tuple(
        replace(
            one,
            shape=tuple(
                there if side < 0 and (first is None or index < first) else side
                for index, (side, there) in enumerate(zip(one.shape, other.shape, strict=True))
            ),
        )
        for one, other in zip(described, found, strict=True)
    )


def _check_tensors(model: ModelInfo, manifest: Manifest) -> None:
    # A manifest that does not say which profiles there are leaves the batch open at most.
    first = None if manifest.build and manifest.build.profiles else 1
    for role, described, found in (
        ('input', _fill_dynamic_sides(manifest.inputs, model.inputs, first), model.inputs),
        ('output', _fill_dynamic_sides(manifest.outputs, model.outputs), model.outputs),
    ):
        if described != found:
            again = rebuild_command(manifest, Path(model.name))
            raise ManifestError(
                model.name,
                f'the manifest describes {role}s {tensors_text(described)}, the model has '
                f'{tensors_text(found)}',
                fix=f'make both again, they do not belong together: {again}',
            )


def _image_input(
    name: str,
    image: TensorSpec,
    preprocessing: Preprocessing,
    parameter_name: Callable[[str], str],
) -> TensorSpec:
    """Return the image input with its final shape, held to the preprocessing."""
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
            fix='export the detector with one',
        )
    if image.dtype != preprocessing.dtype:
        raise EngineError(
            name, found, expected=f'a {preprocessing.dtype} input, as its manifest says'
        )
    if fault := pixels_fault(preprocessing, parameter_name):
        raise EngineError(f'{name}: {found}', **fault)
    return replace(image, shape=wanted)


def _check_outputs(
    name: str,
    decoder: Decoder,
    task: Task,
    outputs: tuple[TensorSpec, ...],
    classes: int,
    batch: int,
    *,
    any_batch: bool = False,
) -> None:
    """Hold outputs to what the decoder reads, of as many images as go in."""
    wanted = decoder.outputs(classes, task)
    if not wanted:
        raise EngineError(
            name,
            f'the decoder {decoder}',
            expected=f'one of the families {", ".join(families_for_task(task.name))} '
            f'for the task {task}',
            fix='correct model.decoder, or the manifest',
        )
    assigned = assign_outputs(wanted, outputs)
    if assigned is None or any(
        output.shape[0] == 'B' and not any_batch and outputs[place].shape[0] not in (batch, -1)
        for output, place in zip(wanted, assigned, strict=True)
    ):
        raise EngineError(
            name,
            tensors_text(outputs),
            expected=f'{outputs_text(wanted, batch)}, as the decoder '
            f'{decoder} reads with {classes} classes and the task {task}',
            fix='check class names, decoder and task (only a manifest says it: docs/manifest.md)',
        )
