"""What parameters must say of a model that does not say it itself: no more than is needed."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trt_perception.errors import EngineError
from trt_perception.errors import MissingModelInfoError
from trt_perception.model.decoder_spec import DECODERS
from trt_perception.model.input_layout import has_size_input
from trt_perception.model.input_layout import split_inputs
from trt_perception.model.output_layout import assign_outputs
from trt_perception.model.preprocessing import COLOR_ORDERS
from trt_perception.model.preprocessing import RESIZE_MODES
from trt_perception.model.tensors import TensorSpec

__all__ = ['NEEDED', 'MissingModelInfo', 'refuse_missing_info']

#: Fields of Preprocessing that have no default.
NEEDED: Final = ('input_size', 'resize', 'color_order', 'scale')
_CHOICES: Final = {
    'input_size': 'width and height in pixels',
    'resize': ' or '.join(RESIZE_MODES),
    'color_order': ' or '.join(COLOR_ORDERS),
    'scale': 'what pixels of 0 to 255 are multiplied with in training, mostly 1/255 or 1',
}


@dataclass(frozen=True)
class MissingModelInfo:
    """What is known of a model, and what is not.

    Attributes:
        fitting: names of decoders that fit, or the one that was given.
        with_other_names: where none does: those that fit another number of class names.
        class_names: how many there are, 0 where nobody said.
        missing: of NEEDED.
        trained: names of decoders that bring the preprocessing which they are trained with.
        resampling: how images are made smaller, a sentence, where nothing here does it so.
    """

    fitting: tuple[str, ...]
    with_other_names: tuple[str, ...]
    class_names: int
    missing: tuple[str, ...]
    trained: tuple[str, ...]
    resampling: str = ''


def refuse_missing_info(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    evidence: Sequence[str],
    unsaid: MissingModelInfo,
    written: Callable[[str], str],
) -> None:
    """Return where all is known; else list what is not, and what it can be.

    Args:
        name: the model's file name.
        inputs: as the runtime reports them.
        outputs: likewise.
        evidence: what was found.
        unsaid: what was not.
        written: makes of a parameter's name, without ``model.``, what the user must write.

    Raises:
        MissingModelInfoError: the parameters that it lists could say the rest.
        EngineError: none could: no decoder reads such outputs.
    """
    seen = [f'inputs: {_listed(inputs)}', f'outputs: {_listed(outputs)}', *evidence]
    fits = unsaid.fitting or unsaid.with_other_names
    by_shape = () if fits else _by_shape(name, inputs, outputs, unsaid.class_names)
    fits = fits or by_shape
    if not fits:
        raise EngineError(
            name,
            f'the outputs fit no decoder. Seen: {"; ".join(seen)}',
            fix='export a detector with outputs that docs/decoders.md lists',
        )
    counts = _class_counts(fits, outputs)
    # Of several, some may bring their preprocessing: then only the choice of another asks for it.
    lacking = [fit for fit in fits if fit not in unsaid.trained]
    asked = unsaid.missing if len(lacking) == len(fits) else set(unsaid.missing) & {'input_size'}
    missing = {key: _CHOICES[key] for key in NEEDED if key in asked}
    # Where each needs another number of class names, these determine the decoder too.
    told_apart = not unsaid.class_names or unsaid.with_other_names
    shared = len(set(counts.values())) < len(counts)
    if by_shape or (len(fits) > 1 and (shared or not told_apart)):
        missing['decoder'] = f'the outputs fit {" and ".join(fits)}'
    if not unsaid.class_names or unsaid.with_other_names:
        missing['class_names'] = _classes(counts, unsaid.class_names)
    if unsaid.resampling:
        missing['antialias'] = (
            f'{unsaid.resampling}; only bilinear sampling (2) is supported. To use it all the '
            'same, say whether with antialiasing, as PIL always has it, or without; then measure '
            'the accuracy'
        )
    if not missing:
        return
    choices = [f'{written(key)}: {text}' for key, text in missing.items()]
    if 0 < len(lacking) < len(fits):
        more = [written(key) for key in ('decoder', *NEEDED[1:]) if key not in missing]
        choices.append(f'{" and ".join(lacking)} would need {", ".join(more)} too')
    raise MissingModelInfoError(
        name,
        f'there is no manifest ({name}.json), and these are unknown: '
        f'{", ".join(map(written, missing))}. Seen: {"; ".join(seen)}. {". ".join(choices)}',
        fix='set them (docs/decoders.md), or write a manifest (docs/manifest.md)',
        missing=missing,
        seen=seen,
    )


def _by_shape(
    name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], classes: int
) -> tuple[str, ...]:
    """Return what the shapes alone allow; exporter or number of anchors speak against it."""
    _, beside = split_inputs(name, inputs)
    return tuple(
        decoder
        for decoder, spec in DECODERS.items()
        if assign_outputs(spec, tuple(outputs), classes or None) is not None
        and (has_size_input(beside) or decoder != 'labels_boxes_scores')
    )


def _classes(counts: Mapping[str, int | None], given: int) -> str:
    listed = ' or '.join(
        f'{"any number of" if count is None else count} classes as {fit}'
        for fit, count in counts.items()
    )
    wrong = f', not {given}: correct the class names' if given else ''
    first = (
        '. Label 0 of torchvision is the background and stands first in the class names'
        if 'torchvision' in counts
        else ''
    )
    return f'the outputs have {listed}{wrong}{first}'


def _class_counts(names: Sequence[str], outputs: Sequence[TensorSpec]) -> dict[str, int | None]:
    """Return how many class names each candidate would need, None where any number will do."""
    told: dict[str, int | None] = {}
    for name in names:
        # At most what a manifest may hold; the first that fits, because they only differ in C.
        sides = {side for tensor in outputs for side in tensor.shape}
        counts = {side - before for side in sides for before in (0, 1, 4, 5) if side > before}
        fits = [
            count
            for count in sorted(counts)
            if assign_outputs(DECODERS[name], tuple(outputs), count) is not None
        ]
        told[name] = fits[0] if len(fits) == 1 else None
    return told


def _listed(tensors: Sequence[TensorSpec]) -> str:
    return (
        ', '.join(f'{tensor.name} {tensor.dtype}{list(tensor.shape)}' for tensor in tensors)
        or 'none'
    )
