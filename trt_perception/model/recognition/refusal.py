"""What parameters must say of a model that does not say it itself: no more than is needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.model.decoder import Decoder
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.output_tensor import assign_outputs
from trt_perception.model.preprocessing import COLOR_ORDERS, RESIZE_MODES
from trt_perception.model.recognition.decoder_search import find_decoders_by_shape
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import ModelInfo, TensorSpec, tensors_text

__all__ = ['REQUIRED_FIELDS', 'RecognitionState', 'refuse_missing_info']

#: Fields of Preprocessing that have no default.
REQUIRED_FIELDS: Final = ('input_size', 'resize', 'color_order', 'scale')
_ALLOWED_VALUES: Final = {
    'input_size': 'width and height in pixels',
    'resize': ' or '.join(RESIZE_MODES),
    'color_order': ' or '.join(COLOR_ORDERS),
    'scale': 'what pixels of 0 to 255 are multiplied with in training, mostly 1/255 or 1',
}


@dataclass(frozen=True)
class RecognitionState:
    """What is known of a model, and what is not.

    Attributes:
        decoders: names of decoders that fit, or the one that was given.
        decoders_with_other_names: where none does: those that fit another number of class names.
        class_count: how many there are, 0 where nobody said.
        missing_fields: of REQUIRED_FIELDS.
        with_preprocessing: names of decoders whose usual preprocessing is known.
        filter_problem: why the resize filter of the training cannot be used; empty if it can.
        task: what the outputs say of each object.
    """

    decoders: tuple[str, ...]
    decoders_with_other_names: tuple[str, ...]
    class_count: int
    missing_fields: tuple[str, ...]
    with_preprocessing: tuple[str, ...]
    filter_problem: str = ''
    task: Task = DETECT


def refuse_missing_info(
    model: ModelInfo,
    evidence: Sequence[str],
    state: RecognitionState,
    parameter_name: Callable[[str], str],
) -> None:
    """Return where all is known; else list what is not, and what it can be.

    Args:
        model: what it shows of itself.
        evidence: what was found.
        state: what was not.
        parameter_name: makes of a parameter's name, without ``model.``, what the user must write.

    Raises:
        MissingModelInfoError: the parameters that it lists could say the rest.
        EngineError: none could: no decoder reads such outputs.
    """
    name = model.name
    inputs, outputs = tensors_text(model.inputs), tensors_text(model.outputs)
    seen = [f'inputs: {inputs}', f'outputs: {outputs}', *evidence]
    fits = state.decoders or state.decoders_with_other_names
    # What the shapes alone allow; exporter or number of anchors speak against it.
    by_shape = () if fits else find_decoders_by_shape(model, state.class_count or None, state.task)
    counts = _class_counts(fits or by_shape, model.outputs, state.task)
    if not counts:
        raise EngineError(
            name,
            f'the outputs fit no decoder. Seen: {"; ".join(seen)}',
            fix='export a detector with outputs that docs/decoders.md lists',
        )
    # Of several, some may bring their preprocessing: then only the choice of another asks for it.
    lacking = [fit for fit in counts if fit not in state.with_preprocessing]
    needs_all = len(lacking) == len(counts)
    missing = _missing_parameters(state, counts, needs_all=needs_all, by_shape=bool(by_shape))
    if not missing:
        return
    choices = [f'{parameter_name(key)}: {text}' for key, text in missing.items()]
    if 0 < len(lacking) < len(counts):
        more = [
            parameter_name(key) for key in ('decoder', *REQUIRED_FIELDS[1:]) if key not in missing
        ]
        choices.append(f'{" and ".join(lacking)} would need {", ".join(more)} too')
    raise MissingModelInfoError(
        name,
        f'there is no manifest ({name}.json), and these are unknown: '
        f'{", ".join(map(parameter_name, missing))}. Seen: {"; ".join(seen)}. '
        f'{". ".join(choices)}',
        fix='set them (docs/decoders.md), or write a manifest (docs/manifest.md)',
        missing=missing,
        seen=seen,
    )


def _missing_parameters(
    state: RecognitionState, counts: Mapping[str, int | None], *, needs_all: bool, by_shape: bool
) -> dict[str, str]:
    """Return what parameters must say, by name, with what each can be."""
    asked = state.missing_fields if needs_all else set(state.missing_fields) & {'input_size'}
    missing = {key: _ALLOWED_VALUES[key] for key in REQUIRED_FIELDS if key in asked}
    needs_names = not state.class_count or bool(state.decoders_with_other_names)
    # Where each needs another number of class names, these determine the decoder too.
    shared = len(set(counts.values())) < len(counts)
    if by_shape or (len(counts) > 1 and (shared or not needs_names)):
        missing['decoder'] = f'the outputs fit {" and ".join(counts)}'
    if needs_names:
        missing['class_names'] = _class_names_text(counts, state.class_count, state.task)
    if state.filter_problem:
        missing['antialias'] = (
            f'{state.filter_problem}; only bilinear sampling (2) is supported. To use it all the '
            'same, say whether with antialiasing, as PIL always has it, or without; then measure '
            'the accuracy'
        )
    return missing


def _class_names_text(counts: Mapping[str, int | None], class_count: int, task: Task) -> str:
    listed = ' or '.join(
        f'{"any number of" if count is None else count} classes as {fit}'
        for fit, count in counts.items()
    )
    wrong = f', not {class_count}: correct the class names' if class_count else ''
    more = [PRESETS[fit].background for fit in counts if PRESETS[fit].background]
    if task == DETECT and any(_may_hold_task_values(PRESETS[fit].decoder) for fit in counts):
        more.append(
            'With fewer classes the rest may be an angle, keypoints or mask coefficients, which '
            'are read where metadata or a manifest says the task (docs/manifest.md)'
        )
    return '. '.join([f'the outputs have {listed}{wrong}', *more])


def _may_hold_task_values(decoder: Decoder) -> bool:
    """Whether an axis that holds the classes may hold the values of a task too."""
    return decoder.allows_task_values and decoder.outputs(0) != decoder.outputs(1)


@functools.cache
def _value_counts_before_classes() -> frozenset[int]:
    """Return how many other values an axis with the classes may hold, of all decoders."""
    return frozenset(
        side
        for preset in PRESETS.values()
        for none, one in zip(preset.decoder.outputs(0), preset.decoder.outputs(1), strict=True)
        for side, longer in zip(none.shape, one.shape, strict=True)
        if side != longer and isinstance(side, int)
    )


def _class_counts(
    names: Sequence[str], outputs: tuple[TensorSpec, ...], task: Task
) -> dict[str, int | None]:
    """Return how many class names each candidate would need, None where any number will do."""
    sides = {side for tensor in outputs for side in tensor.shape}
    befores = {before + task.task_value_count for before in _value_counts_before_classes()}
    counts = sorted({side - before for side in sides for before in befores if side > before})
    needed: dict[str, int | None] = {}
    for name in names:
        fits = [
            count
            for count in counts
            if assign_outputs(PRESETS[name].decoder.outputs(count, task), outputs) is not None
        ]
        needed[name] = fits[0] if len(fits) == 1 else None
    return needed
