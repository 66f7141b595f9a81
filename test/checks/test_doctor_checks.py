"""doctor's checks, each driven to every colour it has."""

import json
import os
import types

import pytest
from support_models import write_model

from trt_perception.checks import software
from trt_perception.checks.cameras import CameraReport
from trt_perception.checks.cameras import check_cameras
from trt_perception.checks.finding import LEVELS
from trt_perception.checks.finding import Finding
from trt_perception.checks.finding import as_json
from trt_perception.checks.finding import guarded
from trt_perception.checks.finding import texts
from trt_perception.checks.machine import check_machine
from trt_perception.checks.model import check_model
from trt_perception.checks.shell import check_shell
from trt_perception.checks.shell import read_profile
from trt_perception.checks.software import InstalledGpu
from trt_perception.checks.software import Module
from trt_perception.errors import CudaError
from trt_perception.errors import EngineError
from trt_perception.errors import MissingModelInfoError

PROFILE = (
    '<dds xmlns="http://www.eprosima.com"><segment_size>{size}</segment_size>'
    '<maxMessageSize>99999999</maxMessageSize></dds>'
)
OLD, NEW = 'FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE'


def by_name(findings):
    return {finding.name: finding for finding in findings}


# The shell.

GOOD = {'ROS_DISTRO': 'jazzy', OLD: 'FOLDER/good.xml'}
SHELLS = [
    ('distribution', 'green', {'ROS_DISTRO': 'kilted'}, 'kilted'),
    ('distribution', 'yellow', {'ROS_DISTRO': 'humble'}, 'humble'),
    ('distribution', 'red', {'ROS_DISTRO': None}, 'no ROS 2'),
    ('middleware', 'green', {}, 'rmw_fastrtps_cpp'),
    ('middleware', 'green', {'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp'}, 'rmw_fastrtps_cpp'),
    ('middleware', 'yellow', {'RMW_IMPLEMENTATION': 'rmw_cyclonedds_cpp'}, 'cyclonedds'),
    (
        'middleware',
        'red',
        {'RMW_IMPLEMENTATION': 'rmw_zenoh_cpp', 'AMENT_PREFIX_PATH': 'FOLDER:FOLDER/ros'},
        'rmw_zenoh_cpp',
    ),
    (
        'middleware',
        'yellow',
        {'RMW_IMPLEMENTATION': 'rmw_there_cpp', 'AMENT_PREFIX_PATH': 'FOLDER:FOLDER/ros'},
        'rmw_there_cpp',
    ),
    ('domain', 'green', {'ROS_DOMAIN_ID': '101'}, '101'),
    ('domain', 'yellow', {'ROS_DOMAIN_ID': '102'}, '102'),
    ('domain', 'red', {'ROS_DOMAIN_ID': '233'}, '233'),
    ('domain', 'red', {'ROS_DOMAIN_ID': 'mine'}, 'mine'),
    ('discovery', 'green', {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}, 'this machine only'),
    ('discovery', 'green', {}, 'network'),
    ('discovery', 'yellow', {'ROS_DISCOVERY_SERVER': '10.0.0.1:11811'}, '10.0.0.1'),
    (
        'discovery',
        'yellow',
        {'ROS_LOCALHOST_ONLY': '1', 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SUBNET'},
        'overrides',
    ),
    ('discovery', 'red', {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'OFF'}, 'never'),
    ('discovery', 'red', {'ROS_AUTOMATIC_DISCOVERY_RANGE': 'subnet'}, 'subnet'),
    ('transport profile', 'green', {}, '64 MiB'),
    ('transport profile', 'green', {'ROS_DISTRO': 'kilted', NEW: 'FOLDER/good.xml'}, '64 MiB'),
    ('transport profile', 'yellow', {OLD: None}, '512 KiB'),
    ('transport profile', 'yellow', {OLD: 'FOLDER/small.xml'}, 'no larger'),
    ('transport profile', 'yellow', {OLD: 'FOLDER/other.xml'}, 'no larger'),
    ('transport profile', 'yellow', {OLD: None, NEW: 'FOLDER/good.xml'}, 'does not read'),
    ('transport profile', 'yellow', {'ROS_DISTRO': 'kilted'}, 'does not read'),
    ('transport profile', 'red', {OLD: 'FOLDER/missing.xml'}, 'missing.xml'),
    ('transport profile', 'red', {OLD: 'FOLDER/broken.xml'}, 'no XML'),
    ('transport profile', 'red', {OLD: 'FOLDER/bomb.xml'}, 'entities'),
    ('transport profile', 'red', {OLD: 'FOLDER/text.xml'}, 'text.xml'),
    ('transport variables', 'yellow', {NEW: 'FOLDER/small.xml'}, 'different'),
    ('transports', 'yellow', {'FASTDDS_BUILTIN_TRANSPORTS': 'UDPv4'}, 'UDPv4'),
    ('profile here', 'yellow', {'HERE': '1'}, 'DEFAULT_FASTRTPS_PROFILES.xml'),
    ('security', 'red', {'ROS_SECURITY_ENABLE': 'true'}, 'keystore'),
    (
        'security',
        'yellow',
        {'ROS_SECURITY_ENABLE': 'true', 'ROS_SECURITY_KEYSTORE': 'FOLDER'},
        'unprotected',
    ),
    (
        'security',
        'green',
        {
            'ROS_SECURITY_ENABLE': 'true',
            'ROS_SECURITY_KEYSTORE': 'FOLDER',
            'ROS_SECURITY_STRATEGY': 'Enforce',
        },
        'enforced',
    ),
]


@pytest.fixture
def shell(tmp_path):
    """Check a shell that is good but for some changes."""
    (tmp_path / 'good.xml').write_text(PROFILE.format(size=2**26))
    (tmp_path / 'small.xml').write_text(PROFILE.format(size=2**19))
    (tmp_path / 'text.xml').write_text(PROFILE.format(size='large'))
    (tmp_path / 'other.xml').write_text('<profiles/>')
    (tmp_path / 'broken.xml').write_text('<dds>')
    (tmp_path / 'bomb.xml').write_text('<!DOCTYPE d [<!ENTITY a "b">]><dds>&a;</dds>')
    index = tmp_path / 'ros/share/ament_index/resource_index/packages'
    index.mkdir(parents=True)
    (index / 'rmw_there_cpp').touch()

    def check(changes):
        if changes.get('HERE'):
            (tmp_path / 'DEFAULT_FASTRTPS_PROFILES.xml').touch()
        environment = {
            name: value.replace('FOLDER', str(tmp_path))
            for name, value in {**GOOD, **changes}.items()
            if value is not None
        }
        return by_name(check_shell(environment, folder=tmp_path))

    return check


@pytest.mark.parametrize(
    ('name', 'level', 'changes', 'word'),
    SHELLS,
    ids=[f'{i}-{name}-{level}' for i, (name, level, _, _) in enumerate(SHELLS)],
)
def test_shell(shell, name, level, changes, word):
    finding = shell(changes)[name]
    assert finding.level == level, finding
    assert word in finding.found


def test_a_good_shell_is_green(shell):
    assert {finding.level for finding in shell({}).values()} == {'green'}


def test_builtin_transports_with_shared_memory_are_fine(shell):
    assert 'transports' not in shell({'FASTDDS_BUILTIN_TRANSPORTS': 'LARGE_DATA?max_msg_size=1MB'})


def test_other_middlewares_are_not_asked_for_fast_dds(shell):
    assert 'transport profile' not in shell({'RMW_IMPLEMENTATION': 'rmw_cyclonedds_cpp'})


def test_the_shipped_profile_is_understood():
    from ament_index_python.packages import get_package_share_directory

    path = f'{get_package_share_directory("trt_perception")}/config/fastdds_large_images.xml'
    assert read_profile({'ROS_DISTRO': 'jazzy', OLD: path}).segment_bytes == 64 * 2**20


# The machine.


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Check a machine whose facts are given."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    (tmp_path / 'net/core').mkdir(parents=True)
    (tmp_path / 'shm').mkdir()
    facts = {'/shm': 2**30, '/cache': 2**34}

    def statvfs(path):
        free = next(size for part, size in facts.items() if part in str(path))
        return types.SimpleNamespace(f_bavail=free, f_blocks=free, f_frsize=1)

    def check(rmem='8388608', **more):
        facts.update({f'/{name}': size for name, size in more.items()})
        if rmem is not None:
            (tmp_path / 'net/core/rmem_max').write_text(rmem)
        with monkeypatch.context() as patch:
            patch.setattr(os, 'statvfs', statvfs)
            return by_name(check_machine(2**26, system=tmp_path, shared_memory=tmp_path / 'shm'))

    return check


def test_a_good_machine(machine, tmp_path):
    findings = machine()
    assert {finding.level for finding in findings.values()} == {'green'}
    assert set(findings) == {'net.core.rmem_max', str(tmp_path / 'shm'), 'caches'}


@pytest.mark.parametrize('rmem', ['212992', 'much', None])
def test_socket_buffer(machine, rmem):
    finding = machine(rmem)['net.core.rmem_max']
    assert finding.level == 'yellow'
    assert 'sysctl -w net.core.rmem_max=' in finding.fix


@pytest.mark.parametrize(
    ('free', 'level'), [(2**26 - 1, 'red'), (2**26, 'yellow'), (2**28 - 1, 'yellow')]
)
def test_shared_memory(machine, tmp_path, free, level):
    finding = machine(shm=free)[str(tmp_path / 'shm')]
    assert finding.level == level
    assert '--shm-size' in finding.fix


def test_no_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    gone = tmp_path / 'gone'
    assert by_name(check_machine(1, shared_memory=gone))[str(gone)].level == 'red'
    monkeypatch.setattr(os, 'access', lambda *_: False)
    finding = by_name(check_machine(1, shared_memory=tmp_path))[str(tmp_path)]
    assert (finding.level, finding.found) == ('red', 'this user cannot write it')


def test_caches(machine, tmp_path, monkeypatch):
    assert '255 MiB' in machine(cache=255 * 2**20)['caches'].found
    (tmp_path / 'file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'file'))
    finding = machine()['caches']
    assert finding.level == 'yellow'
    assert 'XDG_CACHE_HOME' in finding.fix


# Packages.

ABSENT = Module('', "ModuleNotFoundError: No module named 'it'")
CLASH = Module('', 'ImportError: numpy.core.multiarray failed to import')
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
    found = software.import_modules(['ends', 'raises', 'fine', 'no_such_module', 'json.tool'])
    assert found['fine'] == Module('7.8')
    assert found['json.tool'] == Module('installed')
    assert found['raises'].error == 'ImportError: compiled for 1'
    assert 'signal 11' in found['ends'].error
    assert found['no_such_module'].missing
    assert not found['raises'].missing


# The GPU.


def gpu(*, engine=True, modules=None, versions=None, device=None, compiler=None):
    def failing(error):
        def fail(*_):
            raise error

        return fail

    card = types.SimpleNamespace(name='Card', compute_capability=(8, 7))
    found = []
    findings = software.check_gpu(
        {**ALL, **(modules or {})},
        engine_wanted=engine,
        versions=failing(versions) if versions else lambda: {'driver': '13.0', 'runtime': '12.9'},
        device=failing(device) if device else lambda: card,
        compile_kernels=failing(compiler) if compiler else lambda _: b'',
        found=found,
    )
    return by_name(findings), found


def test_a_good_gpu():
    findings, found = gpu()
    assert {finding.level for finding in findings.values()} == {'green'}
    assert found == [InstalledGpu('Card', (8, 7))]
    assert 'CUDA 13.0, runtime 12.9' in findings['CUDA'].found


@pytest.mark.parametrize(('engine', 'level'), [(True, 'red'), (False, 'yellow')])
@pytest.mark.parametrize(
    ('step', 'name', 'later'),
    [('versions', 'CUDA', 'device'), ('device', 'device', 'NVRTC'), ('compiler', 'NVRTC', '')],
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


def model(path, modules=RTX, card=CARD, trial=lambda: 'works'):
    return by_name(check_model(str(path), modules, card, trial=trial))


def engine(folder, card='Card', capability='8.7', content=PLAN):
    build = {**BUILD, 'gpu': {'name': card, 'compute_capability': capability}}
    return write_model(folder, 'tiny.engine', content, build=build)


def test_a_good_engine(tmp_path):
    findings = model(engine(tmp_path))
    assert list(findings) == ['file', 'manifest', 'plan', 'GPU of the engine', 'trial run']
    assert {finding.level for finding in findings.values()} == {'green'}


def test_an_onnx_model_needs_no_gpu(tmp_path):
    findings = model(write_model(tmp_path), ALL, None)
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


def test_gpus_of_elsewhere(tmp_path):
    name = 'GPU of the engine'
    assert model(engine(tmp_path), card=None, trial=None)[name].level == 'red'
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


# Cameras.


def camera(topic='/image', **changes):
    facts = {
        'compressed': topic.endswith('/compressed'),
        'reliability': ('reliable',),
        'received': 90,
        'lost': 0,
        'seconds': 3.0,
        'rate_hz': 30.0,
        'message_bytes': 6_220_800,
        'description': '1920x1080 bgr8',
        'encoding': 'bgr8',
    }
    return CameraReport(topic, **{**facts, **changes})


def cameras(*heard, wanted='', segment=2**26):
    findings = check_cameras(
        heard, wanted=wanted, segment_bytes=segment, profile_fix='CURE', encodings=['bgr8']
    )
    return by_name(findings)


def test_good_cameras():
    findings = cameras(camera(), camera('/image/compressed'), camera('/b', lost=None))
    assert {finding.level for finding in findings.values()} == {'green'}
    assert findings['/image'].found == '30.0 Hz, 1920x1080 bgr8, 6.2 MB, reliable'
    slow = cameras(camera(received=2, rate_hz=None))['/image']
    assert slow.found == '2 images in 3 s, 1920x1080 bgr8, 6.2 MB, reliable'


@pytest.mark.parametrize(
    ('changes', 'segment', 'found', 'fix'),
    [
        ({'reliability': (), 'received': 0}, 2**26, 'nobody publishes', 'remapping'),
        ({'received': 0}, 2**26, 'silent for 3 s', 'CURE'),
        ({'lost': 1, 'received': 99}, 2**26, '', ''),
        ({'lost': 2}, 2**26, '2 of 92 lost', 'CURE'),
        ({'reliability': ('reliable', 'best_effort')}, 2**26, '2 publishers', 'namespace'),
        ({'message_bytes': 2**26 + 1}, 2**26, 'larger than the 64.0 MiB', 'CURE'),
        ({'reliability': ('best_effort',)}, 2**26, '', ''),
        (
            {'reliability': ('best_effort',), 'message_bytes': 300_000},
            2**19,
            'best effort',
            'CURE',
        ),
        ({'reliability': ('best_effort',), 'message_bytes': 90_000}, 2**19, '', ''),
        ({'encoding': '32FC1'}, 2**26, 'needs cv_bridge', 'apt install'),
    ],
)
def test_cameras(changes, segment, found, fix):
    finding = cameras(camera(**changes), segment=segment)['/image']
    assert finding.level == ('yellow' if found else 'green')
    assert found in finding.found
    assert fix in finding.fix


def test_only_compressed():
    finding = cameras(camera('/front/compressed'))['/front/compressed']
    assert finding.level == 'yellow'
    assert 'image_topic:=/front image_transport:=compressed (detect.launch.py)' in finding.fix
    assert '-r image:=/front -p image_transport:=compressed (detector_node)' in finding.fix


def test_no_cameras():
    assert cameras()['topics'].level == 'yellow'
    assert cameras(wanted='/image')['topics'].level == 'red'
    finding = cameras(camera(), wanted='/front')['/front']
    assert finding.level == 'red'
    assert '/image' in finding.fix
    assert cameras(camera(received=0), wanted='/image')['/image'].level == 'red'


# What all share.


def test_a_check_that_raises_is_a_finding():
    def check():
        yield Finding('a', 'one', 'green', 'good')
        raise RuntimeError('this broke')

    one, two = guarded('a', 'all', check)
    assert one.level == 'green'
    assert two.level == 'red'
    assert 'RuntimeError: this broke' in two.found


def test_whatever_is_not_green_has_a_fix():
    for level in LEVELS:
        with pytest.raises(AssertionError):
            Finding('a', 'b', level, 'c', 'fix' if level == 'green' else '')


def test_reports():
    findings = [
        Finding('one', 'a', 'green', 'good'),
        Finding('one', 'b', 'yellow', 'so so', 'do this'),
        Finding('two', 'c', 'red', 'bad\nworse', 'do that'),
    ]
    given = []
    parts = texts((given.append(finding) or finding for finding in findings), color=False)
    text = next(parts)
    assert given == findings[:1]  # said as soon as it is known
    text = '\n'.join([text, *parts])
    assert text.splitlines() == [
        'one',
        '  green  a: good',
        '  yellow b: so so',
        '         fix: do this',
        '',
        'two',
        '  red    c: bad',
        '           worse',
        '         fix: do that',
        '',
        '1 green, 1 yellow, 1 red',
    ]
    assert '\033' not in text
    assert '\033[31mred   \033[0m' in '\n'.join(texts(findings, color=True))
    read = json.loads(as_json(findings))
    assert {level: read[level] for level in LEVELS} == {'green': 1, 'yellow': 1, 'red': 1}
    assert read['findings'][1] == {
        'area': 'one',
        'name': 'b',
        'level': 'yellow',
        'found': 'so so',
        'fix': 'do this',
    }
