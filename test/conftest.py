"""Tests run against the installed package, in a ROS domain of their own.

colcon runs pytest in the source folder, where `import trt_perception` would find the sources:
tests would pass although the installed tree lacks a module or a data file. So the source folder
leaves `sys.path` before any test is imported, the session stops where the package still comes
from there or differs from it, and tests run in an empty folder, which keeps the Python processes
that they start from finding the sources too.
"""

import contextlib
import faulthandler
import fcntl
import functools
import gc
import importlib.util
import itertools
import logging
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from support import golden, optional_packages

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / 'trt_perception'
# An import, also in the text of a program; nodes, commands and benchmarks that start one.
ROS = re.compile(
    r'\b(import|from|importorskip\(.) *'
    r'(rclpy|rosbag2_py|cv_bridge|ament_index|launch(_ros|_testing)?\b|\w+_(msgs|interfaces)\b)'
    r'|trt_perception\.ros\b|(executable|run)\(.(detector_node|doctor|replay_images)\b'
    r"|\bbenchmarks' / '(cameras|frame_path|transport)\b"
)
IMPORTED = re.compile(r'^ *(?:from|import) ([\w.]+)(?: import (\w+))?', re.MULTILINE)
PLUGINS = re.compile(r'^pytest_plugins = \[([^]]*)', re.MULTILINE)
# Files of more than ten seconds, roughly: in the order in which scripts/test shall begin them.
SLOWEST = {
    name: seconds
    for seconds, names in {
        100: ['test_soak'],
        70: ['test_node_silence', 'test_build_precisions', 'test_build_agreement'],
        60: ['test_replay_images', 'test_node_many_cameras'],
        45: ['test_node_start', 'test_build_engine', 'test_bad_frames', 'test_demo'],
        40: [
            'test_transition_faults',
            'test_build_agreement_gpu',
            'test_node_signals',
            'test_doctor',
        ],
        30: ['test_untrusted_readers', 'test_node_cameras', 'test_node_jpeg', 'test_node_qos'],
        20: ['test_faults', 'test_node_counting', 'test_build_query_decoder', 'test_antialias'],
        17: ['test_node_debug_image', 'test_node_lifecycle', 'test_demo_tasks'],
        15: ['test_quantise_weights', 'test_intake', 'test_bench_cameras', 'test_build_batches'],
        10: ['test_quantise', 'test_node_images', 'test_shared_intake', 'test_node_many_gpus'],
    }.items()
    for name in names
}
# Seconds of those that take more than 1.5 with --quick; all others take about 0.3.
QUICK = {
    f'test_{name}': seconds
    for seconds, names in {
        5: 'benchmark_pace untrusted_readers quantise',
        3: 'antialias benchmark_engine commands',
        2.5: 'host_preprocess literals detector_schedules',
        2: 'gpu_rollback detector_models host_batches evaluation_compare',
        1.6: 'ties letterbox graph_repair jpeg onnx_spellings evaluation_mistakes encodings api'
        ' calibration_ranges build_refused_images task_kernels detector_simulated evaluate_tasks'
        ' build_refused_outputs nms',
    }.items()
    for name in names.split()
}
# Coverage is measured neither in these files nor in the programs that they start: it would take a
# tenth of the whole time, for a two-hundredth of the branches.
MEASURED_ELSEWHERE = (
    'antialias bad_frames bench_cameras bounded bounded_work build_agreement '
    'build_agreement_gpu build_precisions build_query_decoder build_store cuda_jpeg '
    'cuda_jpeg_unread cuda_names cuda_slot dangerous_calls declared_imports '
    'decoders_in_pipelines demo demo_tasks dense_decoder detector_models detector_schedules '
    'detector_simulated docs docs_building encodings environment equivalence error_texts '
    'fifos host_batches host_preprocess hostile_messages imports letterbox literals '
    'manifest_json nms node_cameras node_counting node_images node_lifecycle '
    'node_many_cameras node_many_gpus node_parameters node_qos node_remapped node_signals '
    'node_start node_tasks quantise_weights recognition_ultralytics scheduler shared_intake '
    'shipped_models soak tensorrt_names ties transition_faults untrusted_files '
    'untrusted_races upload'
)
UNMEASURED = {f'test_{name}' for name in MEASURED_ELSEWHERE.split()}
STDERR = pytest.StashKey()
NUMBERS = itertools.count()
BUILD_FIRST = 'scripts/test builds and tests; by hand: colcon build, source install/setup.bash'


