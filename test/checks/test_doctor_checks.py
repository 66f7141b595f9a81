# SPDX-License-Identifier: Apache-2.0
"""Tests of doctor's checks of packages, GPU and model. The cases cover every level."""

import contextlib
import logging
import os
import sys
import types
from unittest import mock

import pytest

from support import golden
from support.findings import text_of
from support.gpu import fake_cuda
from support.gpu.fake_nvjpeg import BAD_JPEG, FakeNvJpeg
from support.models.support_models import write_model
from trt_perception.checks import software, trial
from trt_perception.checks.model import model_findings
from trt_perception.checks.software import InstalledGpu, ModuleImport
from trt_perception.errors import ConfigError, CudaError, EngineError, MissingModelInfoError
from trt_perception.gpu import bindings, nvjpeg

# Packages.

ABSENT = ModuleImport('', "ModuleNotFoundError: No module named 'it'", missing=True)
CLASH = ModuleImport('', 'ImportError: numpy.core.multiarray failed to import', clash=True)
ALL = {name: ModuleImport('10.13.3') for name in software.CHECKED_MODULES}
ROS_PACKAGES = (
    *('rclpy', 'sensor_msgs.msg', 'vision_msgs.msg', 'cv_bridge'),
    *('foxglove_msgs.msg', 'bond.msg'),
)
NEEDED = ('numpy', 'cv2', *ROS_PACKAGES)
PACKAGES = {
    'Python 3.9': {'python': (3, 9)},
    'Python 3.15': {'python': (3, 15)},
    **{f'{name} absent': {name: ABSENT} for name in NEEDED},
    **{f'{name} clashes': {name: CLASH} for name in NEEDED},
    'bond absent, bond.enabled': {'bond.msg': ABSENT, 'bond': True},
    'Pillow absent': {'PIL': ABSENT},
    'simplejpeg absent': {'simplejpeg': ABSENT},
    'simplejpeg clashes': {'simplejpeg': CLASH},
    'ONNX Runtime absent': {'onnxruntime': ABSENT},
    'ONNX Runtime absent, ONNX model': {'onnxruntime': ABSENT, 'onnx': True},
}


def packages(*, onnx=False, bond=False, python=(3, 12), **changes):
    modules = {**ALL, **changes}
    return list(
        software.package_findings(modules, needs_onnx=onnx, needs_bond=bond, python=python)
    )


def test_each_fault_of_a_package_gives_its_finding():
    good = packages()
    assert {finding.level for finding in good} == {'green'}
    scenes = {name: packages(**changes) for name, changes in PACKAGES.items()}
    text = text_of(scenes, good).replace(sys.executable, 'PYTHON')
    golden.check('checks/packages.txt', text)


def test_import_check_separates_installed_missing_and_failing_modules(
    tmp_path, monkeypatch, golden_messages
):
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
    assert found['fine'] == ModuleImport('7.8')
    assert found['json.tool'] == ModuleImport('installed')
    assert found['raises'].error == 'ImportError: compiled for 1'
    golden_messages.add(found['ends'].error)
    assert [name for name in names if found[name].missing] == ['no_such_module']
    # The finding names a library that cannot be loaded, but omits text that modules print.
    assert 'lacks.so' in found['loads'].error
    golden_messages.add(found['leaves'].error)
    assert [name for name in names if found[name].clash] == ['ends', 'raises', 'old']


# The GPU.

DEVICE = types.SimpleNamespace(name='Card', compute_capability=(8, 7))


def check_gpu_with(*, engine=True, modules=None, jpeg=None, devices=(3,), **errors):
    """Check a GPU without problems. The named functions of checks.trial raise the given errors."""
    works = {
        'cuda_versions': {'driver': '13.0', 'runtime': '12.9'},
        'open_device': DEVICE,
        'check_kernels': None,
        'check_nvjpeg': '13.3.2' if jpeg is None else jpeg,
    }
    found = []
    with contextlib.ExitStack() as stack:
        for name, value in works.items():
            stand_in = mock.Mock(return_value=value, side_effect=errors.get(name))
            stack.enter_context(mock.patch.object(trial, name, stand_in))
        findings = software.gpu_findings(
            {**ALL, **(modules or {})}, needs_engine=engine, device_ids=devices, found=found
        )
        findings = list(findings)
        assert trial.open_device.mock_calls in ([], [mock.call(index) for index in devices])
    return findings, found


