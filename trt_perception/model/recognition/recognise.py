"""What a model without a manifest is: decoder, preprocessing and class names, from what it shows.

Asked in this order: the parameters, the metadata in the file, a config.json beside it, names and
shapes of its tensors. Each finding is kept as a sentence. Where more than one reading fits or none
does, the error lists what was seen, what it could be, and which parameters to set.

Page: docs/decoders.md.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from typing import Any
from typing import Final

import numpy as np
import numpy.typing as npt

from trt_perception.model.decoder_spec import DECODERS
from trt_perception.model.decoder_spec import DecoderSpec
from trt_perception.model.input_layout import closed_image
from trt_perception.model.input_layout import constant_inputs
from trt_perception.model.input_layout import has_size_input
from trt_perception.model.input_layout import image_shape
from trt_perception.model.input_layout import image_size
from trt_perception.model.input_layout import split_inputs
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.facts import Facts
from trt_perception.model.recognition.facts import facts_of
from trt_perception.model.recognition.outputs import Candidate
from trt_perception.model.recognition.outputs import candidates
from trt_perception.model.recognition.refusal import NEEDED
from trt_perception.model.recognition.refusal import MissingModelInfo
from trt_perception.model.recognition.refusal import refuse_missing_info
from trt_perception.model.tensors import INPUT_DTYPES
from trt_perception.model.tensors import TensorSpec

__all__ = ['PREPROCESSING', 'ModelOverrides', 'Recognised', 'RunOnce', 'recognise']

#: Runs a model on its inputs, by name, and returns the shapes of its outputs, in their order.
RunOnce = Callable[[Mapping[str, npt.NDArray[Any]]], Sequence[tuple[int, ...]]]

_RGB_255: Final = {'color_order': 'rgb', 'scale': 1 / 255}
_IMAGENET: Final = {
    **_RGB_255,
    'mean': (0.485, 0.456, 0.406),
    'std': (0.229, 0.224, 0.225),
}
_ULTRALYTICS: Final = {**_RGB_255, 'resize': 'letterbox'}
# Trained on pictures that PIL made smaller; Ultralytics' are made so by OpenCV.
_STRETCH: Final = {'resize': 'stretch', 'antialias': True}
# The corner that is left is padded after the normalisation, with 0: the mean of ImageNet's means.
_DETR: Final = {
    **_IMAGENET,
    'resize': 'letterbox_top_left',
    'pad_value': 116,
    'antialias': True,
}
_YOLOX: Final = {'resize': 'letterbox_top_left', 'color_order': 'bgr', 'scale': 1.0}
#: What the models are trained with whose outputs look so, by name of DECODERS. A name that is not
#: here belongs to no one training: then the preprocessing must be said.
PREPROCESSING: Final[Mapping[str, Mapping[str, Any]]] = {
    'dense': _ULTRALYTICS,
    'dense_objectness_transposed': _ULTRALYTICS,
    'yolox': _YOLOX,
    'yolox_raw': _YOLOX,
    'rtdetr_ultralytics': {**_RGB_255, 'resize': 'stretch'},
    'rtdetr_end_to_end': {**_RGB_255, 'resize': 'stretch'},
    'rtdetr': {**_RGB_255, **_STRETCH},
    'labels_boxes_scores': {**_RGB_255, **_STRETCH},
    # Resized as numbers, by training and prediction alike, without antialiasing.
    'rfdetr': {**_IMAGENET, 'resize': 'stretch'},
    'detr': _DETR,
    'detr_sigmoid': _DETR,
    # Both normalise, and resize again, inside.
    'torchvision': {**_RGB_255, 'resize': 'letterbox_top_left', 'pad_value': 116},
    'tensorflow': {'resize': 'stretch', 'color_order': 'rgb', 'scale': 1.0},
}


@dataclass(frozen=True)
class ModelOverrides:
    """What the user said; it wins over everything that a model shows.

    Attributes:
        preprocessing: fields of Preprocessing.
        decoder: a name of DECODERS, or empty.
        class_names: in the network's order, or empty.
        written: makes of a parameter's name, without ``model.``, what the user writes, for
            messages.
    """

    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    decoder: str = ''
    class_names: tuple[str, ...] = ()
    written: Callable[[str], str] = 'model.{}'.format


@dataclass(frozen=True)
class Recognised:
    """How to feed a model and how to read it.

    Attributes:
        decoder: family and constants.
        preprocessing: how pixels become the input.
        class_names: in the network's order.
        evidence: one sentence for each finding: what was seen -> what was chosen.
    """

    decoder: DecoderSpec
    preprocessing: Preprocessing
    class_names: tuple[str, ...]
    evidence: tuple[str, ...]


def recognise(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    metadata: Mapping[str, str],
    config: Mapping[str, Any] | None,
    *,
    given: ModelOverrides | None = None,
    run: RunOnce | None = None,
) -> Recognised:
    """Tell how to feed and read a model, or which parameters would.

    Args:
        name: the model's file name, for messages.
        inputs: as the runtime reports them, -1 for an open dimension.
        outputs: likewise.
        metadata: the ONNX file's own, or what stands in front of an engine's plan.
        config: a config.json beside the model, None where there is none.
        given: what the user said.
        run: runs the model; asked for the shapes that the file leaves open.

    Raises:
        MissingModelInfoError: something remains unknown that parameters could say.
        EngineError: the model is no detector of boxes, or no parameter would make it readable, or
            it does not run.
    """
    given = given or ModelOverrides()
    facts = facts_of(name, metadata, config)
    evidence = list(facts.evidence)
    image, beside = split_inputs(name, inputs)
    if given.class_names:
        class_names = given.class_names
        evidence.append(f'{given.written("class_names")} -> {len(class_names)} classes')
    else:
        class_names = facts.class_names
    size = given.preprocessing.get('input_size') or image_size(image) or facts.input_size
    names = [given.decoder]
    others: list[str] = []
    if given.decoder:
        evidence.append(f'{given.written("decoder")} -> {given.decoder}')
    else:
        if run is not None and size is not None and _leaves_open(outputs):
            outputs = _run_once(run, closed_image(image, size), beside, size, outputs)
        sized = has_size_input(beside)
        found, others = _fitting(
            name, size, tuple(outputs), class_names, facts, sized, given.written
        )
        if facts.exporter in ('ultralytics', 'yolov5') and not given.class_names:
            others = []  # names within the file itself are the model's own
        names = [candidate.decoder for candidate in found]
        evidence += [candidate.sentence for candidate in found] if len(found) == 1 else []
    chosen = names[0] if len(names) == 1 else ''
    trained = PREPROCESSING.get(chosen, {})
    if not trained and facts.exporter in ('ultralytics', 'yolov5'):
        trained = _ULTRALYTICS
    values: dict[str, Any] = {**trained, **facts.preprocessing}
    if trained and not facts.preprocessing:
        evidence.append(
            f'{chosen or facts.exporter} -> preprocessing that such models are trained with: '
            + ', '.join(f'{key} {value}' for key, value in trained.items())
        )
    values.update(given.preprocessing)
    if size is not None:
        values['input_size'] = size
    unsaid = MissingModelInfo(
        fitting=tuple(names),
        with_other_names=tuple(others),
        class_names=len(class_names),
        missing=tuple(key for key in NEEDED if key not in values),
        trained=tuple(DECODERS) if trained else tuple(PREPROCESSING),
        resampling='' if 'antialias' in given.preprocessing else facts.resampling,
    )
    refuse_missing_info(name, inputs, outputs, evidence, unsaid, given.written)
    if chosen == 'torchvision':
        evidence.append(f'torchvision -> label 0, the background, is called {class_names[0]!r}')
    layout = 'nhwc' if image_shape(image) == 'nhwc' else 'nchw'
    preprocessing = Preprocessing(**values, layout=layout, dtype=image.dtype)
    return Recognised(DECODERS[chosen], preprocessing, class_names, tuple(evidence))


def _leaves_open(outputs: Sequence[TensorSpec]) -> bool:
    return any(not tensor.shape or -1 in tensor.shape for tensor in outputs)


def _run_once(
    run: RunOnce,
    image: TensorSpec,
    beside: Sequence[TensorSpec],
    size: tuple[int, int],
    outputs: Sequence[TensorSpec],
) -> Sequence[TensorSpec]:
    """Return the outputs with the shapes that they have for a black image."""
    if image.dtype not in INPUT_DTYPES:
        return outputs  # refused with better words than the runtime's
    batch = image.shape[0] if len(image.shape) == 4 else 1
    shapes = run(
        {
            image.name: np.zeros(image.shape, image.dtype),
            **constant_inputs(beside, size, batch),
        }
    )
    # No rows at all: their number follows from what is in the image, and stays open.
    return [
        replace(tensor, shape=tuple(side or -1 for side in shape))
        for tensor, shape in zip(outputs, shapes, strict=True)
    ]


def _fitting(
    name: str,
    size: tuple[int, int] | None,
    outputs: tuple[TensorSpec, ...],
    class_names: Sequence[str],
    facts: Facts,
    has_target_size: bool,
    written: Callable[[str], str],
) -> tuple[list[Candidate], list[str]]:
    """Return the decoders that fit; where none does, what would with other class names."""
    count = len(class_names) or None
    found = candidates(name, size, outputs, count, facts, has_target_size, written)
    if found or not class_names:
        return found, []
    others = candidates(name, size, outputs, None, facts, has_target_size, written)
    return [], [candidate.decoder for candidate in others]
