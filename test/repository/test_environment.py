# SPDX-License-Identifier: Apache-2.0
"""Test the environment: ROS 2 communication, messages, colcon, installation and scripts."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import difference

from support.programs import DEADLINE_S, unmeasured
from support.waiting import WaitTimeoutError

pytestmark = pytest.mark.ros

ROOT = Path(__file__).resolve().parents[2]

# The type hashes of vision_msgs 4.1.1 and foxglove_msgs 3.4.3. ROS 2 nodes communicate only if the
# hashes are equal. The hash of bond is computed from the fields that bond 4.1.2 documents, because
# it covers only names and types of fields.
TYPE_HASHES = {
    'vision_msgs/Classification': (
        'RIHS01_f74db28d0eaef3afb78f48bf2161cd709a1383a0309d3454383b25be11345143'
    ),
    'vision_msgs/Detection2DArray': (
        'RIHS01_214274120007f4a683866481336b70310268cfa107aebe9d594a6acf75bda968'
    ),
    'vision_msgs/Detection3DArray': (
        'RIHS01_793f5eab9595ac1c0da07873cc859db42eae51f0ee76056db8562515d830e018'
    ),
    'vision_msgs/LabelInfo': (
        'RIHS01_3d37df4015cdf660cc851c51897f2acd957e1ca6205ba0a99aebffb9406b0783'
    ),
    'foxglove_msgs/ImageAnnotations': (
        'RIHS01_bc4e578b1ef80953415d6f966a4cab305c8a44c8b64fc405312b6f06a08fc45e'
    ),
    'bond/Status': ('RIHS01_87eaccffa254ffffadc0b61600452e8251740f06c25659a2dbda4927fdb1f70a'),
}


def share_folder(package):
    index = pytest.importorskip('ament_index_python', reason='ROS 2 is not installed')
    try:
        return Path(index.get_package_share_directory(package))
    except index.PackageNotFoundError:
        pytest.skip(f'needs {package}')


@pytest.mark.parametrize('name', sorted(TYPE_HASHES))
def test_overlay_has_the_type_hashes_of_the_distribution(name):
    package, message = name.split('/')
    share = share_folder(package)
    if 'Stand-in' not in (share / 'package.xml').read_text():
        pytest.skip(f"{package} is the distribution's own ({share}), not the overlay")
    description = json.loads((share / 'msg' / f'{message}.json').read_text())
    hashes = {entry['type_name']: entry['hash_string'] for entry in description['type_hashes']}
    assert hashes[f'{package}/msg/{message}'] == TYPE_HASHES[name]


LISTENER = """
import sys
import time
import rclpy
from rclpy.qos import QoSProfile, DurabilityPolicy
from vision_msgs.msg import Detection2DArray

rclpy.init()
node = rclpy.create_node('environment_listener')
received = []
qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
node.create_subscription(Detection2DArray, 'environment_test', received.append, qos)
end = time.monotonic() + float(sys.argv[1])
while not received and time.monotonic() < end:
    rclpy.spin_once(node, timeout_sec=0.1)
print(received[0].detections[0].id if received else 'nothing received')
"""


# The first test sets up the session's fixtures, so that the limit ends the second test itself.
HANGS = """
import ctypes

import pytest

def test_ends():
    pass

@pytest.mark.timeout(3)
def test_hangs_in_a_library_that_holds_the_lock():
    ctypes.PyDLL(None).sleep(40)
"""


def run_pytest(folder, text, *options):
    """Run a test file with the settings of this package. Return the ended process."""
    (folder / 'test_it.py').write_text(text)
    command = ['-m', 'pytest', '-p', 'conftest', '-p', 'no:cacheprovider', '--rootdir', folder]
    environment = unmeasured()
    environment.pop('ROS_DOMAIN_ID', None)
    return subprocess.run(
        [sys.executable, *command, *options, '-c', ROOT / 'pyproject.toml', folder],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **environment,
            'PYTHONPATH': f'{ROOT / "test"}:{os.environ["PYTHONPATH"]}',
            'PYTEST_ADDOPTS': '',  # not the options of this run
        },
    )


def test_hanging_test_ends_its_process_and_prints_its_stack(tmp_path):
    process = run_pytest(tmp_path, HANGS)
    assert process.returncode == -signal.SIGALRM
    assert '(most recent call first)' in process.stderr
    assert 'in test_hangs_in_a_library_that_holds_the_lock' in process.stderr
    assert 'passed' not in process.stdout


FAILS = """
import os
from pathlib import Path