def leave_source_folder():
    """Remove the source folder from the module search path."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or '.').resolve() != ROOT]


def installed_package():
    """Return the folder of the installed package, or stop the session in one sentence."""
    spec = importlib.util.find_spec('trt_perception')
    if spec is None or not spec.origin:
        raise pytest.UsageError(f'trt_perception is not installed here: {BUILD_FIRST}')
    # Not resolved: colcon build --symlink-install installs links to the sources, and that is fine.
    package = Path(spec.origin).parent
    if package == SOURCE:
        raise pytest.UsageError(
            f'tests must import the installed trt_perception (got the sources, {package}): '
            f'{BUILD_FIRST}'
        )
    return package


def free_domain():
    """Return a ROS domain that no other run uses, locked for as long as this process lives.

    The same locks as in scripts/lib/environment.sh; without a free domain, one that is shared.
    """
    start = os.getpid()
    for index in range(100):
        domain = (start + index) % 100 + 1  # 102 and above would meet Linux's ephemeral ports
        path = Path(tempfile.gettempdir(), f'trt_perception-domain-{domain}.lock')
        lock = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        return str(domain)  # the lock lasts as long as this process
    return str(start % 100 + 1)


def difference(package):
    """Return the first module in which the installed package differs from the sources, or None."""
    modules = {path.relative_to(SOURCE) for path in SOURCE.rglob('*.py')}
    modules |= {path.relative_to(package) for path in package.rglob('*.py')}
    for module in sorted(modules):
        source, installed = SOURCE / module, package / module
        if not source.exists() or not installed.exists():
            return module
        if source.read_bytes() != installed.read_bytes():
            return module
    return None


leave_source_folder()
gc.disable()  # while tests are collected
# A shell that starts the run in the background has it ignore Ctrl-C, and all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Each process that runs tests has a domain of its own: several run side by side.
if 'PYTEST_XDIST_WORKER' in os.environ or not os.environ.get('ROS_DOMAIN_ID'):
    os.environ['ROS_DOMAIN_ID'] = free_domain()
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
# Before anybody imports NumPy: its threads would take turns with those of the other processes.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')


def pytest_configure(config):
    """Stop before the first test where the installed package is missing or out of date."""
    config.addinivalue_line(
        'markers', 'timeout(seconds): another limit than that of pyproject.toml'
    )
    golden.rewriting = config.getoption('--rewrite-golden')
    config.stash[STDERR] = os.fdopen(os.dup(2), 'w')  # before output is captured
    # SIGALRM says where every thread stands, and then ends the process as it does by default.
    faulthandler.register(signal.SIGALRM, file=config.stash[STDERR], chain=True)
    config.addinivalue_line('markers', 'engine_build: builds engines; --quick leaves it out')
    config.addinivalue_line(
        'markers',
        'any_ros: others test what it uses of ROS 2; --touches-ros leaves it out',
    )
    config.addinivalue_line('markers', 'needs(package, ...): skipped where one is not installed')
    config.addinivalue_line('markers', 'whole_gpu: nobody else may use the GPU meanwhile')
    config.addinivalue_line('markers', 'unmeasured: one test alone, as the files in UNMEASURED')
    package = installed_package()
    changed = difference(package)
    if changed:
        raise pytest.UsageError(
            f'the installed trt_perception differs from the sources in {changed} ({package}): '
            f'{BUILD_FIRST}'
        )


def pytest_collection_modifyitems(config, items):
    for option, marker in (('--quick', 'engine_build'), ('--touches-ros', 'any_ros')):
        if config.getoption(option):
            left_out = {item for item in items if item.get_closest_marker(marker)}
            config.hook.pytest_deselected(items=list(left_out))
            items[:] = [item for item in items if item not in left_out]
    if 'PYTEST_XDIST_WORKER' in os.environ:
        items[:] = side_by_side(items)


def side_by_side(items):
    """Order tests for processes that take file after file.

    The slowest files come first, so that none begins when all else is done. Those with ROS wait
    most of the time, so one of the others comes with each.
    """
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = sorted(files, key=lambda path: (SLOWEST.get(path.stem, 0), len(files[path])))
    waits = [path for path in order if touches_ros(path)]
    works = [path for path in order if not touches_ros(path)]
    ordered = []
    while waits or works:
        for queue in (waits, works):
            if queue:
                ordered += files[queue.pop()]
    return ordered


def pytest_collection_finish():
    """Catch a test that brought the source folder back."""
    leave_source_folder()
    module = sys.modules.get('trt_perception')
    if module and module.__file__ and Path(module.__file__).parent == SOURCE:
        raise pytest.UsageError(f'a test module imported the sources of trt_perception, {SOURCE}')
    # Objects that stay to the end: nobody need look at them, neither before nor again. Most others
    # are gone by themselves: a look for cycles after every 700 would cost a thirtieth of the time.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure():
    """Look through what is left once; pytest and Python would do so eight times at the end."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addini('timeout', 'seconds that a test may take; then the process ends', default='180')
    parser.addoption(
        '--touches-ros',
        action='store_true',
        help='only test files that name something of ROS 2, or whose helpers do',
    )
    parser.addoption(
        '--quick', action='store_true', help='no test that has to do with ROS 2 or builds engines'
    )
    parser.addoption(
        '--rewrite-golden',
        action='store_true',
        help='write the files of test/golden again instead of comparing texts with them',
    )
    parser.addoption(
        '--share', metavar='I/N', help='only the I-th of N shares of the test files that remain'
    )


