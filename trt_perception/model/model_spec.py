"""Model inputs and outputs: tensors, manifest and parameters brought together.

A parameter wins over the manifest; the tensors must agree with both. Without a manifest the model
itself is asked (model.recognition). What nothing says is an error that lists the parameters to
set: nothing about a model is ever guessed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace
from pathlib import Path
from typing import Any
from typing import Final

from trt_perception.errors import BatchError
from trt_perception.errors import EngineError
from trt_perception.errors import ManifestError
from trt_perception.model.decoder_spec import DECODERS
from trt_perception.model.decoder_spec import DecoderSpec
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.input_layout import has_size_input
from trt_perception.model.input_layout import split_inputs
from trt_perception.model.manifest import Manifest
from trt_perception.model.manifest_writer import rebuild_command
from trt_perception.model.output_layout import assign_outputs
from trt_perception.model.output_layout import layout
from trt_perception.model.output_layout import layout_text
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.recognition.recognise import Recognised
from trt_perception.model.recognition.recognise import RunOnce
from trt_perception.model.recognition.recognise import recognise
from trt_perception.model.tensors import INPUT_DTYPES
from trt_perception.model.tensors import TensorSpec

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
        auxiliary_inputs: the inputs beside the image, without open dimensions.
    """

    input: TensorSpec
    outputs: tuple[TensorSpec, ...]
    preprocessing: Preprocessing
    decoder: DecoderSpec
    class_names: tuple[str, ...]
    has_manifest: bool
    evidence: tuple[str, ...] = ()
    auxiliary_inputs: tuple[TensorSpec, ...] = ()

    @property
    def batch(self) -> int:
        """How many images the model takes at once."""
        return self.input.shape[0] if len(self.input.shape) == 4 else 1

    def check_outputs(self, found: tuple[TensorSpec, ...]) -> None:
        """Hold outputs as they came to what the decoder reads; a model may leave shapes open.

        Raises:
            EngineError: they are not what decoder and class names make, or hold another batch.
        """
        _check_outputs('the model', self.decoder, found, len(self.class_names), self.batch)


def resolve_model_spec(
    name: str,
    manifest: Manifest | None,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    given: ModelOverrides,
    *,
    metadata: Mapping[str, str] | None = None,
    model_config: Mapping[str, Any] | None = None,
    any_batch: bool = False,
    run: RunOnce | None = None,
) -> ModelSpec:
    """Bring tensors, manifest and parameters together.

    Args:
        name: the model's file name, for messages.
        manifest: the one beside the file, None where there is none.
        inputs: as the runtime reports them, -1 for an open dimension.
        outputs: likewise.
        given: what the user said; it wins over everything.
        metadata: what the file says of itself; read where there is no manifest.
        model_config: a config.json beside it; likewise.
        any_batch: the model may take several images at once. An open batch is 1.
        run: runs the model; asked where it must be recognised and leaves shapes open.

    Raises:
        BatchError: it does, and must not.
        EngineError: the tensors are none that an image detector has, or something remains unknown.
        ManifestError: the manifest names other tensors than the model has.
    """
    if manifest is not None:
        again = rebuild_command(manifest, Path(name))
        _check_tensors(name, 'input', manifest.inputs, inputs, again)
        _check_tensors(name, 'output', _known(manifest.outputs, outputs), outputs, again)
    image, auxiliary_inputs = split_inputs(name, inputs)
    if manifest is not None:
        known = Recognised(
            DECODERS[given.decoder] if given.decoder else manifest.decoder,
            replace(manifest.preprocessing, **given.preprocessing),
            given.class_names or manifest.class_names,
            (),
        )
    else:
        known = recognise(
            name, inputs, outputs, metadata or {}, model_config, given=given, run=run
        )
        for sentence in known.evidence:
            _LOG.info('%s: %s', name, sentence)
    resolved = _image_input(name, image, known.preprocessing, given.written, any_batch=any_batch)
    batch = resolved.shape[0] if len(resolved.shape) == 4 else 1
    constants = constant_inputs(auxiliary_inputs, known.preprocessing.input_size, batch)
    spec = ModelSpec(
        resolved,
        outputs,
        known.preprocessing,
        known.decoder,
        known.class_names,
        manifest is not None,
        known.evidence,
        tuple(replace(tensor, shape=constants[tensor.name].shape) for tensor in auxiliary_inputs),
    )
    _check_outputs(name, spec.decoder, outputs, len(spec.class_names), batch)
    if spec.decoder.family == 'labels_boxes_scores' and not has_size_input(spec.auxiliary_inputs):
        raise EngineError(
            name,
            _listed(inputs),
            expected=f'a second input orig_target_sizes, in whose units the boxes of '
            f'{spec.decoder} are',
            fix='export the detector with it',
        )
    return spec