import pytest

@pytest.fixture(scope='module')
def shared():
    return []

@pytest.mark.parametrize('number', range(3))
def test_fails(number, shared):
    shared.append(0)
    opened = map(os.path.realpath, Path('/proc/self/fd').iterdir())
    locked = [path for path in opened if '-domain-' in path]
    print('facts', os.environ['ROS_DOMAIN_ID'], len(locked), len(shared))
    raise AssertionError
"""


def test_test_after_a_failure_has_new_fixtures_and_another_domain(tmp_path):
    process = run_pytest(tmp_path, FAILS)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED
    facts = re.findall('^facts (.*) (.*) (.*)$', process.stdout, re.MULTILINE)
    assert len({domain for domain, *_ in facts}) == 3
    # Hundreds of failures must not lock all domains.
    assert [(locked, shared) for _, locked, shared in facts] == [('1', '1')] * 3


CRASHES = """
import os
import signal
from pathlib import Path

import pytest

@pytest.mark.parametrize('number', range(3))
def test_crashes(number):
    started = Path(__file__).with_name(f'{number}.started')
    crashes = CRASHES_OF.get(number, 0)
    with started.open('ab') as stream:
        stream.write(b'.')
    if started.stat().st_size <= crashes:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(('crashes', 'passes'), [({0: 1, 2: 1}, True), ({1: 2}, False)])
def test_test_whose_process_crashed_runs_once_more(tmp_path, crashes, passes):
    code = f'CRASHES_OF = {crashes}\n{CRASHES}'
    options = '--numprocesses', '1', '--dist', 'loadfile', '--max-worker-restart', '3'
    process = run_pytest(tmp_path, code, *options)
    assert (process.returncode == 0) is passes, process.stdout
    started = {path.stem: path.stat().st_size for path in tmp_path.glob('*.started')}
    assert len(started) == 3, process.stdout  # the rest of the file runs, too
    assert all(started[str(number)] > count for number, count in crashes.items()), started


def test_message_reaches_another_process():
    rclpy = pytest.importorskip('rclpy')
    from rclpy.qos import DurabilityPolicy, QoSProfile
    from vision_msgs.msg import Detection2D, Detection2DArray

    context = rclpy.Context()
    rclpy.init(context=context)
    try:
        node = rclpy.create_node('environment_talker', context=context)
        qos = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        publisher = node.create_publisher(Detection2DArray, 'environment_test', qos)
        publisher.publish(Detection2DArray(detections=[Detection2D(id='seen')]))
        process = subprocess.run(
            [sys.executable, '-c', LISTENER, str(DEADLINE_S)],
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_S,
        )
    finally:
        rclpy.shutdown(context=context)
    assert process.returncode == 0, process.stderr
    if process.stdout.strip() == 'nothing received':
        raise WaitTimeoutError('expected a message from this process')
    assert process.stdout.strip() == 'seen'


