"""TensorRT's own calibrators and ModelOpt: exercised with stand-ins, as neither is installed."""

import sys
import types
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_detectors
from tensorrt_standin import StandIn

from trt_perception.building import quantise_modelopt
from trt_perception.building.calibration_tensorrt import tensorrt_calibrator
from trt_perception.building.images import read_image
from trt_perception.building.images import select_images
from trt_perception.building.quantise import quantise
from trt_perception.building.quantise_modelopt import quantise_with_modelopt
from trt_perception.errors import ConfigError
from trt_perception.errors import EngineError
from trt_perception.manifest import Preprocessing
from trt_perception.picture_files import frame_of
from trt_perception.stages.host_preprocess import HostPreprocessor

SCENES = Path(__file__).resolve().parent / 'data/calibration'
SMALL = Preprocessing(input_size=(64, 64))


class Memory:
    """GPU memory that is none: a copy lands in an array."""

    def __init__(self):
        self.open = 0
        self.device = {}

    def Stream(self):  # noqa: N802
        return self._thing(synchronize=lambda: None)

    def PinnedBuffer(self, size):  # noqa: N802
        self.host = np.zeros(size, np.uint8)
        return self._thing(array=self.host, pointer=1, size=size)

    def DeviceBuffer(self, size):  # noqa: N802
        return self._thing(pointer=77, size=size)

    def copy_async(self, destination, source, size, stream):
        assert (source, size) == (1, self.host.size)
        self.device[destination] = self.host.copy()

    def _thing(self, **values):
        self.open += 1

        def close():
            self.open -= 1

        return types.SimpleNamespace(close=close, **values)


def calibrator(memory, folder=None, version='10.3', batch=1, **changes):
    model, *_ = small_detectors.raw_maps()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    settings = {
        'method': 'entropy',
        'cache_dir': folder,
        'progress': lambda *_: None,
        'cancelled': lambda: False,
        'device': memory,
        **changes,
    }
    images = settings.pop('images', None) or select_images(SCENES, 8)
    trt = StandIn(version, version + '.0')
    return tensorrt_calibrator(trt, model, SMALL, images, **settings), trt


@pytest.mark.parametrize('batch', [1, 3])
def test_each_image_comes_once_as_at_run_time(batch):
    memory = Memory()
    made, _ = calibrator(memory, batch=batch)
    assert made.get_batch_size() == batch
    preprocess = HostPreprocessor(SMALL)
    for path in select_images(SCENES, 8).paths:
        assert made.get_batch(['images']) == [77]
        expected = preprocess(frame_of(read_image(path)))[0]
        found = memory.device[77].view(np.float32).reshape(batch, 3, 64, 64)
        assert all(np.array_equal(one, expected[0]) for one in found)
    assert made.get_batch(['images']) is None
    assert made.failure is None
    made.close()
    assert memory.open == 0


@pytest.mark.parametrize(
    ('method', 'base'),
    [('entropy', 'IInt8EntropyCalibrator2'), ('minmax', 'IInt8MinMaxCalibrator')],
)
def test_the_class_is_made_from_the_modules_own(method, base):
    made, _ = calibrator(Memory(), method=method)
    assert base in [kind.__name__ for kind in type(made).__mro__]


def test_releases_without_calibrators_and_other_methods_are_refused():
    with pytest.raises(EngineError, match=r'11.4.0 has no calibrators'):
        calibrator(Memory(), version='11.4')
    with pytest.raises(ConfigError, match='entropy or minmax'):
        calibrator(Memory(), method='percentile')


def test_what_goes_wrong_in_a_callback_is_kept(tmp_path):
    for index, path in enumerate(select_images(SCENES, 8).paths):
        (tmp_path / f'{index}.jpg').write_bytes(path.read_bytes() if index != 1 else b'')
    made, _ = calibrator(Memory(), tmp_path / 'cache', images=select_images(tmp_path))
    assert made.get_batch(['images']) == [77]
    assert made.get_batch(['images']) is None
    assert isinstance(made.failure, ConfigError)
    made.write_calibration_cache(b'of one image')
    assert not (tmp_path / 'cache').exists()
    made, _ = calibrator(Memory(), cancelled=lambda: True)
    assert made.get_batch(['images']) is None
    assert isinstance(made.failure, KeyboardInterrupt)


def test_the_cache_is_used_for_the_same_calibration_only(tmp_path):
    made, _ = calibrator(Memory(), tmp_path)
    assert made.read_calibration_cache() is None
    assert 'no cache' in made.cache
    made.write_calibration_cache(memoryview(b'TRT-100300-EntropyCalibration2'))
    again, _ = calibrator(Memory(), tmp_path)
    assert again.read_calibration_cache() == b'TRT-100300-EntropyCalibration2'
    assert again.cache.startswith('reused')
    for changes in ({'version': '10.13'}, {'images': select_images(SCENES, 9)}):
        other, _ = calibrator(Memory(), tmp_path, **changes)
        assert other.read_calibration_cache() is None
        assert 'something else' in other.cache
    assert calibrator(Memory(), tmp_path, method='minmax')[0].read_calibration_cache() is None
    stored = next(tmp_path.glob('*.cache'))
    stored.write_bytes(stored.read_bytes() + b'!')
    changed, _ = calibrator(Memory(), tmp_path)
    assert changed.read_calibration_cache() is None
    stored.with_suffix('.json').write_text('{')
    assert changed.read_calibration_cache() is None
    assert 'cannot be read' in changed.cache
    none, _ = calibrator(Memory())
    assert none.read_calibration_cache() is None
    assert none.cache == 'off'


def test_modelopt_is_asked_for_by_name():
    model, *_ = small_detectors.raw_maps()
    assert 'modelopt' not in sys.modules
    settings = {'progress': lambda *_: None, 'cancelled': lambda: False}
    with pytest.raises(ConfigError, match=r'nvidia-modelopt\[onnx\]'):
        quantise_with_modelopt(model, SMALL, select_images(SCENES, 8), **settings)
    with pytest.raises(ConfigError, match='entropy or minmax'):
        quantise_with_modelopt(
            model, SMALL, select_images(SCENES, 8), method='percentile', **settings
        )


def test_modelopt_is_given_what_it_needs(monkeypatch):
    model, layers, _ = small_detectors.raw_maps()
    images = select_images(SCENES, 8)
    asked = {}

    def quantize(**arguments):
        asked.update(arguments)
        source = onnx.load(arguments['onnx_path'])
        onnx.save(quantise(source, SMALL, images).model, arguments['output_path'])

    monkeypatch.setattr(
        quantise_modelopt, '_modelopt', lambda: types.SimpleNamespace(quantize=quantize)
    )
    settings = {'progress': lambda *_: None, 'cancelled': lambda: False}
    result = quantise_with_modelopt(model, SMALL, images, method='minmax', **settings)
    assert any(node.op_type == 'QuantizeLinear' for node in result.graph.node)
    assert asked['calibration_data']['images'].shape == (8, 3, 64, 64)
    assert asked['calibration_method'] == 'max'
    assert asked['nodes_to_exclude'] == layers

    def fails(**_arguments):
        raise RuntimeError('no kernel image')

    monkeypatch.setattr(
        quantise_modelopt, '_modelopt', lambda: types.SimpleNamespace(quantize=fails)
    )
    with pytest.raises(EngineError, match='ModelOpt cannot quantise the model: no kernel image'):
        quantise_with_modelopt(model, SMALL, images, **settings)