def _known(
    described: tuple[TensorSpec, ...], found: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    """Fill in open sides that the engine knows: profiles of one shape settle them."""
    if [len(tensor.shape) for tensor in described] != [len(tensor.shape) for tensor in found]:
        return described
    return tuple(
        replace(
            one,
            shape=tuple(
                there if side < 0 else side
                for side, there in zip(one.shape, other.shape, strict=True)
            ),
        )
        for one, other in zip(described, found, strict=True)
    )


def _check_tensors(
    name: str,
    role: str,
    described: tuple[TensorSpec, ...],
    found: tuple[TensorSpec, ...],
    again: str,
) -> None:
    if described != found:
        raise ManifestError(
            name,
            f'the manifest describes {role}s {_listed(described)}, the model has {_listed(found)}',
            fix=f'make both again, they do not belong together: {again}',
        )


def _listed(tensors: tuple[TensorSpec, ...]) -> str:
    return (
        ', '.join(f'{tensor.name} {tensor.dtype}{list(tensor.shape)}' for tensor in tensors)
        or 'none'
    )


def _image_input(
    name: str,
    image: TensorSpec,
    preprocessing: Preprocessing,
    written: Callable[[str], str],
    *,
    any_batch: bool,
) -> TensorSpec:
    """Return the image input with its final shape, held to the preprocessing."""
    width, height = preprocessing.input_size
    several = len(image.shape) == 4 and image.shape[0] > 1
    batch = image.shape[0] if several and any_batch else 1
    if preprocessing.layout == 'nhwc':
        wanted: tuple[int, ...] = (batch, height, width, 3)
    else:
        wanted = (batch, 3, height, width)[-len(image.shape) :]
    if several and not any_batch:
        raise BatchError(
            name,
            _listed((image,)),
            expected=f'a model that takes one image at a time, {list(wanted)}',
            fix='export it with batch 1: only evaluate_engine and detect_images run batches',
        )
    found = _listed((image,))
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
    plain = preprocessing.scale, preprocessing.mean, preprocessing.std
    if image.dtype == 'uint8' and plain != (1, (0, 0, 0), (1, 1, 1)):
        raise EngineError(
            name,
            ', '.join(map(str, plain)),
            expected=f'{written("scale")} 1, {written("mean")} 0 and {written("std")} 1, because '
            f'{found} takes pixels as they are',
        )
    return replace(image, shape=wanted)


def _check_outputs(
    name: str, decoder: DecoderSpec, outputs: tuple[TensorSpec, ...], classes: int, batch: int
) -> None:
    """Hold outputs to what the decoder reads, of as many images as go in."""
    assigned = assign_outputs(decoder, outputs, classes)
    roles = layout(decoder, classes)
    if assigned is None or any(
        role.shape[0] == 'B' and outputs[index].shape[0] not in (batch, -1)
        for role, index in zip(roles, assigned, strict=True)
    ):
        raise EngineError(
            name,
            _listed(outputs),
            expected=f'{layout_text(decoder, classes, batch)}, as the decoder {decoder} reads '
            f'with {classes} classes',
            fix='check class names and decoder',
        )
