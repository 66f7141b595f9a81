# SPDX-License-Identifier: Apache-2.0
"""benchmark_engine measures a model that is small enough for any machine."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.gpu.fake_tensorrt import PLAN
from support.gpu.gpu_support import build_plan, needs_tensorrt
from support.gpu_onnx_runtime import CUDA, TENSORRT, install_gpu_build
from support.models.detector_models import CLASS_NAMES, detector_model
from support.models.fixed_model import OUTPUTS, small_onnx
from support.models.support_models import write_model
from support.optional_packages import needs
from support.oracles.family_outputs import (
    EXTRA_INPUTS,
    NAMES,
    NETWORK,
    batched,
    network,
    random_objects,
)
from support.oracles.family_outputs import OUTPUTS as FAMILY_OUTPUTS
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.kernel_maps import KernelMaps
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.benchmarking import gpu_steps
from trt_perception.offline.benchmarking.measure import (
    EncodingTime,
    PipelineReport,
    StageTime,
    TimeStatistics,
)
from trt_perception.offline.benchmarking.model_report import EngineComparison, ModelReport
from trt_perception.offline.benchmarking.report import comparison_text, model_text
from trt_perception.offline.tools import benchmark_engine
from trt_perception.offline.tools.benchmark_engine import parse_encodings

pytest_plugins = ['support.gpu.gpu_standin_fixtures']

ROOT = Path(__file__).resolve().parents[3]
QUICK = ['--frames', '6', '--warmup', '1', '--size', '64x48']


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp('models')
    return str(write_model(folder, 'small.onnx', small_onnx(), outputs=OUTPUTS))


def run_benchmark_engine(*arguments):
    """Run the command. Return its exit code, also if argparse exits."""
    try:
        return benchmark_engine.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


def check_model(report):
    """Check that the figures of one model are consistent."""
    times = [stage['alone_ms'] for stage in report['stages'].values()]
    times += [
        pipeline[key]
        for pipeline in report['pipelines']
        for key in ('latency_ms', 'busy_latency_ms', 'enqueue_ms', 'collect_ms')
    ]
    for spread in filter(None, times):
        assert 0 < spread['p50'] <= spread['p95'] <= spread['p99'] <= spread['p999']
        assert spread['p999'] <= spread['max']
    assert report['candidates'] == [3] * 8
    for pipeline, ratio in zip(report['pipelines'], report['ratios'], strict=True):
        assert pipeline['detections'] == 2
        assert pipeline['unequal'] == 0
        assert ratio['depth'] == pipeline['depth']
        expected = pipeline['frames_per_s'] * report['engine_ms'] / 1e3
        assert ratio['throughput_x_engine'] == pytest.approx(expected)


def test_figures_of_one_model_are_consistent(model, tmp_path, capsys, golden_messages):
    saved = tmp_path / 'result.json'
    assert run_benchmark_engine(model, *QUICK, '--json', saved, '--depth', '1,2,3') == 0
    output, error = capsys.readouterr()
    report = json.loads(saved.read_text())
    assert 'small.onnx (cpu): onnxruntime' in output
    assert 'frames/s x model' in output
    assert 'engine' not in output
    golden_messages.add(next(line for line in output.splitlines() if ' candidates' in line))
    golden_messages.add(error)
    assert report['command'].startswith('benchmark_engine ')
    assert report['machine']['cores'] >= 1
    assert report['machine']['gpu'] is None
    assert report['options']['count'] == 6
    assert report['images'] == ['64x48 bgr8'] * 8
    assert report['agreement'] == []
    (first,) = report['models']
    assert list(first['stages']) == ['preprocess', 'inference', 'decode']
    assert [pipeline['depth'] for pipeline in first['pipelines']] == [1]  # ONNX Runtime: one slot
    check_model(first)


def engine_report():
    """Return the results of an engine whose batches of two frames have the most frames/s."""
    times = TimeStatistics.of_seconds([1e-3, 2e-3])
    pipelines = tuple(
        PipelineReport(1, times, frames_per_s, times, times, times, 1.0, 2.0, 0, batch=batch)
        for batch, frames_per_s in ((1, 8.0), (2, 9.0), (4, 7.0))
    )
    image = TensorSpec('images', (1, 3, 8, 8), 'float32')
    return ModelReport(
        *('a.engine', '', 'x', image, image, 1.0, {'upload': StageTime(1.0, times)}),
        encodings={'bgr8': EncodingTime(192, 1.0, 1.0)},
        candidates=(1,),
        pipelines=pipelines,
        ratios=(EngineComparison(1, 1.0, 1.0, 1.0),),
    )


def test_comparison_shows_the_setting_with_the_most_frames():
    row = comparison_text([engine_report()], []).splitlines()[1]
    assert re.split(r'  +', row)[:2] == ['a.engine', 'batch 2, depth 1']


def test_help_explains_each_column(capsys):
    report = engine_report()
    tables = [*model_text(report).split('\n\n')[1:], comparison_text([report], [])]
    heads = [re.split(r'  +', table.splitlines()[0].strip())[1:] for table in tables]
    assert [len(head) for head in heads] == [3, 3, 11, 1, 3, 9]

    assert run_benchmark_engine('--help') == 0

    text = capsys.readouterr().out.partition('Columns. ')[2].partition('A measurement ends')[0]
    words = re.sub(r'\s+', ' ', text)
    missing = [
        name for head in heads for name in head if name.replace('depth 1', 'depth N') not in words
    ]
    assert not missing


def test_steps_only_option_measures_no_pipeline(model, tmp_path, capsys):
    saved = tmp_path / 'result.json'
    assert (
        run_benchmark_engine(
            model, model, *QUICK, '--steps-only', '--encoding', 'all', '--json', saved
        )
        == 0
    )
    report = json.loads(saved.read_text())
    assert report['options']['depths'] == []
    assert report['agreement'] == []
    assert report['images'] == ['64x48 bgr8'] * 8
    for entry in report['models']:
        assert entry['pipelines'] == entry['ratios'] == []
        assert list(entry['stages']) == ['preprocess', 'inference', 'decode']
        assert entry['encodings'] == {}  # an ONNX file has no kernels
    output, error = capsys.readouterr()
    assert 'latency' not in output
    assert output.startswith('frames: 8, 64x48 bgr8\n')
    assert '--encoding' in error
    assert '--depth' not in error


@needs_tensorrt
def test_kernel_is_measured_for_each_encoding(tmp_path, capsys):
    engine = write_model(tmp_path, 'small.engine', build_plan(small_onnx()), outputs=OUTPUTS)
    saved = tmp_path / 'result.json'
    assert (
        run_benchmark_engine(engine, *QUICK, '--steps-only', '--encoding', 'all', '--json', saved)
        == 0
    )
    times = json.loads(saved.read_text())['models'][0]['encodings']
    assert set(times) == {pixel_format.name for pixel_format in PIXEL_FORMATS.values()}
    assert times['bgr8']['frame_bytes'] == 64 * 48 * 3
    assert times['nv12']['frame_bytes'] == 64 * 48 * 3 // 2
    assert all(0 < time['letterbox_ms'] < 10 for time in times.values())
    assert 'bayer_rggb8' in capsys.readouterr().out


def test_best_batch_size_is_reported(tmp_path, capsys):
    import onnx

    path = tmp_path / 'open.onnx'
    onnx.save_model(detector_model(('n', 3, 64, 64)), path)
    saved = tmp_path / 'result.json'
    parameters = {
        'model.decoder': 'dense',
        'model.class_names': list(CLASS_NAMES),
        'model.resize': 'letterbox',
        'model.color_order': 'rgb',
        'model.scale': 1 / 255,
    }
    arguments = [*QUICK, *(f'--param={key}={value}' for key, value in parameters.items())]
    arguments += ['--batch', '1,2,8', '--max-latency-ms', '100000', '--json', saved]
    assert run_benchmark_engine(path, *arguments) == 0
    output, error = capsys.readouterr()
    report = json.loads(saved.read_text())
    assert report['images'] == ['64x48 bgr8'] * 32  # four batches of eight images
    (model,) = report['models']
    cells = {cell['batch']: cell for cell in model['pipelines']}
    assert list(cells) == [1, 2, 8]
    assert (model['most_at_once'], model['left_out']) == (8, [])
    assert [ratio['depth'] for ratio in model['ratios']] == [1]
    for cell in cells.values():
        assert cell['unequal'] == 0
        assert cell['detections'] > 0
        assert cell['frames_per_s'] > 0
    fastest = max(cells.values(), key=lambda cell: cell['frames_per_s'])
    for best in (model['best'], model['best_within_limit']):
        assert best == {
            'batch': fastest['batch'],
            'depth': 1,
            'frames_per_s': fastest['frames_per_s'],
            'p99_ms': fastest['busy_latency_ms']['p99'],
        }
    assert output.count('\nmost frames/s') == 2
    assert ' 100000 ms: ' in output
    assert '[3/4] open.onnx: batch 2, depth 1\n' in error
    onnx.save_model(detector_model((4, 3, 64, 64)), path)
    assert run_benchmark_engine(path, *arguments[:-6], '--batch', '2,8,6,4', '--json', saved) == 0
    (model,) = json.loads(saved.read_text())['models']
    assert [cell['batch'] for cell in model['pipelines']] == [2, 4]
    assert (model['most_at_once'], model['left_out'], model['ratios']) == (4, [8, 6], [])
    assert ' 8, 6; ' in capsys.readouterr().out
    # No setting is fast enough for this limit.
    assert (
        run_benchmark_engine(path, *arguments[:-6], '--batch', '1,2', '--max-latency-ms', '1e-9')
        == 0
    )
    assert ' 1e-09 ms: no setting' in capsys.readouterr().out


def test_equal_encodings_are_measured_once():
    assert parse_encodings('yuyv,nv12,yuv422_yuy2') == ('yuyv', 'nv12')
    names = parse_encodings('all')
    assert names[0] == 'bgr8'
    assert len(names) == len({pixel_format.name for pixel_format in PIXEL_FORMATS.values()})


def test_maps_of_different_kinds_are_not_compared():
    letterbox = Letterbox.fit((4, 3), (4, 3), 'stretch')
    kinds = [[KernelMaps({kind: None}, letterbox)] for kind in ('class_ids', 'depth')]
    assert benchmark_engine._compare(*kinds) is None


def test_two_models_are_compared(model, tmp_path, capsys):
    saved = tmp_path / 'result.json'
    assert run_benchmark_engine(model, model, *QUICK, '--encoding', 'nv12', '--json', saved) == 0
    report = json.loads(saved.read_text())
    assert len(report['models']) == 2
    (agreement,) = report['agreement']
    assert agreement == {
        'F1': 1.0,
        'mean_IoU': 1.0,
        'reference': 16,
        'candidate': 16,
        'matched': 16,
        'max_score_difference': 0.0,
        'classes': {},
    }
    table = capsys.readouterr().out.partition('comparison, ms')[2].splitlines()
    rows = [re.split(r'  +', line.strip()) for line in table[1:3]]
    assert [row[:2] for row in rows] == [['small.onnx (cpu)', 'depth 1']] * 2
    assert [row[2:5] for row in rows] == [
        [
            *(f'{pipeline["latency_ms"][name]:.3f}' for name in ('p50', 'p99')),
            f'{pipeline["frames_per_s"]:.1f}',
        ]
        for pipeline in (entry['pipelines'][0] for entry in report['models'])
    ]
    assert rows[1][-3:] == ['1.0000', '1.0000', '0.0000']


@pytest.fixture
def gpu_runtime(monkeypatch, tmp_path):
    """A build of ONNX Runtime with CUDA, which runs on the CPU."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    return install_gpu_build(monkeypatch, CUDA)