MISSING = CudaError('it', 'is missing; really', fix='install it')
BROKEN_JPEG = CudaError('nvjpegCreateEx failed', 'NVJPEG_STATUS_ARCH_MISMATCH')
NO_TENSORRT = {'tensorrt': ABSENT, 'tensorrt_lean': ABSENT, 'tensorrt_rtx': ABSENT}
GPUS = {
    **{
        f'{step} fails, {"engine" if engine else "no engine"}': {step: MISSING, 'engine': engine}
        for step in ('cuda_versions', 'open_device', 'check_kernels')
        for engine in (True, False)
    },
    'no nvJPEG': {'jpeg': ''},
    'broken nvJPEG': {'check_nvjpeg': BROKEN_JPEG},
    'no TensorRT': {'modules': NO_TENSORRT},
    'no TensorRT, no engine': {'modules': NO_TENSORRT, 'engine': False},
    **{
        f'TensorRT {version}': {'modules': {'tensorrt': ModuleImport(version)}}
        for version in ('8.6.1', '10.2.0', '10.3.0')
    },
    'broken TensorRT': {'modules': {'tensorrt': ModuleImport('', 'OSError: libnvinfer.so.10')}},
    'TensorRT-RTX alone': {'modules': {'tensorrt': ABSENT, 'tensorrt_lean': ABSENT}},
    'lean runtime alone': {'modules': {**NO_TENSORRT, 'tensorrt_lean': ModuleImport('11.4.0')}},
    'old lean runtime': {'modules': {'tensorrt_lean': ModuleImport('10.2.0')}},
}
TWO_GPUS = {
    'two good GPUs': {'devices': (0, 2)},
    'second of two GPUs cannot be opened': {'devices': (0, 2), 'open_device': [DEVICE, MISSING]},
}


def test_each_fault_of_a_gpu_gives_its_finding():
    good, found = check_gpu_with()
    assert {finding.level for finding in good} == {'green'}
    assert found == [InstalledGpu('Card', (8, 7), 3)]
    scenes = {name: check_gpu_with(**changes)[0] for name, changes in GPUS.items()}
    several = [check_gpu_with(**changes) for changes in TWO_GPUS.values()]
    assert [[gpu.index for gpu in found] for _, found in several] == [[0, 2], [0]]
    of_several = text_of(dict(zip(TWO_GPUS, (findings for findings, _ in several), strict=True)))
    golden.check('checks/gpu.txt', f'{text_of(scenes, good)}\n{of_several}')


def test_jpeg_check_decodes_a_jpeg_and_frees_nvjpeg(monkeypatch):
    library = FakeNvJpeg()
    load = mock.Mock(return_value=(library, (13, 3, 2)))
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', load)
    modules = fake_cuda.bindings()
    monkeypatch.setattr(bindings, 'load_bindings', lambda: modules)
    assert trial.check_nvjpeg() == '13.3.2'
    assert len(library.decoded) == 1
    assert not library.live
    library.status['nvjpegDecode'] = BAD_JPEG
    with pytest.raises(CudaError, match=r'13\.3\.2: .*NVJPEG'):
        trial.check_nvjpeg()
    assert not library.live
    load.side_effect = CudaError('nvJPEG', 'not installed')
    assert trial.check_nvjpeg() == ''


# The model.

PLAN = b'vtrt' + bytes(20) + bytes([1, 7, 1, 116]) + bytes(100)
TENSORRT_PLAN = b'ftrt' + bytes(20) + bytes([10, 13, 3, 9]) + bytes(100)
COMPATIBLE = {'version_compatible': True}
LEAN = {**ALL, 'tensorrt': ABSENT, 'tensorrt_lean': ModuleImport('10.13.3.9')}
RTX = {**ALL, 'tensorrt_rtx': ModuleImport('1.7.1.116')}
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


def check_model_with(path, modules=RTX, cards=(CARD,), trial=lambda: 'works'):
    return list(model_findings(str(path), modules, cards, trial=trial))


def write_engine(folder, card='Card', capability='8.7', content=PLAN):
    build = {**BUILD, 'gpu': {'name': card, 'compute_capability': capability}}
    return write_model(folder, 'tiny.engine', content, build=build)


def write_compatible_engine(folder, options=COMPATIBLE):
    build = {
        **BUILD,
        'tensorrt': {'flavour': 'tensorrt', 'version': '10.13.3.9'},
        'options': options,
    }
    return write_model(folder, 'tiny.engine', TENSORRT_PLAN, build=build)


def write_engine_without_manifest(folder):
    return write_without_manifest(write_engine(folder))


def write_without_manifest(path):
    path.with_name('tiny.engine.json').unlink()
    return path


