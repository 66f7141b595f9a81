# SPDX-License-Identifier: Apache-2.0
"""Networks of no task, recognised by the names and shapes of their inputs and outputs.

The names are those of Hugging Face transformers and of the networks' own repositories. A name or
shape that a task has too decides nothing: ``possible_networks`` lists what else the model may be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from trt_perception.errors import EngineError
from trt_perception.model.grids import count_anchors_per_cell
from trt_perception.model.tensors import FLOAT_DTYPES, ModelInfo, TensorSpec, tensors_text

_HEAD: Final = 'export the model with a head for a task, such as a classifier'
_OBJECTS: Final = (
    'use a model of a task: segment for a mask of each object, semantic for a class of each pixel'
)
_ONE_IMAGE: Final = 'export the model with one image as its input'
_POSE: Final = (
    'use a model with boxes and keypoints for the task pose, such as pose models of Ultralytics'
)
_DETECTOR: Final = 'export a detector with decoding inside'


class OtherNetwork(NamedTuple):
    """A network that no decoder reads.

    Attributes:
        name: what the network is, for messages.
        fix: what the user can do besides choosing another model; may be empty.
    """

    name: str
    fix: str = ''


#: Networks by names of outputs. A model is the network if it has all names of the set.
_BY_OUTPUT_NAMES: Final = (
    (
        {'class_queries_logits', 'masks_queries_logits'},
        OtherNetwork(
            'a class and a mask for each query, as of Mask2Former, MaskFormer and OneFormer',
            _OBJECTS,
        ),
    ),
    *(
        (names, OtherNetwork('masks for prompts, as of SAM', _OBJECTS))
        for names in ({'iou_scores', 'pred_masks'}, {'iou_predictions', 'masks'})
    ),
    ({'heatmaps'}, OtherNetwork('a heatmap for each keypoint, as of ViTPose', _POSE)),
    (
        {'simcc_x', 'simcc_y'},
        OtherNetwork('the position of each keypoint on two axes, as of RTMPose', _POSE),
    ),
    (
        {'hm', 'wh'},
        OtherNetwork('heatmaps of centres with sizes of boxes, as of CenterNet', _DETECTOR),
    ),
    (
        {'keypoints', 'descriptors'},
        OtherNetwork('points with descriptors for matching, as of SuperPoint'),
    ),
    ({'reconstruction'}, OtherNetwork('an image, as of super resolution')),
)
#: Names of features. A model whose outputs all have such names has no head.
_FEATURES: Final = re.compile(
    r'(encoder_|vision_)?last_hidden_state|pooler_output|(image|text|vision)_(embeds|embeddings)|'
    r'image_positional_embeddings|(encoder_)?hidden_states(\.\d+)?|sentence_embeddings?|'
    r'embeddings?|features?|feature_maps?(\.\d+)?|projected_[a-z_]+|logits_per_(image|text)'
)
_TEXT_INPUTS: Final = {'input_ids', 'attention_mask', 'token_type_ids', 'position_ids'}
_PROMPT_INPUTS: Final = {
    *('input_points', 'input_labels', 'input_boxes', 'input_masks'),
    *('point_coords', 'point_labels', 'mask_input', 'has_mask_input'),
}
#: Networks by names of inputs. A model is the network if it has one of the names.
_BY_INPUT_NAMES: Final = (
    (_PROMPT_INPUTS, OtherNetwork('points or boxes as prompts, as of SAM', _OBJECTS)),
    (
        _TEXT_INPUTS,
        OtherNetwork(
            'a text as input, as of CLIP, SigLIP, OWL-ViT and Grounding DINO',
            'use a model for a fixed set of classes, or export the model with the texts inside, '
            'as Ultralytics does for YOLO-World',
        ),
    ),
    (
        {'image_embeddings', 'image_embeds', 'encoder_hidden_states', 'last_hidden_state'},
        OtherNetwork(
            'features as input, so the file is a part of a model', 'export the whole model'
        ),
    ),
)
#: Names that only transformers give to the boxes of their queries.
_QUERY_BOXES: Final = ('pred_boxes', 'dets')
#: Text recognition reads images with at most this height in pixels.
_LINE_HEIGHT: Final = 64
#: Values of a face of RetinaFace, SCRFD and YuNet: x and y of five landmarks.
_LANDMARKS: Final = 10


def check_inputs_fit_a_task(model_name: str, inputs: Sequence[TensorSpec]) -> None:
    """Refuse inputs that only networks of no task have.

    Raises:
        EngineError: the inputs show the network.
    """
    if network := _network_of_inputs(inputs):
        raise EngineError(
            model_name,
            f'{network.name}: {tensors_text(inputs)}',
            expected='one image as input, as of the models in docs/decoders.md',
            fix=network.fix,
        )


def _network_of_inputs(inputs: Sequence[TensorSpec]) -> OtherNetwork | None:
    """Return the network that has such inputs; None if it is unknown."""
    names = {tensor.name for tensor in inputs}
    for known, network in _BY_INPUT_NAMES:
        if names & known:
            return network
    images = [tensor for tensor in inputs if len(tensor.shape) == 4]
    if len(images) == 2 and all(tensor.shape[1] == 3 for tensor in images):
        return OtherNetwork(
            'two images as input, as of optical flow, stereo and matching', _ONE_IMAGE
        )
    if len(inputs) == 1 and len(images) == 1 and images[0].shape[1] == 6:
        return OtherNetwork('six channels as input, as of two images for optical flow', _ONE_IMAGE)
    if len(images) > 1:
        return OtherNetwork('an image and a state as input, as of networks for video', _ONE_IMAGE)
    return None


def _network_of_names(outputs: Sequence[TensorSpec]) -> OtherNetwork | None:
    """Return the network whose outputs have such names; None if the names show none."""
    names = {tensor.name.removesuffix(':0') for tensor in outputs}
    for known, network in _BY_OUTPUT_NAMES:
        if known <= names:
            return network
    if names and all(map(_FEATURES.fullmatch, names)):
        return OtherNetwork('features, as of DINOv2, CLIP, SigLIP and the encoder of SAM', _HEAD)
    if names == {'logits'} and len(outputs[0].shape) == 3 and outputs[0].dtype in FLOAT_DTYPES:
        return OtherNetwork('scores for a sequence, as of text recognition and masked training')
    if names == {'flow'}:
        return OtherNetwork('a motion for each pixel, as of optical flow')
    return None


def _network_of_shapes(outputs: Sequence[TensorSpec], image: TensorSpec) -> OtherNetwork | None:
    """Return the network whose outputs have shapes that no task has; None if there is none.

    Args:
        image: the image input, (B, 3, rows, columns) or (B, rows, columns, 3).
    """
    for check in _SHAPE_CHECKS:
        if outputs and (network := check(outputs, _rows_columns(image))):
            return network
    return None


def check_outputs_fit_a_task(
    model: ModelInfo, image: TensorSpec, decoder_parameter: str, *, by_shape: bool
) -> None:
    """Refuse outputs that only networks of no task have.

    Args:
        image: the image input, (B, 3, rows, columns) or (B, rows, columns, 3).
        decoder_parameter: how the user sets the decoder, which ends this check.
        by_shape: whether shapes decide too. Otherwise only names decide.

    Raises:
        EngineError: the outputs show the network.
    """
    network = _network_of_names(model.outputs)
    if network is None and by_shape:
        network = _network_of_shapes(model.outputs, image)
    if network is not None:
        raise EngineError(
            model.name,
            f'{network.name}: {tensors_text(model.outputs)}',
            expected='a model of a task in docs/decoders.md',
            fix='; '.join(
                filter(None, (network.fix, f'if it is another model, set {decoder_parameter}'))
            ),
        )


def possible_networks(outputs: Sequence[TensorSpec], image: TensorSpec) -> tuple[str, ...]:
    """Return the networks of no task whose outputs have shapes that a task has too.

    Maps of one channel are left out: the tasks' own refusal names what they may be.

    Args:
        image: the image input, (B, 3, rows, columns) or (B, rows, columns, 3).
    """
    shapes = [tensor.shape for tensor in outputs]
    if not shapes or any(tensor.dtype not in FLOAT_DTYPES for tensor in outputs):
        return ()
    axes = [len(shape) for shape in shapes]
    rows, columns = _rows_columns(image)
    if axes == [2]:
        return ('an embedding of a face, a person or an image',)
    if axes == [4] and shapes[0][1] != 1:
        is_image = shapes[0][1] == 3 and shapes[0][2:] in ((rows, columns), (-1, -1))
        is_flow = shapes[0][1] == 2
        return (
            *(('an image, as of style transfer',) if is_image else ()),
            *(('a motion for each pixel, as of optical flow',) if is_flow else ()),
            'heatmaps of keypoints',
            'features of a backbone',
        )
    if set(axes) == {4} and len(axes) > 1:
        return ('heatmaps of keypoints and centres', 'features of a backbone')
    if axes == [3]:
        has_anchors = any(count_anchors_per_cell(side, (columns, rows)) for side in shapes[0][1:])
        is_row_of_boxes = shapes[0][2] in range(1, 8)
        return () if has_anchors or is_row_of_boxes else ('features or scores for a sequence',)
    is_named = any(tensor.name in _QUERY_BOXES for tensor in outputs)
    if axes == [3, 3] and 4 in (shapes[0][2], shapes[1][2]) and not is_named:
        return ('boxes of anchors that are not decoded, as of SSD',)
    return ()


def _rows_columns(image: TensorSpec) -> tuple[int, int]:
    first = 1 if image.shape[-1] == 3 else len(image.shape) - 2
    rows, columns = image.shape[first : first + 2]
    return rows, columns


def _one_person(outputs: Sequence[TensorSpec], _: tuple[int, int]) -> OtherNetwork | None:
    """Recognise MoveNet: (B, 1, 17, 3), or (B, 6, 17 * 3 + 5) for several persons."""
    if len(outputs) == 1 and outputs[0].shape[1:] in ((1, 17, 3), (6, 56)):
        return OtherNetwork('keypoints of one person or of six persons, as of MoveNet', _POSE)
    return None


def _super_resolution(
    outputs: Sequence[TensorSpec], sides: tuple[int, int]
) -> OtherNetwork | None:
    """Recognise images that are 2, 3 or 4 … times as large as the input."""
    shape = outputs[0].shape
    if len(outputs) != 1 or len(shape) != 4 or min(*sides, *shape[2:]) < 1:
        return None
    factor = shape[2] // sides[0]
    is_larger = factor > 1 and shape[2:] == (factor * sides[0], factor * sides[1])
    if shape[1] == 3 and is_larger:
        return OtherNetwork('an image, as of super resolution')
    return None


def _line_of_text(outputs: Sequence[TensorSpec], sides: tuple[int, int]) -> OtherNetwork | None:
    """Recognise scores (B, T, C) or (T, B, C) of the characters in an image of one line."""
    rows, columns = sides
    is_line = 0 < rows <= _LINE_HEIGHT and (columns < 0 or columns >= 2 * rows)
    shape = outputs[0].shape
    if len(outputs) != 1 or len(shape) != 3 or not is_line or shape[2] < _LANDMARKS:
        return None
    if columns > 0:
        has_anchors = any(count_anchors_per_cell(side, (columns, rows)) for side in shape)
        # One step of the sequence is at least two pixels wide.
        if has_anchors or max(shape[:2]) > columns // 2:
            return None
    return OtherNetwork('scores of the characters of a line of text')


def _faces(outputs: Sequence[TensorSpec], _: tuple[int, int]) -> OtherNetwork | None:
    """Recognise boxes and landmarks of anchors: RetinaFace, SCRFD, YuNet."""
    last = {tensor.shape[-1] for tensor in outputs if len(tensor.shape) in (2, 3)}
    if len(outputs) >= 3 and {4, _LANDMARKS} <= last:
        return OtherNetwork(
            'undecoded boxes and landmarks of faces, as of RetinaFace, SCRFD and YuNet', _DETECTOR
        )
    return None


_SHAPE_CHECKS: Final[
    tuple[Callable[[Sequence[TensorSpec], tuple[int, int]], OtherNetwork | None], ...]
] = (_one_person, _super_resolution, _line_of_text, _faces)