def test_providers_are_compared(model, tmp_path, gpu_runtime):
    saved = tmp_path / 'result.json'
    assert run_benchmark_engine(model, *QUICK, '--provider', 'cpu,cuda,auto', '--json', saved) == 0
    report = json.loads(saved.read_text())
    assert [entry['provider'] for entry in report['models']] == ['cpu', 'cuda', 'cuda']
    # auto tries the providers only once for all measurements of a model.
    assert [TENSORRT in requested for requested in gpu_runtime.requested].count(True) == 1
    assert [agreement['F1'] for agreement in report['agreement']] == [1.0, 1.0]


def test_provider_that_cannot_be_used_fails(model, gpu_runtime, capsys, golden_messages):
    assert run_benchmark_engine(model, *QUICK, '--provider', 'tensorrt') == 1
    golden_messages.add(capsys.readouterr().err)


def test_wrong_providers_are_refused(model, capsys, golden_messages):
    for arguments in (['--provider', 'cpu,gpu'], ['--param', 'onnx_provider=cpu']):
        assert run_benchmark_engine(model, *arguments) == 2
        golden_messages.add(capsys.readouterr().err)


FAMILIES = ['yolox', 'end_to_end', 'detr', 'labels_boxes_scores', 'torchvision']


def family_arguments(name):
    """Return the arguments that describe a model without a manifest, and short measurements."""
    parameters = {
        'model.decoder': name,
        'model.class_names': list(NAMES),
        'model.resize': 'letterbox',
        'model.color_order': 'rgb',
        'model.scale': 1 / 255,
    }
    return [*QUICK, *(f'--param={key}={value}' for key, value in parameters.items())]


