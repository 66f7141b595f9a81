# SPDX-License-Identifier: Apache-2.0
"""Tools on a full disk report which files they saved, and leave no incomplete files.

A limit on the file size simulates a full disk. Standard output goes to /dev/full.
"""

import errno
import importlib
import io
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from support.models.fixed_model import OUTPUTS, small_onnx
from support.models.support_models import write_model
from support.models.tiny_model import CLASS_NAMES, expected_detections, write_tiny_model
from support.nodes.faults import PLAN
from support.oracles.evaluation_support import truth, written
from support.programs import executable, unmeasured
from trt_perception.errors import WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.process import standard_streams

pytestmark = pytest.mark.ros


def run_with_full_output(tool, *arguments):
    """Run a tool whose standard output is a full disk."""
    with open('/dev/full', 'w') as target:
        ended = subprocess.run(
            [executable(tool), *map(str, arguments)],
            env=unmeasured(),
            stdout=target,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert 'Traceback' not in ended.stderr
    assert 'Exception ignored' not in ended.stderr
    return ended


def run_with_small_files(tool, arguments, largest, monkeypatch):
    """Run a tool in this process. Larger files fail as on a full disk."""
    main = importlib.import_module(f'trt_perception.offline.tools.{tool}').main
    # Python would load a truncated bytecode file as if it were complete.
    monkeypatch.setattr(sys, 'dont_write_bytecode', True)
    previous_handler = signal.signal(
        signal.SIGXFSZ, signal.SIG_IGN
    )  # makes a write fail instead of ending the process
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        return main([str(argument) for argument in arguments])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous_handler)


@pytest.fixture
def tool_runs(tmp_path):
    """Return the arguments of each tool by name, and the files that the tool writes."""
    import cv2
    import numpy as np

    images = tmp_path / 'images'
    images.mkdir()
    boxes = []
    for number, rgb in enumerate([(255, 0, 0), (0, 255, 128)]):
        picture = np.full((240, 320, 3), rgb[::-1], np.uint8)
        cv2.imwrite(str(images / f'{number:03d}.png'), picture)
        for name, _, (x, y, width, height) in expected_detections(rgb, (320, 240)):
            boxes.append((number, name, (x - width / 2, y - height / 2, width, height)))
    labels = written(tmp_path, truth(boxes, images=2, categories=CLASS_NAMES))
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    small = write_model(tmp_path, 'small.onnx', small_onnx(), outputs=OUTPUTS)
    engine = write_model(tmp_path, 'tiny.engine', PLAN)
    out = tmp_path / 'out'
    out.mkdir()
    json_file = out / 'r.json'
    quick = ['--frames', '2', '--warmup', '0', '--size', '64x48']
    scene = ['--engine', model, '--images', images, '--annotations', labels]
    return {
        'benchmark_engine': ([small, *quick, '--json', json_file], [json_file]),
        'evaluate_engine': (
            [*scene, '--json', json_file, '--results', out / 'results'],
            [json_file, out / 'results' / 'tiny.onnx.results.json'],
        ),
        'inspect_engine': ([engine, '--no-gpu', '--json', json_file], [json_file]),
        'detect_images': (
            ['--engine', model, '--source', images, '--no-pictures', '--output', out / 'found'],
            [out / 'found' / f'{name}.json' for name in ('detections', 'results', 'summary')],
        ),
    }


TOOLS = ['benchmark_engine', 'evaluate_engine', 'inspect_engine', 'detect_images']


@pytest.mark.parametrize('tool', TOOLS)
def test_unwritable_files_are_reported_and_removed(tool, tool_runs, tmp_path, monkeypatch, capsys):
    arguments, files = tool_runs[tool]
    for path in files[:1]:
        path.parent.mkdir(exist_ok=True)

    code = run_with_small_files(tool, arguments, 64, monkeypatch)

    output, error = capsys.readouterr()
    assert code == 1
    for path in files:
        assert re.search(f'{tool}: .*{path}: .*File too large', error)
        assert f'saved {path}' not in output
    assert output.strip()  # the tool still prints its results
    remaining = [path for path in (tmp_path / 'out').rglob('*') if path.is_file()]
    assert remaining == []


@pytest.mark.parametrize('tool', TOOLS)
def test_full_standard_output_is_reported(tool, tool_runs, golden_messages):
    arguments, files = tool_runs[tool]
    ended = run_with_full_output(tool, *arguments)
    assert ended.returncode == 1
    golden_messages.add(ended.stderr.splitlines()[-1])
    for path in files:
        json.loads(path.read_text())


