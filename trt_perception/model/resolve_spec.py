# SPDX-License-Identifier: Apache-2.0
"""Resolves and checks the description of a model from its tensors, manifest and parameters.

A parameter replaces the value of the manifest, and the tensors must match both. Without a
manifest, recognition (``model/recognition``) describes the model. Nothing is guessed: if a value
is unknown, the error lists the parameters to set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from trt_perception.errors import EngineError, ManifestError
from trt_perception.model.input_layout import has_size_input, split_inputs
from trt_perception.model.manifest import Manifest, rebuild_command
from trt_perception.model.model_spec import ModelSpec, check_outputs
from trt_perception.model.preprocessing import uint8_input_mistake
from trt_perception.model.recognition.manifest_command import export_command
from trt_perception.model.recognition.recognise import (
    FindOutputShapes,
    ModelOverrides,
    apply_overrides,
    recognise,
)
from trt_perception.model.tensors import (
    INPUT_DTYPES,
    ModelInfo,
    TensorSpec,
    check_tensor_sizes,
    tensors_text,
)

_LOG: Final = logging.getLogger(__name__)


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
    if manifest is not None:
        _check_manifest_tensors(model, manifest)
        spec = apply_overrides(model, manifest, overrides)
    else:
        spec = recognise(model, overrides, find_output_shapes)
        _log_recognition(model.name, spec)
    check_model_spec(spec, overrides)
    return spec


def check_model_spec(
    spec: ModelSpec, overrides: ModelOverrides, *, knows_outputs: bool = True
) -> None:
    """Check that a description fits the tensors of its model.

    Args:
        spec: description from ``recognise`` or ``apply_overrides``, which have not checked it.
        overrides: values that the user has set.
        knows_outputs: whether the model's outputs have shapes. If False, the outputs are not
            checked.

    Raises:
        EngineError: a pipeline would refuse the model. The message says why.
    """
    model = spec.model
    assert model is not None
    if spec.decoder.has_constant_scores(len(spec.class_names)):
        _report_constant_scores(model.name, spec, overrides)
    spec.task.check_preprocessing(model.name, spec.preprocessing)
    spec.task.check_class_count(model.name, len(spec.class_names))
    image, auxiliary_inputs = split_inputs(model.name, model.inputs)
    _check_image_input(model.name, image, spec, overrides.syntax.name)
    if knows_outputs:
        # An engine with a dynamic batch may report the outputs with the batch of its first
        # profile.
        assigned = check_outputs(
            model.name,
            spec.decoder,
            spec.task,
            model.outputs,
            len(spec.class_names),
            spec.batch,
            any_batch=len(image.shape) == 4 and image.shape[0] < 0,
            names_source=spec.names_source,
        )
        unused = [tensor for place, tensor in enumerate(model.outputs) if place not in assigned]
        if unused:
            _LOG.info('%s: unused outputs: %s', model.name, tensors_text(unused))
    if spec.decoder.needs_size_input and not has_size_input(auxiliary_inputs):
        raise EngineError(
            model.name,
            tensors_text(model.inputs),
            expected='a second input orig_target_sizes, which defines the units of boxes with '
            f'{spec.decoder}',
            fix='export the detector with this input',
        )


def _report_constant_scores(model_name: str, spec: ModelSpec, overrides: ModelOverrides) -> None:
    """Refuse a decoder that gives each image the same score. For a manifest, only warn.

    Raises:
        EngineError: recognition or the user has chosen the decoder.
    """
    error = EngineError(
        model_name,
        f'the score is 1 for each image, because the decoder is {spec.decoder}, and the model '
        'has one class',
        fix=f'set {overrides.syntax.name("decoder")} to class_sigmoid if the output is a logit, '
        'or to class_probabilities if it is a probability',
    )
    if not spec.has_manifest or overrides.decoder:
        raise error
    _LOG.warning('%s', error, extra={'show': True})


def _log_recognition(model_name: str, spec: ModelSpec) -> None:
    for sentence in spec.evidence:
        _LOG.info('%s: %s', model_name, sentence)
    if spec.assumption:
        _LOG.warning('%s: %s', model_name, spec.assumption, extra={'show': True})


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


def _check_image_input(
    name: str, image: TensorSpec, spec: ModelSpec, parameter_name: Callable[[str], str]
) -> None:
    """Check that the model's image input has the dimensions and type of the description."""
    wanted, found = spec.input.shape, tensors_text((image,))
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
    if image.dtype != spec.preprocessing.dtype:
        raise EngineError(
            name, found, expected=f'a {spec.preprocessing.dtype} input, as its manifest says'
        )
    if mistake := uint8_input_mistake(spec.preprocessing, parameter_name):
        raise EngineError(f'{name}: {found}', **mistake)
    check_tensor_sizes(name, (spec.input,))
