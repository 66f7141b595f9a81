"""doctor's checks of packages, GPU and model, each driven to every colour it has."""

import contextlib
import os
import types
from unittest import mock

import pytest

from support.gpu import fake_cuda
from support.gpu.fake_nvjpeg import BAD_JPEG, FakeNvJpeg
from support.models.support_models import write_model
from trt_perception.checks import software, trial
from trt_perception.checks.model import check_model
from trt_perception.checks.software import InstalledGpu, Module
from trt_perception.errors import ConfigError, CudaError, EngineError, MissingModelInfoError
from trt_perception.gpu import bindings, nvjpeg


def by_name(findings):
    return {finding.name: finding for finding in findings}


# Packages.

ABSENT = Module('', "ModuleNotFoundError: No module named 'it'", missing=True)
CLASH = Module('', 'ImportError: numpy.core.multiarray failed to import', clash=True)
ALL = {name: Module('10.13.3') for name in software.MODULES}


def packages(*, onnx=False, python=(3, 12), **changes):
    modules = {**ALL, **changes}
    return by_name(software.check_packages(modules, onnx_wanted=onnx, python=python))


def test_good_packages():
    assert {finding.level for finding in packages().values()} == {'green'}


@pytest.mark.parametrize('python', [(3, 9), (3, 14)])
def test_python(python):
    assert packages(python=python)['Python'].level == 'yellow'


@pytest.mark.parametrize('name', ['numpy', 'cv2', 'rclpy', 'sensor_msgs.msg', 'vision_msgs.msg'])
def test_needed_packages(name):
    finding = packages(**{name: ABSENT})[name.removesuffix('.msg')]
    assert finding.level == 'red'
    assert 'numpy<2' not in finding.fix
    assert 'numpy<2' in packages(**{name: CLASH})[name.removesuffix('.msg')].fix


def test_optional_packages():
    assert packages(cv_bridge=ABSENT)['cv_bridge'].level == 'green'
    assert packages(cv_bridge=CLASH)['cv_bridge'].level == 'yellow'
    assert packages(PIL=ABSENT)['Pillow'].level == 'yellow'
    assert 'python3-pil' in packages(PIL=ABSENT)['Pillow'].fix
    assert packages(onnxruntime=ABSENT)['ONNX Runtime'].level == 'yellow'
    assert packages(onnxruntime=ABSENT, onnx=True)['ONNX Runtime'].level == 'red'


def test_modules_are_imported_for_real(tmp_path, monkeypatch):
    (tmp_path / 'ends.py').write_text('import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n')
    (tmp_path / 'raises.py').write_text("print('noise')\nraise ImportError('compiled for 1')\n")
    (tmp_path / 'fine.py').write_text("print('noise')\n__version__ = '7.8'\n")
    monkeypatch.setenv('PYTHONPATH', str(tmp_path), prepend=os.pathsep)
    (tmp_path / 'old.py').write_text('import math\nmath._ARRAY_API\n')
    (tmp_path / 'leaves.py').write_text('import os\nos._exit(0)\n')
    (tmp_path / 'lacks.so').write_bytes(b'no library')
    loads = 'import importlib.machinery as m, importlib.util as u\n'
    loads += f"loader = m.ExtensionFileLoader('lacks', {str(tmp_path / 'lacks.so')!r})\n"
    loads += "u.module_from_spec(u.spec_from_loader('lacks', loader))\n"
    (tmp_path / 'loads.py').write_text(loads)
    names = ['ends', 'raises', 'fine', 'no_such_module', 'json.tool', 'old', 'leaves', 'loads']
    found = software.import_modules(names)
    assert found['fine'] == Module('7.8')
    assert found['json.tool'] == Module('installed')
    assert found['raises'].error == 'ImportError: compiled for 1'
    assert 'signal 11' in found['ends'].error
    assert [name for name in names if found[name].missing] == ['no_such_module']
    # A library that cannot be loaded is named; what compiled code says by itself is not.
    assert 'lacks.so' in found['loads'].error
    assert found['leaves'].error == 'importing it ends the process with exit code 0'
    assert [name for name in names if found[name].clash] == ['ends', 'raises', 'old']


# The GPU.


def gpu(*, engine=True, modules=None, jpeg=None, devices=(3,), **errors):
    """Check a GPU that is good but for the functions of checks.trial that raise."""
    card = types.SimpleNamespace(name='Card', compute_capability=(8, 7))
    works = {
        'cuda_versions': {'driver': '13.0', 'runtime': '12.9'},
        'open_device': card,
        'check_kernels': None,
        'check_jpeg': '13.3.2' if jpeg is None else jpeg,
    }
    found = []
    with contextlib.ExitStack() as stack:
        for name, value in works.items():
            stand_in = mock.Mock(return_value=value, side_effect=errors.get(name))
            stack.enter_context(mock.patch.object(trial, name, stand_in))
        findings = software.check_gpu(
            {**ALL, **(modules or {})}, engine_wanted=engine, device_ids=devices, found=found
        )
        named = by_name(findings)
        assert trial.open_device.mock_calls in ([], [mock.call(index) for index in devices])
    return named, found