def test_colcon_finds_only_this_package():
    # A second vision_msgs in a user's workspace would shadow the vision_msgs of the distribution.
    found = subprocess.run(
        [sys.executable, '-m', 'colcon', '--log-base', os.devnull, 'list', '--names-only'],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ['trt_perception']


def test_tests_import_the_installed_package():
    import trt_perception

    assert Path(trt_perception.__file__).parent != ROOT / 'trt_perception'


def test_python_processes_started_by_tests_import_the_installed_package():
    found = subprocess.run(
        [sys.executable, '-c', 'import trt_perception; print(trt_perception.__file__)'],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert Path(found.stdout.strip()).parent != ROOT / 'trt_perception'


def test_guard_refuses_to_test_the_sources():
    environment = {key: value for key, value in os.environ.items() if key != 'PYTHONPATH'}
    refused = subprocess.run(
        [
            sys.executable,
            '-m',
            'pytest',
            '-p',
            'no:cacheprovider',
            'test/repository/test_environment.py',
        ],
        cwd=ROOT,
        env={**environment, 'PYTEST_ADDOPTS': '', 'PYTEST_DISABLE_PLUGIN_AUTOLOAD': '1'},
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 4, refused.stdout
    assert 'trt_perception is not installed here' in refused.stderr


def _edit(package):
    (package / '__init__.py').write_text('changed')


def _delete(package):
    (package / '__init__.py').unlink()


def _add(package):
    (package / 'deleted_from_the_sources.py').write_text('')


@pytest.mark.parametrize(
    ('change', 'found'),
    [
        (lambda package: None, None),
        (_edit, '__init__.py'),
        (_delete, '__init__.py'),
        (_add, 'deleted_from_the_sources.py'),
    ],
)
def test_guard_notices_an_outdated_installation(tmp_path, change, found):
    package = tmp_path / 'trt_perception'
    shutil.copytree(ROOT / 'trt_perception', package)
    change(package)
    assert difference(package) == (found and Path(found))


needs_built_environment = pytest.mark.skipif(
    'TRT_PERCEPTION_IN_TEST' not in os.environ,
    reason='scripts/run would set up an environment; only scripts/test has prepared one',
)


@needs_built_environment
@pytest.mark.parametrize('own', [None, 'mine.xml'])
def test_run_keeps_the_profile_of_the_user_and_otherwise_sets_one_for_large_images(tmp_path, own):
    names = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')
    environment = {name: value for name, value in os.environ.items() if name not in names}
    if own:
        environment.update(dict.fromkeys(names, str(tmp_path / own)))
    command = [ROOT / 'scripts' / 'run', '--distro', os.environ['ROS_DISTRO'], 'doctor', '--json']
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    [profile] = [
        finding
        for finding in json.loads(process.stdout)['findings']
        if finding['name'] == 'transport profile'
    ]
    assert (own or 'fastdds_large_images.xml') in profile['found']


@needs_built_environment
def test_run_refuses_an_unknown_name_and_lists_known_names():
    refused = subprocess.run(
        [ROOT / 'scripts' / 'run', '--distro', os.environ['ROS_DISTRO'], 'no_such_executable'],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert refused.returncode == 2
    assert 'no_such_executable' in refused.stderr
    assert 'detector_node' in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@needs_built_environment
def test_run_starts_a_python_file_with_the_profile_for_large_images(tmp_path):
    program = tmp_path / 'a program.py'
    program.write_text(
        'import os, sys, trt_perception\n'
        "print(os.path.basename(os.environ['FASTDDS_DEFAULT_PROFILES_FILE']), sys.argv[1:])\n"
    )
    environment = {**os.environ}
    environment.pop('FASTDDS_DEFAULT_PROFILES_FILE', None)
    command = [ROOT / 'scripts/run', '--distro', os.environ['ROS_DISTRO'], program, 'a b']
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.stdout == "fastdds_large_images.xml ['a b']\n", process.stderr


@needs_built_environment
def test_run_refuses_a_python_file_that_does_not_exist(tmp_path):
    command = [ROOT / 'scripts/run', '--distro', os.environ['ROS_DISTRO'], tmp_path / 'none.py']
    process = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert process.returncode == 2
    assert 'none.py does not exist' in process.stderr


@needs_built_environment
@pytest.mark.parametrize('command', ['lifecycle', 'param'])
def test_run_has_the_commands_of_ros2(command):
    words = [ROOT / 'scripts/run', '--distro', os.environ['ROS_DISTRO'], command, '--help']
    process = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert process.returncode == 0
    assert f'scripts/run {command} get /detector' in process.stdout


@needs_built_environment
def test_run_goes_on_while_tests_run():
    process = subprocess.run(
        [ROOT / 'scripts' / 'run', '--distro', os.environ['ROS_DISTRO'], 'doctor', '--help'],
        env={**os.environ, 'TRT_PERCEPTION_IN_TEST': ''},  # as in the shell of a user
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr == ''


READY = """
. scripts/lib/environment.sh
env_select jazzy
env_key() { echo environment; }
env_sources() { echo "$SOURCES"; }
env_ros() { :; }
env_activate() { :; }
env_step() { mkdir install; touch built; }
ENV_LOCK_LIMIT_S=$LIMIT
env_ready
"""


@pytest.fixture
def built_checkout(tmp_path):
    """Return a checkout that looks set up, built from the sources `old`."""
    shutil.copytree(ROOT / 'scripts/lib', tmp_path / 'scripts/lib')
    for name, key in {'.venv': 'environment', 'install': 'old', '.env/jazzy': ''}.items():
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / '.complete').write_text(f'{key}\n')
    (tmp_path / '.env/jazzy/lock').write_text('scripts/test (process 1234)\n')
    return tmp_path


def start_ready(checkout, sources, limit_s):
    environment = {**os.environ, 'SOURCES': sources, 'LIMIT': str(limit_s)}
    environment.update({'TRT_PERCEPTION_IN_TEST': '', 'ROS_DISTRO': ''})
    command = ['bash', '-euo', 'pipefail', '-c', READY, 'scripts/run']
    return subprocess.Popen(
        command, cwd=checkout, env=environment, stderr=subprocess.PIPE, text=True
    )


def test_finished_build_needs_no_lock_alone(built_checkout):
    with (built_checkout / '.env/jazzy/lock').open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as scripts/test while tests run
        assert start_ready(built_checkout, 'old', 600).communicate()[1] == ''
    assert not (built_checkout / 'built').exists()


def test_build_names_the_run_that_it_waits_for_and_stops_at_its_limit(built_checkout):
    with (built_checkout / '.env/jazzy/lock').open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        process = start_ready(built_checkout, 'new', 1)
        waiting, stopped = process.communicate()[1].splitlines()
    assert process.returncode == 2
    assert 'waiting for scripts/test (process 1234)' in waiting
    assert 'scripts/test (process 1234) did not end within 1 s' in stopped
    assert not (built_checkout / 'built').exists()


def test_build_goes_on_when_the_other_run_ends(built_checkout):
    with (built_checkout / '.env/jazzy/lock').open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        process = start_ready(built_checkout, 'new', 600)
        assert 'waiting for scripts/test' in process.stderr.readline()
    process.communicate()
    assert process.returncode == 0
    assert (built_checkout / 'built').exists()
    assert (built_checkout / 'install/.complete').read_text() == 'new\n'


@pytest.mark.parametrize('module', ['json', 'trt_perception'])
def test_coverage_starts_in_processes_that_import_the_package(tmp_path, module):
    paths = [str(ROOT / 'scripts/lib/measured'), os.environ.get('PYTHONPATH')]
    environment = {
        **os.environ,
        'PYTHONPATH': os.pathsep.join(filter(None, paths)),
        'TRT_PERCEPTION_COVERAGE': str(ROOT / 'pyproject.toml'),
        'COVERAGE_FILE': str(tmp_path / 'data'),
    }
    program = f"import sys, {module}; print('coverage' in sys.modules)"
    process = subprocess.run(
        [sys.executable, '-c', program], env=environment, capture_output=True, text=True
    )
    measured = module == 'trt_perception'
    assert (process.stdout, process.stderr) == (f'{measured}\n', '')
    assert len(list(tmp_path.iterdir())) == measured


def test_files_left_out_of_coverage_exist():
    text = (ROOT / 'pyproject.toml').read_text()
    names = re.findall(r"'\*/trt_perception/(\S+\.py)'", text)
    assert {
        'gpu/bindings.py',
        'stages/tensorrt/runtime.py',
        'pipelines/cuda/cuda_pipeline.py',
    } <= set(names)
    assert [name for name in names if not (ROOT / 'trt_perception' / name).is_file()] == []


def test_run_refuses_a_checkout_that_the_user_cannot_write(tmp_path):
    shutil.copytree(ROOT / 'scripts/lib', tmp_path / 'scripts/lib')
    script = shutil.copy(ROOT / 'scripts/run', tmp_path / 'scripts/run')
    lock = tmp_path / '.env/jazzy/lock'
    lock.mkdir(parents=True)  # even root cannot write to a folder
    environment = {**os.environ, 'TRT_PERCEPTION_IN_TEST': ''}
    command = [script, '--distro', 'jazzy', 'doctor']
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert f'cannot write {lock}; the checkout belongs to user {tmp_path.owner()}' in line


@pytest.fixture
def copied_scripts(tmp_path):
    """Return a checkout that has only the scripts that open the environment."""
    shutil.copytree(ROOT / 'scripts/lib', tmp_path / 'scripts/lib')
    for name in ('demo', 'env', 'run'):
        shutil.copy(ROOT / 'scripts' / name, tmp_path / 'scripts' / name)
    return tmp_path


@pytest.mark.parametrize('distro', ['humble', 'iron', 'lyrical', 'rolling'])
@pytest.mark.parametrize(
    'command',
    ['scripts/demo', 'scripts/run doctor', '. scripts/env', 'scripts/demo --distro jazzy'],
)
def test_shell_of_an_unsupported_distribution_is_refused_before_the_set_up(
    copied_scripts, command, distro
):
    environment = {**os.environ, 'ROS_DISTRO': distro, 'TRT_PERCEPTION_IN_TEST': ''}
    process = subprocess.run(
        ['bash', '-c', command],
        cwd=copied_scripts,
        env=environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert {distro, 'jazzy', 'kilted'} <= set(re.findall(r'\w+', line))
    assert [path.name for path in copied_scripts.iterdir()] == ['scripts']


@pytest.mark.parametrize('distro', ['jazzy', 'kilted'])
def test_shell_of_a_supported_distribution_selects_this_distribution(copied_scripts, distro):
    program = '. scripts/lib/environment.sh; env_select; echo "$ENV_KIND $ENV_DISTRO"'
    environment = {**os.environ, 'ROS_DISTRO': distro, 'AMENT_PREFIX_PATH': '/opt/ros/any'}
    environment['TRT_PERCEPTION_VENV'] = ''
    process = subprocess.run(
        ['bash', '-euo', 'pipefail', '-c', program],
        cwd=copied_scripts,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.stdout == f'installed {distro}\n', process.stderr


def test_drawing_scenes_without_its_packages_prints_the_install_command(tmp_path):
    script = [sys.executable, ROOT / 'training/draw_scenes.py']
    # An interpreter without site packages lacks numpy and scikit-image.
    process = subprocess.run([script[0], '-S', '-E', script[1], '--help'], capture_output=True)
    assert process.returncode == 0
    command = [script[0], '-S', '-E', script[1], 'eval', tmp_path / 'scenes']
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1
    assert f'pip install -r {ROOT}/training/requirements.txt' in process.stderr
    assert 'Traceback' not in process.stderr
    assert not (tmp_path / 'scenes').exists()


# Tests of scripts/env. A stand-in replaces the library that sets up the environment and builds.

STAND_IN = """
env_select() { echo "selected: '$1' of $#"; }
env_ready() { :; }
env_open() { :; }
"""


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / 'scripts/lib').mkdir(parents=True)
    (tmp_path / 'scripts/lib/environment.sh').write_text(STAND_IN)
    shutil.copy(ROOT / 'scripts/env', tmp_path / 'scripts/env')
    return tmp_path


def in_bash(checkout, *command, **variables):
    environment = {key: os.environ[key] for key in os.environ if key != 'TRT_PERCEPTION_DISTRO'}
    return subprocess.run(
        ['bash', '--noprofile', '--norc', *command],
        cwd=checkout,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )


@pytest.mark.parametrize('arguments', [[], ['kilted'], ['--help'], ['-h', 'x y'], ['nonsense']])
def test_script_that_sources_env_keeps_its_arguments(checkout, arguments):
    script = checkout / 'mine.sh'
    script.write_text('set -eu\n. scripts/env\nprintf "<%s>" "$@"\n')
    process = in_bash(checkout, script, *arguments)
    assert process.returncode == 0, process.stderr
    *selected, kept = process.stdout.splitlines()
    assert selected == ["selected: '' of 1"] * 2
    assert kept == ''.join(f'<{argument}>' for argument in arguments or [''])


def test_environment_variable_selects_the_ros_distribution(checkout):
    line = 'TRT_PERCEPTION_DISTRO=kilted . scripts/env && echo "left: ${TRT_PERCEPTION_DISTRO:-}"'
    process = in_bash(checkout, '-c', line)
    assert process.stdout.splitlines() == ["selected: 'kilted' of 1"] * 2 + ['left: ']


def test_argument_in_a_terminal_is_refused_with_the_correct_command(checkout):
    process = in_bash(checkout, '-i', '-c', '. scripts/env kilted; echo "status $?"')
    assert process.stdout.splitlines() == ['status 2']
    assert 'TRT_PERCEPTION_DISTRO=kilted . scripts/env' in process.stderr


def test_env_help_shows_the_command(checkout):
    process = in_bash(checkout, 'scripts/env', '--help')
    assert process.returncode == 0
    assert 'TRT_PERCEPTION_DISTRO=kilted . scripts/env' in process.stdout
    assert 'shellcheck' not in process.stdout
    assert in_bash(checkout, 'scripts/env').returncode == 2
