# SPDX-License-Identifier: Apache-2.0
"""Models of no supported task are refused once, and the advice of a refusal works."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import trt_perception as tp
from support.models.zero_model import write_zero_model
from support.oracles import family_outputs
from support.oracles.recognition_support import recognised
from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.files.checked_files import ONNX_MAX_BYTES
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.decoders.whole_image import ClassLogitsDecoder
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.other_networks import check_outputs_fit_a_task
from trt_perception.model.tensors import ModelInfo, TensorSpec

#: Input sides, and outputs (B, 1, rows, columns) of exports: DBNet, MODNet, RMBG, U-2-Net.
ONE_CHANNEL = [
    ((736, 736), [('sigmoid_0.tmp_0', 736, 736)]),
    ((736, 1280), [('maps', 184, 320)]),
    ((512, 512), [('output', 512, 512)]),
    ((1024, 1024), [('alphas', 1024, 1024)]),
    ((320, 320), [(f'{1959 + number}', 320, 320) for number in range(7)]),
    ((-1, -1), [('output', -1, -1)]),
]
#: Input shapes and outputs of MoveNet, CRAFT and super resolution.
OF_NO_TASK = [
    ((1, 192, 192, 3), [(1, 1, 17, 3)]),
    ((1, 3, 320, 320), [(1, 160, 160, 2), (1, 32, 160, 160)]),
    ((1, 3, 224, 224), [(1, 3, 896, 896)]),
    ((1, 3, 224, 224), [(1, 3, 448, 448)]),
]
# Class names of transformers 5.24 and the outputs of their ONNX exports.
QUERIES = [('class_queries_logits', (1, 100, 134)), ('masks_queries_logits', (1, 100, 96, 96))]
OTHER_ARCHITECTURES = [
    ('mask2former', 'Mask2FormerForUniversalSegmentation', QUERIES),
    ('oneformer', 'OneFormerForUniversalSegmentation', QUERIES),
    ('dinov2', 'Dinov2Model', [('last_hidden_state', (1, 257, 384)), ('pooler_output', (1, 384))]),
    ('swin2sr', 'Swin2SRForImageSuperResolution', [('reconstruction', (1, 3, 768, 768))]),
    ('superpoint', 'SuperPointForKeypointDetection', [('keypoints', (1, -1, 2))]),
    ('trocr', 'TrOCRForCausalLM', [('logits', (1, 40, 50265))]),
    ('vit_mae', 'ViTMAEForPreTraining', [('logits', (1, 196, 768))]),
]


#: The decoders of a map of one channel, and whether its values are metres.
DEPTH_DECODERS = {'depth_ultralytics': True, 'relative_depth': False, 'metric_depth': True}


#: Names and shapes of the inputs and outputs of exports.
QUERY_OUTPUTS = {'class_queries_logits': (1, 9, 5), 'masks_queries_logits': (1, 9, 16, 16)}
OTHER_INPUTS = {
    'CLIP': (
        {'input_ids': (1, 8), 'pixel_values': (1, 3, 32, 32), 'attention_mask': (1, 8)},
        {'logits_per_image': (1, 1), 'text_embeds': (1, 16), 'image_embeds': (1, 16)},
    ),
    'SigLIP': (
        {'input_ids': (1, 8), 'pixel_values': (1, 3, 32, 32)},
        {'logits_per_image': (1, 1), 'text_embeds': (1, 16), 'image_embeds': (1, 16)},
    ),
    'OWL-ViT': (
        {'input_ids': (1, 8), 'pixel_values': (1, 3, 32, 32), 'attention_mask': (1, 8)},
        {'logits': (1, 9, 2), 'pred_boxes': (1, 9, 4)},
    ),
    'decoder of SAM, transformers': (
        {
            'input_points': (1, 1, 2, 2),
            'input_labels': (1, 1, 2),
            'image_embeddings': (1, 16, 8, 8),
            'image_positional_embeddings': (1, 16, 8, 8),
        },
        {'iou_scores': (1, 1, 3), 'pred_masks': (1, 1, 3, 32, 32)},
    ),
    'decoder of SAM, Meta': (
        {
            'image_embeddings': (1, 16, 8, 8),
            'point_coords': (1, 2, 2),
            'point_labels': (1, 2),
            'mask_input': (1, 1, 32, 32),
            'has_mask_input': (1,),
        },
        {'masks': (1, 4, 32, 32), 'iou_predictions': (1, 4), 'low_res_masks': (1, 4, 8, 8)},
    ),
    'part of a model': ({'image_embeds': (1, 16, 8, 8)}, {'logits': (1, 9)}),
    'optical flow of two images': (
        {'image1': (1, 3, 32, 32), 'image2': (1, 3, 32, 32)},
        {'flow': (1, 2, 32, 32)},
    ),
    'optical flow of six channels': ({'images': (1, 6, 32, 32)}, {'flow': (1, 2, 32, 32)}),
    'Robust Video Matting': (
        {'src': (1, 3, 32, 32), 'r1i': (1, 1, 1, 1), 'r2i': (1, 1, 1, 1)},
        {'fgr': (1, 3, 32, 32), 'pha': (1, 1, 32, 32)},
    ),
}
OTHER_OUTPUTS = {
    'Mask2Former': ({'input': (1, 3, 64, 64)}, QUERY_OUTPUTS),
    'MaskFormer of any size': ({'input': (1, 3, -1, -1)}, QUERY_OUTPUTS),
    'OneFormer': (
        {'input': (1, 3, 64, 64)},
        {**QUERY_OUTPUTS, 'transformer_decoder_object_queries': (1, 9, 16)},
    ),
    'MoveNet': ({'input': (1, 192, 192, 3)}, {'output_0': (1, 1, 17, 3)}),
    'MoveNet of six persons': ({'input': (1, 256, 256, 3)}, {'output_0': (1, 6, 56)}),
    'DINOv2': (
        {'input': (1, 3, 56, 56)},
        {'last_hidden_state': (1, 17, 16), 'pooler_output': (1, 16)},
    ),
    'vision encoder of CLIP': (
        {'input': (1, 3, 64, 64)},
        {'pooler_output': (1, 16), **{f'hidden_states.{n}': (1, 5, 16) for n in range(3)}},
    ),
    'vision encoder with projection': ({'input': (1, 3, 64, 64)}, {'image_embeds': (1, 16)}),
    'encoder of SAM': (
        {'input': (1, 3, 64, 64)},
        {'image_embeddings': (1, 16, 4, 4), 'image_positional_embeddings': (1, 16, 4, 4)},
    ),
    'SAM with prompts inside': (
        {'input': (1, 3, 64, 64)},
        {'iou_scores': (1, 1, 3), 'pred_masks': (1, 1, 3, 16, 16)},
    ),
    'ViTPose': ({'input': (1, 3, 256, 192)}, {'heatmaps': (1, 17, 64, 48)}),
    'RTMPose': ({'input': (1, 3, 256, 192)}, {'simcc_x': (1, 17, 384), 'simcc_y': (1, 17, 512)}),
    'CenterNet': (
        {'input': (1, 3, 64, 64)},
        {'hm': (1, 80, 16, 16), 'wh': (1, 2, 16, 16), 'reg': (1, 2, 16, 16)},
    ),
    'RetinaFace': (
        {'input': (1, 3, 320, 320)},
        {'loc': (1, 4200, 4), 'conf': (1, 4200, 2), 'landms': (1, 4200, 10)},
    ),
    'YuNet': (
        {'input': (1, 3, 160, 160)},
        {
            f'{name}_{stride}': (1, (160 // stride) ** 2, channels)
            for name, channels in (('cls', 1), ('obj', 1), ('bbox', 4), ('kps', 10))
            for stride in (8, 16, 32)
        },
    ),
    'Swin2SR': ({'input': (1, 3, 32, 32)}, {'reconstruction': (1, 3, 64, 64)}),
    'ESRGAN': ({'input': (1, 3, 32, 32)}, {'output': (1, 3, 128, 128)}),
    'optical flow with one image': ({'input': (1, 3, 32, 32)}, {'flow': (1, 2, 32, 32)}),
    'PaddleOCR': ({'input': (1, 3, 48, 320)}, {'softmax_11.tmp_0': (1, 40, 97)}),
    'CRNN': ({'input': (1, 3, 32, 100)}, {'output': (26, 1, 37)}),
    'PARSeq': ({'input': (1, 3, 32, 128)}, {'logits': (1, 26, 95)}),
    'ViTMAE': ({'input': (1, 3, 64, 64)}, {'logits': (1, 16, 768)}),
    'SuperPoint': (
        {'input': (1, 3, 64, 64)},
        {'keypoints': (1, 9, 2), 'scores': (1, 9), 'descriptors': (1, 9, 256)},
    ),
}
#: Shapes of tasks that other networks have too, and a decoder that a user may set.
SAME_SHAPES = {
    'face recognition': ({'input': (1, 3, 112, 112)}, {'fc1': (1, 512)}, 'class_logits'),
    'SSD': (
        {'input': (1, 3, 300, 300)},
        {'scores': (1, 900, 21), 'boxes': (1, 900, 4)},
        'detr',
    ),
    'features': ({'input': (1, 3, 224, 224)}, {'output': (1, 257, 384)}, 'dense'),
}
#: As many names as DINOv2's hidden state would need with the decoder dense.
NAMES = [f'class {number}' for number in range(13)]


def tensors(*shapes, name='output'):
    return tuple(
        TensorSpec(f'{name}{number}', shape, 'float32') for number, shape in enumerate(shapes)
    )


def one_channel(sides_hw, outputs):
    image = TensorSpec('input', (1, 3, *sides_hw), 'float32')
    maps = tuple(TensorSpec(name, (1, 1, *sides), 'float32') for name, *sides in outputs)
    return maps, (image,)


@pytest.mark.parametrize('has_channel_axis', [True, False])
@pytest.mark.parametrize('given', [{}, {'task': 'depth'}, {'class_names': ['text']}], ids=str)
@pytest.mark.parametrize(('sides_hw', 'outputs'), ONE_CHANNEL)
def test_unit_of_a_map_of_one_channel_is_asked_for_once(
    sides_hw, outputs, given, has_channel_axis
):
    maps, inputs = one_channel(sides_hw, outputs[:1])
    if not has_channel_axis:
        name = 'predicted_depth' if -1 in sides_hw else maps[0].name
        maps = (TensorSpec(name, (1, *sides_hw), 'float32'),)
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(maps, inputs=inputs, **given)
    size = {'input_size': [640, 480]} if -1 in sides_hw else {}
    assert set(caught.value.missing) == {'decoder', *size}
    possible = dict(DEPTH_DECODERS)
    if not has_channel_axis:
        del possible['depth_ultralytics']
    for decoder, is_metric in possible.items():
        assert decoder in caught.value.missing['decoder']
        found = recognised(maps, inputs=inputs, decoder=decoder, **given, **size)
        assert found.task.name == 'depth'
        assert found.decoder.is_metric == is_metric
        assert found.decoder.has_channel_axis == has_channel_axis
        assert found.assumption  # the preprocessing


@pytest.mark.parametrize('task', ['', 'depth', 'detect'])
def test_one_of_several_maps_may_be_a_depth(task):
    maps, inputs = one_channel((320, 320), [(f'{1959 + number}', 320, 320) for number in range(7)])
    with pytest.raises(EngineError) as caught:
        recognised(maps, inputs=inputs, **({'task': task} if task else {}))
    assert not isinstance(caught.value, MissingModelInfoError)
    for output in maps:
        assert output.name in caught.value.found


def test_wrong_task_of_a_depth_model_with_several_outputs_is_refused():
    outputs = [TensorSpec(name, (1, 1, 640, 640), 'float32') for name in ('depth', 'sky')]
    with pytest.raises(EngineError) as caught:
        recognised(tuple(outputs), task='classify')
    assert 'task' in caught.value.fix
    assert recognised(tuple(outputs)).decoder == PRESETS['depth_anything_3'].decoder


@pytest.mark.parametrize(
    'more', [[], [('hidden', (1, 1025, 384))]], ids=['alone', 'hidden states']
)
@pytest.mark.parametrize('shape', [(1, 640, 640), (1, 1, 640, 640)])
@pytest.mark.parametrize('model_type', ['depth_anything', 'dpt'])
def test_depth_with_and_without_a_channel_axis_is_read_by_its_config(model_type, shape, more):
    outputs = [*more, ('predicted_depth', shape)]
    found = recognised(
        tuple(TensorSpec(name, sides, 'float32') for name, sides in outputs),
        (),
        {'model_type': model_type},
    )
    assert found.decoder.has_channel_axis == (len(shape) == 4)
    assert not found.decoder.is_metric


@pytest.mark.parametrize(('sides_hw', 'outputs'), ONE_CHANNEL)
def test_one_channel_is_no_semantic_map(sides_hw, outputs):
    """The largest of one logit is always the first, so each pixel would have class 0."""
    maps, inputs = one_channel(sides_hw, outputs[:1])
    for class_names in ([], ['text']):
        given = {'class_names': class_names} if class_names else {}
        with pytest.raises(EngineError) as caught:
            recognised(maps, inputs=inputs, task='semantic', input_size=[640, 480], **given)
        assert not isinstance(caught.value, MissingModelInfoError)
    assert ClassLogitsDecoder().has_constant_scores(1)
    assert not ClassLogitsDecoder().has_constant_scores(2)


@pytest.mark.parametrize(('image', 'shapes'), OF_NO_TASK)
def test_outputs_of_no_task_are_refused_with_and_without_a_task(image, shapes):
    inputs = (TensorSpec('input', image, 'float32'),)
    # Not semantic: a user who says that three channels are three classes is believed.
    for task in ('', 'detect', 'segment', 'pose', 'obb', 'classify'):
        given = {'task': task} if task else {}
        with pytest.raises(EngineError) as caught:
            recognised(tensors(*shapes), inputs=inputs, **given)
        assert not isinstance(caught.value, MissingModelInfoError)
        assert 'grid' not in caught.value.found


@pytest.mark.parametrize(
    ('side', 'strides', 'channels'),
    [(640, (8, 16, 32), 255), (416, (16, 32), 75), (1280, (8, 16, 32, 64), 255), (608, (4,), 81)],
)
def test_undecoded_grids_are_still_named(side, strides, channels):
    inputs = (TensorSpec('images', (1, 3, side, side), 'float32'),)
    first = [(1, channels, side // stride, side // stride) for stride in strides]
    last = [(1, side // stride, side // stride, channels) for stride in strides]
    for shapes in (first, last):
        with pytest.raises(EngineError) as caught:
            recognised(tensors(*shapes), inputs=inputs)
        assert 'grid' in caught.value.found


@pytest.mark.parametrize('network', OTHER_INPUTS)
def test_inputs_of_other_networks_are_refused(network, tmp_path):
    inputs, outputs = OTHER_INPUTS[network]
    path = write_zero_model(tmp_path / 'model.onnx', inputs, outputs)
    for values in ({}, {'model_task': 'detect'}):
        with pytest.raises(EngineError) as caught:
            tp.load(path, **values)
        assert not isinstance(caught.value, MissingModelInfoError)
        for name in inputs:
            assert name in caught.value.found
        # Another size or another number of channels would not help.
        assert 'channels' not in caught.value.expected


@pytest.mark.parametrize('network', OTHER_OUTPUTS)
def test_outputs_of_other_networks_are_refused(network, tmp_path):
    inputs, outputs = OTHER_OUTPUTS[network]
    path = write_zero_model(tmp_path / 'model.onnx', inputs, outputs)
    size = {'model_input_size': [640, 480]} if -1 in inputs['input'] else {}
    refusals = set()
    for names in ([], ['text'], NAMES):
        with pytest.raises(EngineError) as caught:
            tp.load(path, model_class_names=names, **size)
        assert not isinstance(caught.value, MissingModelInfoError)
        for name in outputs:
            assert name in caught.value.found
        assert 'model_decoder' in caught.value.fix  # the way out for another model
        refusals.add(caught.value.found)
    assert len(refusals) == 1
    # A decoder of the user ends the check, so another error says what is wrong with it.
    with pytest.raises(EngineError) as caught:
        tp.load(path, model_decoder='end_to_end', **size)
    assert caught.value.found not in refusals


@pytest.mark.parametrize('network', SAME_SHAPES)
def test_shape_that_a_task_has_too_names_the_other_networks(network):
    inputs, outputs, given = SAME_SHAPES[network]
    images = tuple(TensorSpec(name, shape, 'float32') for name, shape in inputs.items())
    found = tuple(TensorSpec(name, shape, 'float32') for name, shape in outputs.items())
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(found, inputs=images)
    assert caught.value.other_networks
    # What the user has set is believed.
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(found, inputs=images, decoder=given)
    assert not caught.value.other_networks


@pytest.mark.parametrize('count', [2, 3, 17])
def test_task_of_a_map_with_a_channel_for_each_name_is_assumed(count):
    outputs = (TensorSpec('output', (1, count, 64, 48), 'float32'),)
    inputs = (TensorSpec('input', (1, 3, 256, 192), 'float32'),)
    names = [f'class {number}' for number in range(count)]
    found = recognised(outputs, inputs=inputs, class_names=names)
    given = recognised(outputs, inputs=inputs, class_names=names, task='semantic')
    assert (found.task.name, found.decoder) == ('semantic', given.decoder)
    assert 'task' in found.assumption
    assert 'task' not in given.assumption
    aux = (TensorSpec('aux', (1, count, 64, 48), 'float32'), replace(outputs[0], name='out'))
    of_torchvision = recognised(aux, inputs=inputs, class_names=names)
    assert of_torchvision.decoder == given.decoder
    assert 'task' not in of_torchvision.assumption


@pytest.mark.parametrize('sides', [(-1, -1), (64, 64)])
def test_advice_for_logits_has_the_size_of_an_open_input(sides):
    outputs = (TensorSpec('output', (1, 3, *sides), 'float32'),)
    inputs = (TensorSpec('input', (1, 3, *sides), 'float32'),)
    with pytest.raises(EngineError) as caught:
        recognised(outputs, inputs=inputs)
    assert ('input_size' in caught.value.fix) == (-1 in sides)
    size = {'input_size': [64, 64]} if -1 in sides else {}
    names = ['sky', 'road', 'car']
    found = recognised(outputs, inputs=inputs, task='semantic', class_names=names, **size)
    assert found.task.name == 'semantic'


@pytest.mark.parametrize('preset', family_outputs.OUTPUTS)
def test_outputs_of_a_decoder_are_no_other_network(preset):
    rng = np.random.default_rng(7)
    objects = family_outputs.random_objects(rng)
    arrays = family_outputs.batched(preset, [family_outputs.OUTPUTS[preset](rng, *objects)])
    width, height = family_outputs.NETWORK
    image = TensorSpec('images', (1, 3, height, width), 'float32')
    outputs = tuple(
        TensorSpec(name, array.shape, str(array.dtype)) for name, array in arrays.items()
    )
    model = ModelInfo('x.onnx', (image,), outputs)
    check_outputs_fit_a_task(model, image, 'model.decoder', by_shape=True)


@pytest.mark.parametrize('classes', [1, 3, 20])
@pytest.mark.parametrize('sides', [(32, 128), (64, 128), (64, 320)])
def test_detector_of_small_images_is_no_text_recognition(sides, classes):
    cells = sum(sides[0] // stride * (sides[1] // stride) for stride in (8, 16, 32))
    image = TensorSpec('images', (1, 3, *sides), 'float32')
    names = [f'class {number}' for number in range(classes)]
    outputs = (TensorSpec('output0', (1, 4 + classes, cells), 'float32'),)
    assert recognised(outputs, inputs=(image,), class_names=names).task.name == 'detect'


@pytest.mark.parametrize(('model_type', 'architecture', 'outputs'), OTHER_ARCHITECTURES)
def test_model_without_a_decoder_is_refused_by_its_name(model_type, architecture, outputs):
    inputs = (TensorSpec('pixel_values', (1, 3, 384, 384), 'float32'),)
    found = tuple(TensorSpec(name, shape, 'float32') for name, shape in outputs)
    config = {
        'model_type': model_type,
        'architectures': [architecture],
        'id2label': {str(number): f'class {number}' for number in range(133)},
        'preprocessor_config': {},
    }
    with pytest.raises(EngineError) as caught:
        recognised(found, (), config, inputs)
    assert architecture in caught.value.found
    assert not isinstance(caught.value, MissingModelInfoError)


def test_file_of_another_model_stops_no_model_that_the_outputs_describe():
    """A folder may have the config.json of a backbone or of a language model."""
    config = {'model_type': 'dinov2', 'architectures': ['Dinov2Model']}
    outputs = (TensorSpec('output0', (1, 84, 8400), 'float32'),)
    inputs = (TensorSpec('images', (1, 3, 640, 640), 'float32'),)
    names = [f'class {number}' for number in range(80)]
    found = recognised(outputs, (), config, inputs, class_names=names)
    assert found.decoder == recognised(outputs, (), None, inputs, class_names=names).decoder
    # As the refusal advises: a decoder, and then the values that it needs.
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(outputs, (), config, inputs, decoder='dense')
    assert set(caught.value.missing) == {'class_names'}


@pytest.mark.parametrize('sides', [(-1, -1), (480, 640)])
def test_depth_model_of_another_type_asks_once_for_what_is_unknown(sides):
    config = {
        'model_type': 'glpn',
        'architectures': ['GLPNForDepthEstimation'],
        'preprocessor_config': {
            'do_resize': True,
            'size_divisor': 32,
            'do_rescale': True,
            'image_processor_type': 'GLPNImageProcessor',
        },
    }
    inputs = (TensorSpec('pixel_values', (-1, 3, *sides), 'float32'),)
    outputs = (TensorSpec('predicted_depth', (-1, *sides), 'float32'),)
    with pytest.raises(MissingModelInfoError) as caught:
        recognised(outputs, (), config, inputs)
    possible = {
        'decoder': ['relative_depth', 'metric_depth'],
        'resize': ['stretch'],
        'antialias': [True, False],
        'input_size': [[640, 480]],
    }
    wanted = [possible[key] for key in caught.value.missing]
    for values in itertools.product(*wanted):
        found = recognised(
            outputs, (), config, inputs, **dict(zip(caught.value.missing, values, strict=True))
        )
        assert found.decoder in [PRESETS[name].decoder for name in possible['decoder']]
        assert found.preprocessing.scale == pytest.approx(1 / 255)


@pytest.mark.parametrize('suffix', ['.onnx', '.engine'])
def test_onnx_file_beyond_the_limit_of_protobuf_is_not_read(tmp_path, suffix, monkeypatch):
    path = tmp_path / f'model{suffix}'
    with path.open('wb') as file:
        file.truncate(ONNX_MAX_BYTES + 1)  # a file with a hole, which takes no space

    class ReadError(Exception):
        pass

    def read(*_):
        raise ReadError

    monkeypatch.setattr('trt_perception.model.files.model_file.read_exactly', read)
    with pytest.raises(EngineError if suffix == '.onnx' else ReadError):
        read_model_file(path)