@pytest.mark.parametrize('name', FAMILIES)
def test_models_of_each_family_are_measured(name, tmp_path):
    rng = np.random.default_rng(40)
    outputs = batched(name, [FAMILY_OUTPUTS[name](rng, *random_objects(rng, 6))])
    path = tmp_path / 'made.onnx'
    path.write_bytes(network(outputs, beside=EXTRA_INPUTS.get(name, ())))
    saved = tmp_path / 'result.json'
    assert run_benchmark_engine(path, *family_arguments(name), '--json', saved) == 0
    (report,) = json.loads(saved.read_text())['models']
    # Candidates outside the small frame also count.
    assert report['candidates'] == [6] * 8
    assert list(report['stages']) == ['preprocess', 'inference', 'decode']


@pytest.mark.parametrize('name', FAMILIES)
def test_engines_of_each_family_run_each_step(name, tmp_path, install_standins, monkeypatch):
    """Stand-ins for CUDA and TensorRT do no work."""
    monkeypatch.setattr(gpu_steps, '_WARM_UP_S', 0)
    rng = np.random.default_rng(41)
    outputs = batched(name, [FAMILY_OUTPUTS[name](rng, *random_objects(rng, 6))])
    kinds = {'float32': 'FLOAT', 'int64': 'INT64', 'int32': 'INT32'}
    output_specs = tuple(
        (key, value.shape, kinds[str(value.dtype)]) for key, value in outputs.items()
    )
    beside = tuple((key, shape, 'INT64') for key, shape in EXTRA_INPUTS.get(name, ()))
    image = ('image', (1, 3, NETWORK[1], NETWORK[0]), 'FLOAT')
    recorder, module = install_standins(
        tensors={'inputs': (image, *beside), 'outputs': output_specs}
    )
    path = tmp_path / 'made.engine'
    path.write_bytes(PLAN)
    saved = tmp_path / 'result.json'
    assert (
        run_benchmark_engine(path, *family_arguments(name), '--depth', '1,2', '--json', saved) == 0
    )
    (report,) = json.loads(saved.read_text())['models']
    decoding = {'decode'} if name == 'yolox' else {'download', 'host_decode'}
    engine = {'engine_graph', 'engine_enqueue', 'upload', 'letterbox', 'graph', 'upload_graph'}
    assert set(report['stages']) == engine | decoding
    assert [pipeline['depth'] for pipeline in report['pipelines']] == [1, 2]
    assert recorder.kinds() == []
    assert list(module.living) == []


