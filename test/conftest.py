# SPDX-License-Identifier: Apache-2.0
"""Run tests against the installed package, each test process in its own ROS domain.

colcon runs pytest in the source folder, where `import trt_perception` would import the sources.
Tests would then pass although the installed package lacks a module or a data file. Three measures
prevent this. The source folder is removed from `sys.path` before a test is imported. The session
stops if the package still comes from the sources or differs from them. Tests run in an empty
folder, so that the Python processes that they start cannot import the sources either.
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

from support import durations, golden, optional_packages

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / 'trt_perception'
TEST_FOLDER = ROOT / 'test'
ROS_TEST_FOLDER = TEST_FOLDER / 'ros'
#: TensorRT needs minutes for some engines. So tests that build engines have a longer time limit.
ENGINE_BUILD_FACTOR = 3
#: Largest number of tests that may pass only when run again. A run with more such tests fails.
MOST_RERUNS = 5
STDERR = pytest.StashKey()
FAILED = pytest.StashKey()
#: Tests whose process ended once before them.
CRASHED = set()
NUMBERS = itertools.count()
#: The file descriptor with the lock of this process's ROS domain.
DOMAIN_LOCKS = []
BUILD_FIRST = 'scripts/test builds and tests; by hand: colcon build, source install/setup.bash'


def leave_source_folder():
    """Remove the source folder from the module search path."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or '.').resolve() != ROOT]


def installed_package():
    """Return the folder of the installed package, or stop the session with an error."""
    spec = importlib.util.find_spec('trt_perception')
    if spec is None or not spec.origin:
        raise pytest.UsageError(f'trt_perception is not installed here: {BUILD_FIRST}')
    # Links are not resolved: colcon build --symlink-install installs links to the sources.
    package = Path(spec.origin).parent
    if package == SOURCE:
        raise pytest.UsageError(
            f'tests must import the installed trt_perception (got the sources, {package}): '
            f'{BUILD_FIRST}'
        )
    return package


def change_domain():
    """Change to a ROS domain that no other run uses, and lock it until the next call.

    scripts/lib/environment.sh uses the same locks. Without a free domain, use a shared one.
    """
    start = int(os.environ['ROS_DOMAIN_ID']) if DOMAIN_LOCKS else os.getpid()
    earlier = DOMAIN_LOCKS.copy()
    DOMAIN_LOCKS.clear()
    for index in range(100):
        # The ports of domain 102 and above may overlap Linux's ephemeral ports.
        domain = (start + index) % 100 + 1
        path = Path(tempfile.gettempdir(), f'trt_perception-domain-{domain}.lock')
        try:
            lock = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        except PermissionError:  # the file belongs to another user
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        DOMAIN_LOCKS.append(lock)
        break
    else:
        domain = start % 100 + 1
    os.environ['ROS_DOMAIN_ID'] = str(domain)
    for lock in earlier:
        os.close(lock)