def write_changed_engine(folder):
    path = write_engine(folder)
    path.write_bytes(PLAN + b'more')
    return path


def write_engine_for_all_users(folder):
    path = write_engine(folder)
    path.chmod(0o666)
    return path


def failing_trial(error):
    def trial():
        raise error

    return trial


MISSING_INFO = MissingModelInfoError(
    *('x', 'say model.scale; seen'),
    fix='set it',
    arguments='-p model.scale:=VALUE',
    missing={'scale': 'a number; mostly 1/255'},
    seen=['inputs'],
)
CARDS = (InstalledGpu('Card', (8, 7), 0), InstalledGpu('Sister', (8, 9), 2))
#: For each scene: the function that writes the model, and arguments of `check_model_with`.
MODELS = {
    'engine': (write_engine, {}),
    'ONNX without a GPU': (write_model, {'modules': ALL, 'cards': ()}),
    'ONNX without ONNX Runtime': (
        write_model,
        {'modules': {**ALL, 'onnxruntime': ABSENT}, 'trial': None},
    ),
    'no file': (lambda folder: folder / 'missing.engine', {}),
    'changed file': (write_changed_engine, {}),
    'file that other users can write': (write_engine_for_all_users, {}),
    'no manifest': (write_engine_without_manifest, {}),
    'missing parameters': (write_engine_without_manifest, {'trial': failing_trial(MISSING_INFO)}),
    'other release': (write_engine, {'modules': {**RTX, 'tensorrt_rtx': ModuleImport('1.6.0.1')}}),
    'no TensorRT-RTX': (write_engine, {'modules': {**RTX, 'tensorrt_rtx': ABSENT}}),
    'no plan': (lambda folder: write_engine(folder, content=b'no plan' * 20), {}),
    'lean runtime': (write_compatible_engine, {'modules': LEAN}),
    'lean runtime, no manifest': (
        lambda folder: write_without_manifest(write_compatible_engine(folder)),
        {'modules': LEAN},
    ),
    'other lean runtime': (
        write_compatible_engine,
        {'modules': {**LEAN, 'tensorrt_lean': ModuleImport('10.14.0')}},
    ),
    'lean runtime, engine for TensorRT only': (
        lambda folder: write_compatible_engine(folder, options={}),
        {'modules': LEAN},
    ),
    'several GPUs': (write_engine, {'cards': CARDS, 'trial': None}),
    'no GPU': (write_engine, {'cards': (), 'trial': None}),
    'other compute capability': (
        lambda folder: write_engine(folder, capability='8.6'),
        {'trial': None},
    ),
    'other GPU': (lambda folder: write_engine(folder, card='Sister'), {}),
    'unknown GPU': (
        lambda folder: write_model(folder, 'tiny.engine', PLAN, build={**BUILD, 'gpu': None}),
        {},
    ),
    'trial fails with a fix': (
        write_engine,
        {
            'trial': failing_trial(
                EngineError('it', 'has two inputs; one is read', fix='give it one')
            )
        },
    ),
    **{
        f'trial fails with {kind.__name__}': (
            write_engine,
            {'trial': failing_trial(kind("parameter 'class_filter'", "'cow' is no class"))},
        )
        for kind in (ConfigError, EngineError)
    },
}


def test_each_fault_of_a_model_gives_its_finding(tmp_path):
    scenes = {}
    for number, (name, (write, arguments)) in enumerate(MODELS.items()):
        folder = tmp_path / f'{number:02}'
        folder.mkdir()
        scenes[name] = check_model_with(write(folder), **arguments)
        if name in ('engine', 'ONNX without a GPU', 'no manifest', 'unknown GPU', 'lean runtime'):
            assert {finding.level for finding in scenes[name]} == {'green'}
    text = text_of(scenes)
    for number in range(len(MODELS)):
        text = golden.without_folder(text, tmp_path / f'{number:02}')
    golden.check('checks/model.txt', text)


def test_warnings_of_the_trial_run_are_findings(tmp_path, capfd):
    log = logging.getLogger('trt_perception.model')

    def trial():
        for _ in range(2):
            log.warning('tiny.onnx: %s', 'assumed preprocessing')
        log.info('not a warning')
        return 'works'

    path = write_model(tmp_path, 'tiny.onnx', b'an onnx')
    found = check_model_with(path, {**ALL}, (), trial)
    assert [(finding.level, finding.found) for finding in found[-2:]] == [
        ('green', 'works'),
        ('yellow', 'tiny.onnx: assumed preprocessing'),
    ]
    assert capfd.readouterr().err == ''
