# SPDX-License-Identifier: Apache-2.0
"""Run programs of the package as forks of a process that has already imported their modules.

The imports of most programs in tests take half a second of CPU, their main cost. A fork starts
after the imports. Arguments, environment, standard streams, signals and interpreter shutdown work
as in a started program. A program is started instead if its environment differs in a variable that
Python reads before the imports (`can_fork`).
"""

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

if __name__ != '__main__':
    from support.ties import tie_open

#: Longest life of a program in seconds, unless the test sets another limit.
LONGEST_S = 900
PROGRAMS = {
    'detections_3d': 'trt_perception.ros.boxes_3d.detections_3d',
    'detector_node': 'trt_perception.ros.detector_program',
    'doctor': 'trt_perception.ros.doctor.doctor',
    'replay_images': 'trt_perception.ros.replay_images',
}
#: Scripts of test/support/nodes that can be forked. Tests send signals to the other scripts during
#: their imports.
SCRIPT_NAMES = (
    *('bond_node.py', 'fault_node.py', 'jpeg_node.py', 'numbered_camera.py', 'scripted_node.py'),
)
#: Installed modules that the programs and rclpy import late. The server imports them in advance.
LATE_IMPORTS = (
    'onnxruntime',
    'geometry_msgs.msg',
    'rosidl_generator_py',
    'trt_perception.commands',
)
#: Prefixes of variables that Python, the library loader or OpenCV read only once, at the start.
EARLY_VARIABLES = ('PYTHON', 'LD_', 'OPENCV_', 'OPENBLAS_')
#: Seconds after a signal in which a forked node must end. Longer than in production, because the
#: machine may be busy.
SIGNAL_LIMIT_S = 60.0
#: At the exit of a fork, LTTng looks at the stacks of threads that only the server has. glibc must
#: not unmap these stacks when threads of the fork end.
KEEP_STACKS = f'glibc.pthread.stack_cache_size={2**40}'
_STATUS_BYTES = 4
_lock = threading.Lock()
_servers = []


def _early_variables(environment):
    names = (name for name in environment if name.startswith(EARLY_VARIABLES))
    return {name: environment[name] for name in names if name != 'PYTHONUNBUFFERED'}


@functools.cache
def _early_at_server_start():
    """Return the EARLY_VARIABLES variables, with their values at the first call of `can_fork`."""
    return _early_variables(os.environ)


def can_fork(command, environment):
    """Return whether a fork of the server behaves as a new process with this command.

    The fork cannot change variables that Python reads before the imports. So these variables must
    have the same values in `environment` and in the server.
    """
    program, *words = map(Path, command[:2])
    is_program = program.parent.name == 'trt_perception' and program.name in PROGRAMS
    is_script = command[0] == sys.executable and bool(words) and words[0].name in SCRIPT_NAMES
    if not (is_program or is_script):
        return False
    return hasattr(os, 'pidfd_open') and _early_variables(environment) == _early_at_server_start()


def run(command, *, timeout, env=None):
    """Run a program to its end. Return a subprocess.CompletedProcess with its output as text.

    Raises:
        subprocess.TimeoutExpired: the program did not end. It is killed.
    """
    command = list(map(str, command))
    environment = dict(os.environ if env is None else env)
    if not can_fork(command, environment):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, env=environment
        )
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = ForkedProcess(command, environment, stdout.fileno(), stderr.fileno())
        try:
            process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        stdout.seek(0)
        stderr.seek(0)
        texts = stdout.read().decode(), stderr.read().decode()
    return subprocess.CompletedProcess(command, process.returncode, *texts)


