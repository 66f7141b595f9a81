"""Models of no supported task are refused once, and the advice of a refusal works."""

import itertools

import pytest

from support.oracles.recognition_support import recognised
from trt_perception.errors import EngineError, MissingModelInfoError
from trt_perception.files.checked_files import ONNX_MAX_BYTES
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.decoders.whole_image import ClassLogitsDecoder
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.tensors import TensorSpec

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