def test_a_good_gpu():
    findings, found = gpu()
    assert {finding.level for finding in findings.values()} == {'green'}
    assert found == [InstalledGpu('Card', (8, 7), 3)]
    assert 'CUDA 13.0, runtime 12.9' in findings['CUDA'].found


def test_each_of_several_gpus():
    findings, found = gpu(devices=(0, 2))
    assert {finding.level for finding in findings.values()} == {'green'}
    assert found == [InstalledGpu('Card', (8, 7), 0), InstalledGpu('Card', (8, 7), 2)]
    for name in ('device', 'NVRTC', 'nvJPEG'):
        assert {f'{name} 0', f'{name} 2'} < set(findings)
    card = types.SimpleNamespace(name='Card', compute_capability=(8, 7))
    findings, found = gpu(devices=(0, 2), open_device=[card, CudaError('device', 'there is one')])
    assert findings['device 0'].level == findings['nvJPEG 0'].level == 'green'
    assert findings['device 2'].level == 'red'
    assert 'NVRTC 2' not in findings
    assert [card.index for card in found] == [0]


@pytest.mark.parametrize(('engine', 'level'), [(True, 'red'), (False, 'yellow')])
@pytest.mark.parametrize(
    ('step', 'name', 'later'),
    [
        ('cuda_versions', 'CUDA', 'device'),
        ('open_device', 'device', 'NVRTC'),
        ('check_kernels', 'NVRTC', ''),
    ],
)
def test_what_cuda_lacks(engine, level, step, name, later):
    findings, _ = gpu(
        engine=engine, **{step: CudaError('it', 'is missing; really', fix='install it')}
    )
    assert findings[name].level == level
    assert findings[name].found == 'it: is missing; really'
    assert findings[name].fix.startswith('install it')
    assert later not in findings
    assert 'tensorrt' in findings  # is looked for all the same


def test_jpeg_on_the_gpu_is_optional():
    findings, _ = gpu()
    assert findings['nvJPEG'].found == '13.3.2, decodes JPEG'
    findings, _ = gpu(jpeg='')
    assert findings['nvJPEG'].level == 'green'
    assert findings['nvJPEG'].found.startswith('not installed; compressed images are decoded on')
    assert 'pip install nvidia-nvjpeg' in findings['nvJPEG'].found
    broken = CudaError('nvjpegCreateEx failed', 'NVJPEG_STATUS_ARCH_MISMATCH')
    findings, _ = gpu(check_jpeg=broken)
    assert findings['nvJPEG'].level == 'yellow'
    assert 'ARCH_MISMATCH; compressed images' in findings['nvJPEG'].found
    assert findings['nvJPEG'].fix.startswith('install nvJPEG')
    assert findings['tensorrt'].level == 'green'


def test_a_small_jpeg_is_decoded_for_real(monkeypatch):
    library = FakeNvJpeg()
    load = mock.Mock(return_value=(library, (13, 3, 2)))
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', load)
    modules = fake_cuda.bindings()
    monkeypatch.setattr(bindings, 'load_bindings', lambda: modules)
    assert trial.check_jpeg() == '13.3.2'
    assert len(library.decoded) == 1
    assert not library.live
    library.status['nvjpegDecode'] = BAD_JPEG
    with pytest.raises(
        CudaError, match=r'nvJPEG 13\.3\.2: cannot decode a small file here: NVJPEG'
    ):
        trial.check_jpeg()
    assert not library.live
    load.side_effect = CudaError('nvJPEG', 'not installed')
    assert trial.check_jpeg() == ''


def test_tensorrt():
    both = {'tensorrt': ABSENT, 'tensorrt_rtx': ABSENT}
    assert gpu(modules=both)[0]['TensorRT'].level == 'red'
    assert gpu(modules=both, engine=False)[0]['TensorRT'].level == 'yellow'
    one = gpu(modules={'tensorrt': ABSENT})[0]
    assert 'TensorRT' not in one
    assert 'tensorrt' not in one
    for version, level in (('8.6.1', 'yellow'), ('10.2.0', 'yellow'), ('10.3.0', 'green')):
        assert gpu(modules={'tensorrt': Module(version)})[0]['tensorrt'].level == level
    broken = gpu(modules={'tensorrt': Module('', 'OSError: libnvinfer.so.10')})[0]['tensorrt']
    assert broken.level == 'red'


# The model.