def test_file_that_fits_is_written_if_another_file_does_not_fit(tool_runs, monkeypatch, capsys):
    arguments, (report, results) = tool_runs['evaluate_engine']

    code = run_with_small_files('evaluate_engine', arguments, 1000, monkeypatch)

    output, error = capsys.readouterr()
    assert code == 1
    assert f'saved: {report}: ' in error
    assert f'saved {results}' in output
    assert not report.exists()
    assert len(json.loads(results.read_text())) > 0


def test_doctor_reports_a_full_standard_output(tmp_path, golden_messages):
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    ended = run_with_full_output('doctor', model, '--seconds', '0', '--json')
    assert ended.returncode == 1
    golden_messages.add(ended.stderr.splitlines()[-1])


def test_unwritable_report_of_a_build_is_reported(tmp_path, monkeypatch, capsys, golden_messages):
    from trt_perception.offline.tools import build_engine

    def full(files):
        raise WriteError(str(next(iter(files))), 'cannot be written: No space left on device')

    monkeypatch.setattr(build_engine, 'write_atomically', full)
    monkeypatch.setattr(build_engine, '_build_with_progress', lambda *_: None)
    model = write_tiny_model(tmp_path / 'tiny.onnx')
    arguments = ['--onnx', str(model), '--json', str(tmp_path / 'r.json')]
    assert build_engine.main(arguments) == 1
    golden_messages.add(capsys.readouterr().err)


def test_closed_pipe_reader_is_not_an_error(tool_runs):
    arguments, _ = tool_runs['inspect_engine']
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [executable('inspect_engine'), *map(str, arguments)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (0, '')


def test_tool_writes_its_file_with_standard_output_closed(tool_runs):
    arguments, files = tool_runs['inspect_engine']
    words = ' '.join(map(str, [executable('inspect_engine'), *arguments]))
    ended = subprocess.run(
        ['bash', '-c', f'{words} >&- 2>&-'], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0
    json.loads(files[0].read_text())


# Targets that are not files. No test names a device of this machine, because a mistake would
# replace the device.


def test_pipe_is_not_replaced(tmp_path):
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically({pipe: b'[1, 2]', tmp_path / 'file': b'y'})
    assert os.read(reader, 100) == b'[1, 2]'
    os.close(reader)
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ['file', 'pipe']


def test_full_device_is_reported_and_other_files_are_removed(tmp_path, golden_messages):
    full = tmp_path / 'full'
    try:
        os.mknod(full, 0o666 | stat.S_IFCHR, os.makedev(1, 7))
        full.open('wb').close()
    except OSError as error:
        pytest.skip(f'needs permission to create devices: {error}')
    with pytest.raises(WriteError) as caught:
        write_atomically({tmp_path / 'file': b'y', full: b'x'})
    golden_messages.add(re.sub(r'[0-9.]+ [MG]iB free', 'N MiB free', str(caught.value)))
    assert list(tmp_path.iterdir()) == [full]
    assert full.is_char_device()


def test_devices_are_special_files_and_folders_are_not():
    from trt_perception.files.atomic_files import _is_device_or_pipe

    assert _is_device_or_pipe(Path('/dev/stdout'))
    assert _is_device_or_pipe(Path('/dev/null'))
    assert not _is_device_or_pipe(Path('/dev/shm'))


@pytest.mark.parametrize('tool', ['benchmark_engine', 'evaluate_engine', 'inspect_engine'])
def test_results_can_be_written_to_a_pipe(tool, tool_runs, tmp_path):
    main = importlib.import_module(f'trt_perception.offline.tools.{tool}').main
    arguments, _ = tool_runs[tool]
    pipe = tmp_path / 'pipe'
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    code = main([str(pipe if str(word).endswith('r.json') else word) for word in arguments])

    content = os.read(reader, 2**16)  # the capacity of a pipe
    os.close(reader)
    assert code == 0
    assert pipe.is_fifo()
    json.loads(content)


class FailingStream(io.StringIO):
    def __init__(self, number):
        super().__init__()
        self.number = number

    def write(self, text):
        raise OSError(self.number, os.strerror(self.number))

    def fileno(self):
        raise OSError('no descriptor')


@pytest.mark.parametrize(
    ('number', 'reason'), [(errno.ENOSPC, 'No space left on device'), (errno.EPIPE, '')]
)
def test_broken_standard_output_gives_a_reason(monkeypatch, number, reason):
    monkeypatch.setattr(sys, 'stdout', FailingStream(number))
    with standard_streams.guarded_streams() as output:
        print('this is lost', flush=True)
        print('and this')
    assert standard_streams.lost_output_reason(output) == reason
    assert isinstance(sys.stdout, FailingStream)
