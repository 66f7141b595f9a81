# SPDX-License-Identifier: Apache-2.0
"""Lists the parameters that the user must set if recognition is incomplete, and only these."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypedDict

from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.files.plain_text import counted, join_alternatives, join_first_items
from trt_perception.model.decoder import Decoder
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.input_layout import image_size, split_inputs
from trt_perception.model.other_networks import possible_networks
from trt_perception.model.output_tensor import (
    OutputTensor,
    assign_outputs,
    outputs_text,
    possible_assignments,
)
from trt_perception.model.preprocessing import COLOR_ORDERS, RESIZE_MODES
from trt_perception.model.recognition.decoder_search import (
    decoders_of_a_part,
    find_decoders_by_shape,
)
from trt_perception.model.recognition.image_tasks import (
    OTHER_MAPS,
    advice_for_a_depth,
    image_task,
    meanings_text,
)
from trt_perception.model.recognition.manifest_command import manifest_advice
from trt_perception.model.recognition.parameter_syntax import ROS_SYNTAX, ParameterSyntax
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.pose import Pose
from trt_perception.model.tasks.table import TASKS
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import ModelInfo, TensorSpec, tensors_text

#: Fields of Preprocessing that have no default.
REQUIRED_FIELDS: Final = ('input_size', 'resize', 'color_order', 'scale')
_ALLOWED_VALUE_TEXTS: Final = {
    'input_size': 'width and height in pixels',
    'resize': ' or '.join(RESIZE_MODES),
    'color_order': ' or '.join(COLOR_ORDERS),
    'scale': 'the factor for pixel values of 0 to 255 in training, usually 1/255 or 1',
    'mean': 'mean of each channel after scale, usually 0.485, 0.456, 0.406, or 0, 0, 0',
    'std': 'standard deviation of each channel, usually 0.229, 0.224, 0.225, or 1, 1, 1',
}

# Such models were trained with the antialiasing of PIL.
_PLACEHOLDER_VALUES: Final = {
    'input_size': ['WIDTH', 'HEIGHT'],
    'class_names': ['NAME', 'NAME'],
    'antialias': True,
    **dict.fromkeys(('mean', 'std'), ['NUMBER'] * 3),
}


@dataclass(frozen=True)
class RecognitionState:
    """The known and unknown values of a model at the end of recognition.

    Attributes:
        decoders: names of the decoders that fit, or the decoder that the user set.
        decoders_with_other_names: if none fits, the decoders that fit another number of class
            names.
        class_count: number of class names; 0 if unknown.
        names_source: where the class names are from, for messages.
        replaced_names: the class names of the model's files that the user has replaced, such as
            ``metadata "names" has 80 names``; empty if there are none.
        missing_fields: names of Preprocessing's fields without a value.
        with_preprocessing: names of decoders whose usual preprocessing is known.
        problems: maps fields of Preprocessing to the reason why the exporter's value is unknown
            or unsupported, unless the user has set the field.
        task: the model's task, such as ``detect`` or ``pose``.
        is_task_given: whether the user has set the task.
        is_exporter_known: whether metadata or config.json describe the model.
        is_decoder_given: whether the user has set the decoder.
    """

    decoders: tuple[str, ...]
    decoders_with_other_names: tuple[str, ...]
    class_count: int
    names_source: str
    missing_fields: tuple[str, ...]
    with_preprocessing: tuple[str, ...]
    problems: Mapping[str, str] = field(default_factory=dict)
    task: Task = DETECT
    is_task_given: bool = False
    is_exporter_known: bool = False
    is_decoder_given: bool = False
    replaced_names: str = ''


def check_nothing_is_missing(
    model: ModelInfo,
    evidence: Sequence[str],
    state: RecognitionState,
    syntax: ParameterSyntax,
) -> None:
    """Check that recognition is complete.

    Args:
        evidence: one sentence for each finding.

    Raises:
        MissingModelInfoError: a value is unknown. The error lists the parameters to set, with
            their possible values.
        EngineError: no decoder fits the outputs.
    """
    name = model.name
    inputs, outputs = tensors_text(model.inputs), tensors_text(model.outputs)
    seen = [f'inputs: {inputs}', f'outputs: {outputs}', *evidence]
    decoders = state.decoders or state.decoders_with_other_names
    # If exporter and number of anchors exclude all decoders, offer all that fit the shapes.
    by_shape = (
        () if decoders else find_decoders_by_shape(model, state.class_count or None, state.task)
    )
    class_counts = _class_counts_by_decoder(decoders or by_shape, model.outputs, state.task)
    if not class_counts:
        raise EngineError(
            name,
            f'the outputs fit no decoder. Seen: {"; ".join(seen)}',
            fix=_task_advice(model, state, syntax)
            + _advice_about_unused_outputs(model, state, syntax)
            + 'export a model whose outputs docs/decoders.md lists',
        )
    # Decoders with a usual preprocessing do not need the parameters of the preprocessing. If other
    # decoders fit too, a sentence lists what these other decoders need.
    without_preprocessing = [fit for fit in class_counts if fit not in state.with_preprocessing]
    needs_all = len(without_preprocessing) == len(class_counts)
    missing = _missing_parameters(state, class_counts, syntax, needs_all, bool(by_shape))
    if not missing:
        return
    image, _ = split_inputs(model.name, model.inputs)
    is_known = state.is_exporter_known or state.is_task_given or state.is_decoder_given
    other = () if is_known else possible_networks(model.outputs, image)
    choices = [f'{syntax.name(key)}: {text}' for key, text in missing.items()]
    if 0 < len(without_preprocessing) < len(class_counts):
        more = [
            syntax.name(key) for key in ('decoder', *REQUIRED_FIELDS[1:]) if key not in missing
        ]
        choices.append(f'{" and ".join(without_preprocessing)} would need {", ".join(more)} too')
    values = {key: _PLACEHOLDER_VALUES.get(key, 'VALUE') for key in missing}
    arguments = syntax.arguments(values)
    raise MissingModelInfoError(
        name,
        _found_text(model, choices, seen, other),
        fix=f'add {arguments} (docs/recognition.md), or '
        + _manifest_advice(model, state.task, values),
        arguments=arguments,
        missing=missing,
        seen=seen,
        other_networks=other,
    )


def _first_tensors_text(tensors: Sequence[TensorSpec]) -> str:
    return join_first_items([tensors_text((tensor,)) for tensor in tensors])


def _advice_about_unused_outputs(
    model: ModelInfo, state: RecognitionState, syntax: ParameterSyntax
) -> str:
    """Return advice about decoders that read a part of the outputs; empty if none does."""
    image, _ = split_inputs(model.name, model.inputs)
    parts = decoders_of_a_part(model, image_size(image), state.class_count or None, state.task)
    return ''.join(
        f'add {syntax.arguments({"decoder": decoder})} if {_first_tensors_text(unused)} may '
        'stay unused, or '
        for decoder, unused in parts.items()
    )


def _task_advice(model: ModelInfo, state: RecognitionState, syntax: ParameterSyntax) -> str:
    """Return advice about a task that the user has set; empty if the user has set none."""
    if not state.is_task_given:
        return ''
    image, _ = split_inputs(model.name, model.inputs)
    size = image_size(image)
    seen = image_task(model, size, state.class_count)
    if seen == Depth() and len(model.outputs) == 1:
        return f'{advice_for_a_depth(model.outputs, size, syntax)}; or '
    if seen:
        fits = [seen.name]
    else:
        # Leave out poses, because the number of keypoints is unknown.
        tasks = [task() for task in TASKS.values() if task is not Pose]
        count = state.class_count or None
        fitting = [task for task in tasks if find_decoders_by_shape(model, count, task)]
        # The shapes of boxes also fit maps, but such maps are unlikely.
        fits = [task.name for task in fitting if task.finds_objects] or [str(t) for t in fitting]
    other = f' or set it to {" or ".join(fits)},' if fits else ''
    return f'remove {syntax.name("task")},{other} or '


def _found_text(
    model: ModelInfo, choices: Sequence[str], seen: Sequence[str], other: Sequence[str]
) -> str:
    place = 'in its configuration' if model.is_served else f'{model.name}.json'
    lines = [
        f'without a manifest ({place}), these values are unknown:',
        *(f'- {choice}' for choice in choices),
        'The model has:',
        *(f'- {sentence}' for sentence in seen),
        *(
            (f'The outputs may also be {join_alternatives(other)}, which no task reads.',)
            if other
            else ()
        ),
    ]
    return '\n'.join(lines)


def _manifest_advice(model: ModelInfo, task: Task, values: Mapping[str, object]) -> str:
    """Return the advice with the values. Class names have their own option in the command."""
    others = {key: value for key, value in values.items() if key != 'class_names'}
    return f'{manifest_advice(model, task.name)} {ROS_SYNTAX.arguments(others)}'.rstrip()


def _missing_parameters(
    state: RecognitionState,
    class_counts: Mapping[str, int | None],
    syntax: ParameterSyntax,
    needs_all: bool,
    by_shape: bool,
) -> dict[str, str]:
    """Return the parameters to set, with the possible values of each."""
    asked = set(state.missing_fields) if needs_all else set(state.missing_fields) & {'input_size'}
    allowed = dict(_ALLOWED_VALUE_TEXTS)
    if len(state.decoders) == 1 and (networks := PRESETS[state.decoders[0]].networks_by_resize):
        allowed['resize'] = ', or '.join(f'{mode} for {text}' for mode, text in networks.items())
    missing = {
        key: f'{state.problems[key]}. Possible: {text}' if key in state.problems else text
        for key, text in allowed.items()
        if key in asked | state.problems.keys()
    }
    if 'resize' in missing and state.task == Classify():
        shorter_side = syntax.name('shorter_side')
        missing['resize'] += (
            f'; center_crop also needs {shorter_side}, usually 256 for an input of 224'
        )
    if 'input_size' in missing and state.task == Depth():
        missing['input_size'] += (
            '; Depth Anything needs multiples of 14, usually 518 x 518 or, for 16:9, 924 x 518'
        )
    needs_names = state.task.has_classes and (
        not state.class_count or bool(state.decoders_with_other_names)
    )
    # If each decoder needs another number of class names, the class names also decide the decoder.
    shared = len(set(class_counts.values())) < len(class_counts)
    if by_shape or (len(class_counts) > 1 and (shared or not needs_names)):
        missing['decoder'] = f'the outputs fit {" and ".join(class_counts)}'
        if all(PRESETS[name].meaning for name in class_counts):
            missing['decoder'] = meanings_text(tuple(class_counts))
        if state.task == Depth() and not state.is_task_given and not state.is_exporter_known:
            missing['decoder'] += f', if the output is a depth; {OTHER_MAPS}'
    if needs_names:
        missing['class_names'] = _class_names_text(class_counts, state, syntax)
    if 'antialias' in state.problems:
        missing['antialias'] = (
            f'{state.problems["antialias"]}. To use bilinear '
            'sampling instead, choose 1 (antialiasing, as in PIL) or 0 (none), and measure the '
            'accuracy'
        )
    return missing


def _class_names_text(
    class_counts: Mapping[str, int | None],
    state: RecognitionState,
    syntax: ParameterSyntax,
) -> str:
    decoders_by_count: dict[int | None, list[str]] = {}
    for decoder, count in class_counts.items():
        decoders_by_count.setdefault(count, []).append(decoder)
    listed = join_alternatives(
        [
            f'{"any number of classes" if count is None else counted(count, "class", "classes")} '
            f'with {join_alternatives(decoders)}'
            for count, decoders in decoders_by_count.items()
        ]
    )
    wrong = ''
    if state.class_count:
        given = counted(state.class_count, 'name')
        wrong = f', but {state.names_source} has {given}: set a name for each class'
        if state.replaced_names:
            wrong += f', or leave {state.names_source} out, because {state.replaced_names}'
    more = [PRESETS[fit].background for fit in class_counts if PRESETS[fit].background]
    is_unknown = state.task == DETECT and not state.is_exporter_known
    if is_unknown and any(
        _class_axis_may_hold_task_values(PRESETS[fit].decoder) for fit in class_counts
    ):
        more.append(
            'With fewer classes, the other channels may be an angle, keypoints or mask '
            f'coefficients: then add {syntax.arguments({"task": "TASK"})}'
        )
    return '. '.join([f'the outputs have {listed}{wrong}', *more])


def _class_axis_may_hold_task_values(decoder: Decoder) -> bool:
    """Return whether the axis of the classes may also hold task values."""
    return decoder.allows_task_values and decoder.outputs(0) != decoder.outputs(1)


@functools.cache
def _value_counts_before_classes() -> frozenset[int]:
    """Return how many other values the decoders expect on the axis of the classes."""
    return frozenset(
        side
        for preset in PRESETS.values()
        for none, one in zip(preset.decoder.outputs(0), preset.decoder.outputs(1), strict=True)
        for side, longer in zip(none.shape, one.shape, strict=True)
        if side != longer and isinstance(side, int)
    )


def _class_counts_by_decoder(
    names: Sequence[str], outputs: tuple[TensorSpec, ...], task: Task
) -> dict[str, int | None]:
    """Return the number of class names that each decoder needs; None if any number fits."""
    return {name: needed_class_count(PRESETS[name].decoder, outputs, task) for name in names}


def needed_class_count(
    decoder: Decoder, outputs: tuple[TensorSpec, ...], task: Task
) -> int | None:
    """Return the number of class names that a decoder needs to read outputs.

    Returns:
        None unless exactly one number fits.
    """
    sides = {side for tensor in outputs for side in tensor.shape}
    counts_before = {before + task.task_value_count for before in _value_counts_before_classes()}
    possible_counts = {side - before for side in sides for before in counts_before}
    matching = [
        count
        for count in possible_counts
        if count > 0 and assign_outputs(decoder.outputs(count, task), outputs) is not None
    ]
    if len(matching) > 1:
        # Outputs that the decoder leaves unused may have a shape that fits too.
        matching = [
            count for count in matching if _reads_by_name(decoder.outputs(count, task), outputs)
        ]
    return matching[0] if len(matching) == 1 else None


def _reads_by_name(wanted: Sequence[OutputTensor], outputs: tuple[TensorSpec, ...]) -> bool:
    """Return whether each output that is read has one of its usual names."""
    places = assign_outputs(wanted, outputs) or ()
    return all(
        outputs[place].name in output.tensor_names
        for output, place in zip(wanted, places, strict=False)
    )


class Mismatch(TypedDict):
    """Why a decoder cannot read outputs, as arguments of an error."""

    found: str
    expected: str
    fix: str


def outputs_mismatch(
    decoder: Decoder,
    task: Task,
    outputs: tuple[TensorSpec, ...],
    classes: int,
    batch: int,
    names_source: str = '',
) -> Mismatch:
    """Describe outputs that a decoder cannot read.

    Args:
        names_source: where the class names are from; empty if unknown.
    """
    wanted = decoder.outputs(classes, task)
    ways = possible_assignments(wanted, outputs)
    source = f' of {names_source}' if names_source and classes else ''
    count = needed_class_count(decoder, outputs, task)
    fix = f'set {counted(count or 0, "class name")}, or correct decoder and task'
    if len(ways) > 1:
        fix = _advice_about_equal_outputs(wanted, outputs, ways)
    elif count in (None, classes):
        fix = 'check class names, decoder and task'
    return Mismatch(
        found=tensors_text(outputs),
        expected=f'{outputs_text(wanted, batch)}, as the decoder {decoder} reads with {classes} '
        f'classes{source} and the task {task}',
        fix=fix,
    )


def _advice_about_equal_outputs(
    wanted: Sequence[OutputTensor],
    outputs: Sequence[TensorSpec],
    ways: Sequence[tuple[int, ...]],
) -> str:
    """Return advice for outputs that match in several ways."""
    texts = [
        f'{output.name} may be {" or ".join(outputs[index].name for index in fitting)}'
        for place, output in enumerate(wanted)
        if len(fitting := sorted({way[place] for way in ways})) > 1
    ]
    return (
        f'{", ".join(texts)}: keep one of each and remove the others from the model, with '
        'onnx.utils.extract_model(MODEL, NEW_MODEL, INPUT_NAMES, OUTPUT_NAMES)'
    )