def test_map_that_the_host_makes_is_a_step_of_an_engine(tmp_path, install_standins, monkeypatch):
    """Stand-ins for CUDA and TensorRT do no work."""
    monkeypatch.setattr(gpu_steps, '_WARM_UP_S', 0)
    outputs = {'points': (1, 48, 64, 3), 'mask': (1, 48, 64), 'metric_scale': (1,)}
    install_standins(
        tensors={
            'inputs': (('image', (1, 3, 48, 64), 'FLOAT'),),
            'outputs': tuple((name, shape, 'FLOAT') for name, shape in outputs.items()),
        }
    )
    path, saved = tmp_path / 'moge.engine', tmp_path / 'result.json'
    path.write_bytes(PLAN)
    assert run_benchmark_engine(path, *QUICK, '--depth', '1', '--json', saved) == 0
    (report,) = json.loads(saved.read_text())['models']
    assert {'host_decode', 'maps'} <= set(report['stages'])


def test_batch_engine_is_measured_with_batches(tmp_path, install_standins, monkeypatch, capsys):
    """Stand-ins for CUDA and TensorRT do no work."""
    monkeypatch.setattr(gpu_steps, '_WARM_UP_S', 0)
    tensors = {'inputs': ('images', (4, 3, 48, 64)), 'outputs': ('output0', (4, 6, 5))}
    recorder, module = install_standins(
        tensors={key: ((*spec, 'FLOAT'),) for key, spec in tensors.items()}
    )
    described = {
        key: [{'name': name, 'shape': list(shape), 'dtype': 'float32'}]
        for key, (name, shape) in tensors.items()
    }
    path = write_model(tmp_path, 'four.engine', PLAN, **described)
    saved = tmp_path / 'result.json'
    arguments = [*QUICK, '--depth', '1,2', '--batch', '1,3,4,8', '--max-latency-ms', '100000']
    assert run_benchmark_engine(path, *arguments, '--json', saved) == 0
    (report,) = json.loads(saved.read_text())['models']
    cells = [(cell['depth'], cell['batch']) for cell in report['pipelines']]
    assert cells == [(depth, batch) for depth in (1, 2) for batch in (1, 3, 4)]
    assert all(cell['unequal'] == 0 for cell in report['pipelines'])
    assert [ratio['depth'] for ratio in report['ratios']] == [1, 2]
    assert (report['most_at_once'], report['left_out']) == (4, [8])
    assert report['best'] == report['best_within_limit']
    table = capsys.readouterr().out.split('frames/s (p50, p99 of a batch, ms)')[1]
    assert [line.split()[:2] for line in table.splitlines()[1:4]] == [
        ['batch', size] for size in '134'
    ]
    assert recorder.kinds() == []
    assert list(module.living) == []