def pytest_ignore_collect(collection_path, config):
    if collection_path.suffix != '.py':
        return None
    if config.getoption('--touches-ros') and not touches_ros(collection_path):
        return True
    if config.getoption('--quick') and touches_ros(collection_path):
        return True
    share = config.getoption('--share')
    if share and collection_path.name.startswith('test_'):
        return collection_path not in files_of(share, config.getoption('--quick')) or None
    return None


@functools.cache
def files_of(share, quick):
    """Return the test files of a share, '1/2' or '2/2': each to the one with least, slowest first.

    A process that collects its share only needs no other that deals tests out to it, which takes
    longer than most tests do.
    """
    number, count = map(int, share.split('/'))
    paths = (ROOT / 'test').rglob('test_*.py')
    paths = [path for path in paths if not (quick and touches_ros(path))]
    paths.sort(key=lambda path: (-QUICK.get(path.stem, 0.3), path))
    shares = [(0.0, index, []) for index in range(count)]
    for path in paths:
        seconds, index, files = min(shares)
        files.append(path)
        shares[index] = (seconds + QUICK.get(path.stem, 0.3), index, files)
    return frozenset(shares[number - 1][2])


def pytest_pycollect_makemodule(module_path, parent):
    return optional_packages.Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    optional_packages.skip_without_needed(item)
    return (yield from optional_packages.skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from optional_packages.skipping())


def pytest_make_parametrize_id(val, argname):
    """Keep the names of tests short: some are given whole files."""
    long = isinstance(val, str | bytes) and len(val) > 80
    return f'{argname} of {len(val)}' if long else None


@functools.cache
def touches_ros(path):
    """Return whether a test file, or a helper of test/support that it imports, names ROS 2.

    By name and not by import, because programs that tests start may stand there as text.
    """
    text = path.read_text(encoding='utf-8')
    if ROS.search(text):
        return True
    names = [name for found in IMPORTED.findall(text) for name in (found[0], '.'.join(found))]
    for plugins in PLUGINS.findall(text):  # are imported too, by their names
        names += re.findall(r'[\w.]+', plugins)
    files = [f'{name.replace(".", "/")}.py' for name in names]
    helpers = [folder / file for file in files for folder in (path.parent, ROOT / 'test')]
    return any(touches_ros(helper) for helper in helpers if helper.is_file())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """End the process where a test hangs, also in a library that holds the interpreter's lock.

    pytest-timeout and faulthandler's own limit start a thread for each test, which takes longer
    than many tests do; a timer costs nothing.
    """
    marker = item.get_closest_marker('timeout')
    seconds = float(marker.args[0] if marker else item.config.getini('timeout'))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    unmeasured = item.path.stem in UNMEASURED or item.get_closest_marker('unmeasured')
    try:
        with measured_nowhere() if unmeasured else contextlib.nullcontext():
            return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def measured_nowhere():
    """Measure coverage neither in this process nor in those that it starts."""
    name = 'TRT_PERCEPTION_COVERAGE'
    settings = os.environ.pop(name, None)
    coverage = sys.modules.get('coverage')
    measured = coverage and coverage.Coverage.current()
    if measured:
        measured.stop()
    try:
        yield
    finally:
        if measured:
            measured.start()
        if settings is not None:
            os.environ[name] = settings


@contextlib.contextmanager
def kept_log_levels():
    """Leave loggers as they were: a node in this process sets ours for good, others the root's."""
    logger, root = logging.getLogger('trt_perception'), logging.getLogger()
    handlers, propagate = logger.handlers[:], logger.propagate
    levels = [(one, one.level) for one in (logger, root)]
    yield
    for one, level in levels:
        one.setLevel(level)
    logger.handlers[:], logger.propagate = handlers, propagate


@pytest.fixture
def tmp_path(tmp_path_factory, request):
    """As pytest's own, which looks through all folders for a free number and links the newest."""
    name = re.sub(r'\W', '_', request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f'{name}-{next(NUMBERS)}'
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True, scope='module')
def _old_objects():
    """Whoever looks for cycles in a test need not look at what was there before its file."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_log_levels():
    with kept_log_levels():
        yield


@pytest.fixture(autouse=True, scope='module')
def _log_levels_of_the_module():
    """The same for nodes that all tests of a file share."""
    with kept_log_levels():
        yield


@pytest.fixture(autouse=True, scope='session')
def _empty_working_folder(tmp_path_factory):
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp('cwd'))
    yield
    os.chdir(before)