def difference(package):
    """Return the first module that differs between installed package and sources, or None."""
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
gc.disable()  # pytest_collection_finish enables it again
# A shell starts a background job with SIGINT ignored, and nohup a program with SIGHUP ignored.
# Child processes inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Each test process has its own domain, because several run at the same time.
CHOOSES_DOMAIN = 'PYTEST_XDIST_WORKER' in os.environ or not os.environ.get('ROS_DOMAIN_ID')
if CHOOSES_DOMAIN:
    change_domain()
    os.environ['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
# Set before the first import of NumPy: its threads would compete with the other test processes.
os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')


def pytest_configure(config):
    """Stop before the first test if the installed package is missing or outdated."""
    config.addinivalue_line('markers', 'timeout(seconds): replaces the limit of pyproject.toml')
    config.pluginmanager.register(golden)
    golden.rewriting = config.getoption('--rewrite-golden')
    config.stash[STDERR] = os.fdopen(os.dup(2), 'w')  # before output is captured
    # SIGALRM prints the stacks of all threads, and then ends the process as by default.
    faulthandler.register(signal.SIGALRM, file=config.stash[STDERR], chain=True)
    for line in (
        'engine_build: builds engines; --quick omits the test',
        'ros: uses ROS 2 outside test/ros; --quick omits the test',
        'each_distro: uses rclpy or DDS; .ci/run runs the test on each ROS 2 distribution',
        'whole_gpu: needs the GPU alone',
        'unmeasured: no coverage, which would be too slow or disturb a signal',
    ):
        config.addinivalue_line('markers', line)
    if config.getoption('--store-durations') and 'PYTEST_XDIST_WORKER' not in os.environ:
        config.pluginmanager.register(durations.Recorder())
    package = installed_package()
    changed = difference(package)
    if changed:
        raise pytest.UsageError(
            f'the installed trt_perception differs from the sources in {changed} ({package}): '
            f'{BUILD_FIRST}'
        )


def pytest_collection_modifyitems(config, items):
    if config.getoption('--quick'):
        leave_out(config, items, lambda item: is_marked(item, 'engine_build', 'ros'))
    if config.getoption('--touches-ros'):
        leave_out(config, items, lambda item: not is_marked(item, 'each_distro'))
    if 'PYTEST_XDIST_WORKER' in os.environ:
        items[:] = side_by_side(items)


def is_marked(item, *markers):
    return any(item.get_closest_marker(marker) for marker in markers)


def leave_out(config, items, condition):
    left_out = {item for item in items if condition(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def side_by_side(items):
    """Order the test files for processes that each run one file at a time.

    The slowest files come first, so that a long file does not start last. Files with ROS mostly
    wait, so each alternates with a file without ROS.
    """
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = sorted(files, key=lambda path: (durations.duration_of(path), len(files[path])))
    waits = [
        path
        for path in order
        if ROS_TEST_FOLDER in path.parents or is_marked(files[path][0], 'ros')
    ]
    works = [path for path in order if path not in waits]
    ordered = []
    while waits or works:
        for queue in (waits, works):
            if queue:
                ordered += files[queue.pop()]
    return ordered


def pytest_collection_finish():
    """Fail if a test module put the source folder back into the module search path."""
    leave_source_folder()
    module = sys.modules.get('trt_perception')
    if module and module.__file__ and Path(module.__file__).parent == SOURCE:
        raise pytest.UsageError(f'a test module imported the sources of trt_perception, {SOURCE}')
    # The objects that exist now live until the end, so garbage collections may skip them.
    # Reference counts free most new objects. A collection after every 700 new objects would cost
    # 3 % of the time.
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Fail if too many tests passed only when run once more (scripts/test, --reruns)."""
    reporter = session.config.pluginmanager.getplugin('terminalreporter')
    reruns = len(reporter.stats.get('rerun', ())) if reporter else 0
    if reruns > MOST_RERUNS:
        print(f'{reruns} tests timed out or crashed, and ran again; at most {MOST_RERUNS} may')
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure():
    """Collect garbage once. pytest and Python would otherwise do so eight times at the end."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser):
    parser.addini('timeout', 'limit of a test in seconds; ends the process', default='300')
    parser.addoption(
        '--touches-ros',
        action='store_true',
        help='only tests that use rclpy or DDS, which differ between ROS 2 distributions',
    )
    parser.addoption(
        '--quick', action='store_true', help='omit tests that use ROS 2 or build engines'
    )
    parser.addoption(
        '--store-durations',
        action='store_true',
        help='write the durations of the test files to test/durations.json',
    )
    parser.addoption(
        '--rewrite-golden',
        action='store_true',
        help='write the files of test/golden again instead of comparing with them',
    )
    parser.addoption(
        '--share', metavar='I/N', help='run only share I of N of the remaining test files'
    )


def pytest_ignore_collect(collection_path, config):
    within_ros = collection_path == ROS_TEST_FOLDER or ROS_TEST_FOLDER in collection_path.parents
    is_file = collection_path.suffix == '.py'
    if config.getoption('--quick') and within_ros:
        return True
    if config.getoption('--touches-ros') and is_file and not within_ros:
        return True
    share = config.getoption('--share')
    if share and is_file and collection_path.name.startswith('test_'):
        return collection_path not in files_of(share) or None
    return None


@functools.cache
def files_of(share):
    """Return the test files of one share, such as '1/2'. Shares contain no files that need ROS.

    Processes with fixed shares need no scheduler process. pytest-xdist's scheduling takes longer
    than most tests.
    """
    number, count = map(int, share.split('/'))
    paths = [
        path for path in TEST_FOLDER.rglob('test_*.py') if ROS_TEST_FOLDER not in path.parents
    ]
    return durations.share_of(number, count, paths)


def pytest_pycollect_makemodule(module_path, parent):
    return optional_packages.Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    return (yield from optional_packages.skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    return (yield from optional_packages.skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.hookimpl(trylast=True, optionalhook=True)
def pytest_handlecrashitem(crashitem, report):
    """Count a test as run again if its process crashed or was ended by the time limit.

    pytest-xdist replaces the process, and gives the replacement this test and the rest of its
    file. A test that ends two processes has failed.
    """
    if crashitem not in CRASHED:
        CRASHED.add(crashitem)
        report.outcome = 'rerun'


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item):
    """After a failure, end what tests share, and change the domain.

    The next test, or the same one when run again, then starts with new processes, and with DDS
    ports that nobody has used.
    """
    if item.stash.get(FAILED, False):
        del item.stash[FAILED]
        item.session._setupstate.teardown_exact(None)
        if CHOOSES_DOMAIN:
            change_domain()


def pytest_make_parametrize_id(val, argname):
    """Shorten test names, because some parameters are whole files."""
    long = isinstance(val, str | bytes) and len(val) > 80
    return f'{argname} of {len(val)}' if long else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """End the process if a test hangs, even in a library that holds Python's lock.

    This timer needs no thread. pytest-timeout and faulthandler start a thread for each test,
    which takes longer than many tests.
    """
    if marker := item.get_closest_marker('timeout'):
        seconds = marker.args[0]
    else:
        factor = ENGINE_BUILD_FACTOR if is_marked(item, 'engine_build') else 1
        seconds = factor * float(item.config.getini('timeout'))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with measured_nowhere() if is_marked(item, 'unmeasured') else contextlib.nullcontext():
            return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def measured_nowhere():
    """Disable coverage in this process and in the processes that this process starts."""
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
    """Restore the loggers afterwards, because a node in this process changes them permanently."""
    logger, root = logging.getLogger('trt_perception'), logging.getLogger()
    handlers, propagate = logger.handlers[:], logger.propagate
    levels = [(one, one.level) for one in (logger, root)]
    yield
    for one, level in levels:
        one.setLevel(level)
    logger.handlers[:], logger.propagate = handlers, propagate


@pytest.fixture
def tmp_path(tmp_path_factory, request):
    """Return a new folder faster than pytest's fixture, which lists folders and makes a link."""
    name = re.sub(r'\W', '_', request.node.name)[:30]
    path = tmp_path_factory.getbasetemp() / f'{name}-{next(NUMBERS)}'
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(autouse=True, scope='module')
def _old_objects():
    """Exclude objects older than the test file from garbage collections in its tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _own_log_levels():
    with kept_log_levels():
        yield


@pytest.fixture(autouse=True, scope='module')
def _log_levels_of_the_module():
    """Restore the loggers after a file whose tests share a node."""
    with kept_log_levels():
        yield


@pytest.fixture(autouse=True, scope='session')
def _no_lean_runtime_with_simulated_cuda():
    """Hide the real lean runtime, which would end a process whose GPU is simulated."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, 'tensorrt_lean', None)
        yield


@pytest.fixture(autouse=True, scope='session')
def _empty_working_folder(tmp_path_factory):
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp('cwd'))
    yield
    os.chdir(before)