@needs_tensorrt
@pytest.mark.parametrize('name', ['end_to_end', 'labels_boxes_scores'])
def test_engine_with_host_decoding_is_measured(name, tmp_path):
    rng = np.random.default_rng(42)
    outputs = batched(name, [FAMILY_OUTPUTS[name](rng, *random_objects(rng, 6))])
    content = network(outputs, beside=EXTRA_INPUTS.get(name, ()))
    (tmp_path / 'made.onnx').write_bytes(content)
    (tmp_path / 'made.engine').write_bytes(build_plan(content))
    models = [tmp_path / 'made.engine', tmp_path / 'made.onnx']
    saved = tmp_path / 'result.json'
    arguments = [*family_arguments(name), '--size', '640x480', '--depth', '1,2']
    assert run_benchmark_engine(*models, *arguments, '--json', saved) == 0
    report = json.loads(saved.read_text())
    first = report['models'][0]
    assert first['candidates'] == [6] * 8
    (agreement,) = report['agreement']
    assert (agreement['F1'], agreement['reference']) == (1, 48)
    assert agreement['mean_IoU'] > 0.99


@needs_tensorrt
def test_engine_and_its_onnx_file_are_compared(model, tmp_path):
    plan = build_plan(small_onnx())
    engine = write_model(tmp_path, 'small.engine', plan, outputs=OUTPUTS)
    saved = tmp_path / 'result.json'
    assert run_benchmark_engine(engine, model, *QUICK, '--depth', '1,3', '--json', saved) == 0
    report = json.loads(saved.read_text())
    first = report['models'][0]
    assert {'engine_enqueue', 'letterbox', 'decode'} <= set(first['stages'])
    assert [pipeline['depth'] for pipeline in first['pipelines']] == [1, 3]
    assert report['agreement'][0]['F1'] == 1
    assert report['agreement'][0]['mean_IoU'] > 0.99
    assert report['machine']['gpu']['name']
    check_model(first)


def test_model_without_required_parameters_fails(tmp_path, capsys):
    lonely = tmp_path / 'lonely.onnx'
    lonely.write_bytes(small_onnx())
    assert run_benchmark_engine(lonely, *QUICK) == 1
    assert 'model.decoder' in capsys.readouterr().err


def test_interrupt_ends_with_exit_code_130(model, monkeypatch, capsys):
    def raise_interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark_engine, 'measure_model', raise_interrupt)
    assert run_benchmark_engine(model, *QUICK) == 130
    assert 'interrupted' in capsys.readouterr().err


@needs('matplotlib')
def test_plot_is_written(model, tmp_path):
    path = tmp_path / 'plot.png'
    assert run_benchmark_engine(model, model, *QUICK, '--plot', path) == 0
    assert path.read_bytes().startswith(b'\x89PNG')


def test_plot_without_matplotlib_is_refused(model, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    assert run_benchmark_engine(model, *QUICK, '--plot', tmp_path / 'plot.png') == 2
    assert 'pip install matplotlib' in capsys.readouterr().err


@needs('onnx')
def test_reference_model_finds_the_expected_detections(tmp_path):
    script = ROOT / 'scripts' / 'benchmarks' / 'reference_model.py'
    path = tmp_path / 'reference.onnx'
    command = [sys.executable, script, path, '--precision', 'fp16', '--input-size', '160']
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    # 640 x 640 has 240 + 48 + 12 groups of overlapping boxes at strides 8, 16 and 32. 160 x 160
    # has 1/16 of them: 15 + 3, because no group fits at stride 32.
    lines = [line for line in result.stdout.splitlines() if ' of 525, ' in line]
    assert len(lines) == 6
    assert all(line.endswith(', 18 detections') for line in lines), lines
    assert run_benchmark_engine(path, *QUICK) == 0