PLAN = b'vtrt' + bytes(20) + bytes([1, 7, 1, 116]) + bytes(100)
RTX = {**ALL, 'tensorrt_rtx': Module('1.7.1.116')}
CARD = InstalledGpu('Card', (8, 7))
BUILD = {
    'tensorrt': {'flavour': 'tensorrt_rtx', 'version': '1.7.1.116'},
    'gpu': {'name': 'Card', 'compute_capability': '8.7'},
    'cuda': None,
    'options': {},
    'profiles': [],
    'precision': {'asked': 'fp16', 'keep_fp32': [], 'as_built': 'unverified'},
    'calibration': None,
    'accuracy': None,
}


def model(path, modules=RTX, cards=(CARD,), trial=lambda: 'works'):
    return by_name(check_model(str(path), modules, cards, trial=trial))


def engine(folder, card='Card', capability='8.7', content=PLAN):
    build = {**BUILD, 'gpu': {'name': card, 'compute_capability': capability}}
    return write_model(folder, 'tiny.engine', content, build=build)


def test_a_good_engine(tmp_path):
    findings = model(engine(tmp_path))
    assert list(findings) == ['file', 'manifest', 'plan', 'GPU of the engine', 'trial run']
    assert {finding.level for finding in findings.values()} == {'green'}


def test_an_onnx_model_needs_no_gpu(tmp_path):
    findings = model(write_model(tmp_path), ALL, ())
    assert list(findings) == ['file', 'manifest', 'trial run']
    assert {finding.level for finding in findings.values()} == {'green'}


def test_files_that_are_refused(tmp_path):
    finding = model(tmp_path / 'missing.engine')['file']
    assert finding.level == 'red'
    assert 'No such file' in finding.found
    path = engine(tmp_path)
    path.write_bytes(PLAN + b'more')
    finding = model(path)['file']
    assert 'SHA-256' in finding.found
    assert 'copy model and manifest together' in finding.fix
    path.chmod(0o666)
    assert 'chmod o-w' in model(path)['file'].fix


def test_no_manifest(tmp_path):
    path = engine(tmp_path)
    path.with_name('tiny.engine.json').unlink()
    findings = model(path)  # metadata and shapes may say enough
    assert findings['manifest'].level == 'green'
    assert findings['trial run'].level == 'green'

    def unsaid():
        missing = {'scale': 'a number; mostly 1/255'}
        raise MissingModelInfoError(
            'x', 'say model.scale; seen', fix='set it', missing=missing, seen=['inputs']
        )

    finding = model(path, trial=unsaid)['trial run']
    assert finding.level == 'red'
    assert finding.found == 'x: say model.scale; seen'
    assert '--params-file, --param' in finding.fix


def test_plans_of_elsewhere(tmp_path):
    path = engine(tmp_path)
    for modules, words in (
        ({**RTX, 'tensorrt_rtx': Module('1.6.0.1')}, ['1.7.1.116', '1.6.0.1']),
        ({**RTX, 'tensorrt_rtx': ABSENT}, ['tensorrt_rtx 1.7.1.116', 'No module']),
    ):
        findings = model(path, modules, trial=None)
        assert findings['plan'].level == 'red'
        assert 'build_engine' in findings['plan'].fix
        for word in words:
            assert word in findings['plan'].found
    assert model(engine(tmp_path, content=b'no plan' * 20))['plan'].level == 'red'


def test_an_engine_on_several_gpus(tmp_path):
    cards = (InstalledGpu('Card', (8, 7), 0), InstalledGpu('Sister', (8, 9), 2))
    findings = model(engine(tmp_path), cards=cards, trial=None)
    assert findings['GPU of the engine on device 0'].level == 'green'
    other = findings['GPU of the engine on device 2']
    assert other.level == 'red'
    assert 'here is Sister (8.9)' in other.found
    assert 'trial run' not in findings


def test_gpus_of_elsewhere(tmp_path):
    name = 'GPU of the engine'
    assert model(engine(tmp_path), cards=(), trial=None)[name].level == 'red'
    other = model(engine(tmp_path, capability='8.6'), trial=None)[name]
    assert other.level == 'red'
    assert '8.6' in other.found
    assert '8.7' in other.found
    assert model(engine(tmp_path, card='Sister'))[name].level == 'yellow'
    unknown = write_model(tmp_path, 'tiny.engine', PLAN, build={**BUILD, 'gpu': None})
    assert name not in model(unknown)


def test_a_trial_that_fails(tmp_path):
    def fail():
        raise EngineError('it', 'has two inputs; one is read', fix='give it one')

    finding = model(engine(tmp_path), trial=fail)['trial run']
    assert (finding.level, finding.found, finding.fix) == (
        'red',
        'it: has two inputs; one is read',
        'give it one',
    )


def test_a_parameter_that_does_not_fit_the_model(tmp_path):
    for kind, fix in ((ConfigError, 'set the parameter'), (EngineError, 'export the model again')):

        def fail(kind=kind):
            raise kind("parameter 'class_filter'", "'cow' is no class of the model")

        assert model(engine(tmp_path), trial=fail)['trial run'].fix.startswith(fix)