class ForkedProcess:
    """A program forked by the server, with the interface of subprocess.Popen.

    Args:
        command: a command that passes `can_fork`.
        environment: the complete environment of the program.
        stdout: a file descriptor; None makes a pipe, readable as attribute `stdout`.
        stderr: a file descriptor; None uses the program's stdout.
        longest_s: SIGALRM ends the program after this time in seconds.
    """

    def __init__(self, command, environment, stdout=None, stderr=None, longest_s=LONGEST_S):
        self.args = command
        self.stdout = self.returncode = None
        self._waiting = threading.Lock()
        with contextlib.ExitStack() as closing:
            if stdout is None:
                pipe, stdout = os.pipe()
                closing.callback(os.close, stdout)
                self.stdout = os.fdopen(pipe, encoding='utf-8', errors='replace')
            self._status, status = os.pipe()
            closing.callback(os.close, status)
            given = [stdout, stdout if stderr is None else stderr, status]
            request = {'argv': command, 'environment': environment, 'folder': os.getcwd()}
            request['longest_s'] = longest_s
            with _lock:
                server = _running_server()
                socket.send_fds(server, [json.dumps(request).encode()], given)
                answer, (self._process, *_), *_ = socket.recv_fds(server, 32, 1)
        self.pid = int(answer)
        tie_open(self._process)

    def poll(self):
        """Return the exit code; None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        """Return the exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: the program is still running.
        """
        with self._waiting:
            if self.returncode is None:
                poll = select.poll()
                poll.register(self._status, select.POLLIN)
                if not poll.poll(None if timeout is None else 1e3 * timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout)
                status = os.read(self._status, _STATUS_BYTES)
                self.returncode = int.from_bytes(status, 'little', signed=True)
                os.close(self._status)
                os.close(self._process)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def _running_server():
    """Return the socket to this process's server. Start the server at the first call."""
    if not _servers:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        unset = ('PYTHONUNBUFFERED', 'TRT_PERCEPTION_COVERAGE', 'COVERAGE_PROCESS_START')
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment['GLIBC_TUNABLES'] = KEEP_STACKS
        with its:
            process = subprocess.Popen(
                [sys.executable, __file__, str(its.fileno())],
                pass_fds=[its.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        _servers.append(ours)
        atexit.register(_end, ours, process)
    return _servers[0]


def _end(server, process):
    """End the server and wait for it. The CPU time of a child counts only after the wait."""
    server.close()
    process.wait()


# Functions of the server process.


def serve(socket_number):
    """Fork programs until the test process has ended. The function returns only in each fork."""
    for module in PROGRAMS.values():
        importlib.import_module(module)
    for module in LATE_IMPORTS:
        if not _starts_threads(module):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(module)
    importlib.import_module('trt_perception.ros.runtime.process').SIGNAL_LIMIT_S = SIGNAL_LIMIT_S
    faulthandler.enable()  # SIGABRT prints the stacks of a fork to its own standard error
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ended, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    running = {}  # maps a process ID to the pipe for the exit status
    with socket.socket(fileno=socket_number) as requests:
        while True:
            ready, *_ = select.select([requests, ended], [], [])
            if ended in ready:
                os.read(ended, 1000)
                _reap(running)
            if requests in ready:
                request, given, *_ = socket.recv_fds(requests, 2**20, 3)
                if not request:
                    os._exit(0)
                pid = os.fork()
                if not pid:
                    for number in (ended, wakes, *running.values()):
                        os.close(number)
                    break
                process = os.pidfd_open(pid)
                socket.send_fds(requests, [str(pid).encode()], [process])
                *outputs, running[pid] = given
                for number in (process, *outputs):
                    os.close(number)
    _become(given, **json.loads(request))


def _starts_threads(module):
    """Return whether the import of a module starts threads, as ONNX Runtime 1.32 does.

    A fork has no copy of these threads, but would wait for their end at its exit. So each fork
    must import the module itself.
    """
    child = os.fork()
    if not child:
        count = len(os.listdir('/proc/self/task'))
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
        os._exit(len(os.listdir('/proc/self/task')) > count)
    _, status = os.waitpid(child, 0)
    return status != 0


def _reap(running):
    for pid in list(running):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            with contextlib.suppress(BrokenPipeError):
                os.write(running[pid], code.to_bytes(_STATUS_BYTES, 'little', signed=True))
            os.close(running.pop(pid))


def _become(given, argv, environment, folder, longest_s):
    """Put this fork into the state of a started program after its imports."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, longest_s)
    stdout, stderr, status = given
    os.close(status)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if os.environ.get('PYTHONUNBUFFERED'):
        for name, number in (('stdout', 1), ('stderr', 2)):
            old = getattr(sys, name)
            raw = io.FileIO(number, 'w', closefd=False)
            stream = io.TextIOWrapper(raw, old.encoding, old.errors, write_through=True)
            setattr(sys, name, stream)
    sys.argv = argv[1:] if argv[0] == sys.executable else argv
    if settings := environment.get('TRT_PERCEPTION_COVERAGE'):
        import coverage

        os.environ['COVERAGE_PROCESS_START'] = settings
        coverage.process_startup()
        del os.environ['COVERAGE_PROCESS_START']


def _run():
    """Run the program or the script that sys.argv names."""
    program = Path(sys.argv[0])
    if program.name in PROGRAMS:
        commands = importlib.import_module('trt_perception.commands')
        sys.exit(getattr(commands, program.name)())
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name='__main__')


if __name__ == '__main__':
    del sys.path[0]  # this folder
    serve(int(sys.argv[1]))
    _run()
