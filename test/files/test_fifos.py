# SPDX-License-Identifier: Apache-2.0
"""Tests that readers of files do not wait for a FIFO without a writer."""

import contextlib
import os
import threading
from pathlib import Path

import pytest

from support.programs import Program, executable
from trt_perception.checks.shell import shell_findings
from trt_perception.errors import TrtPerceptionError, WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.model.files.model_file import read_model_file
from trt_perception.offline.building.calibration.cache import read_ranges
from trt_perception.offline.building.calibration.images import find_image_files
from trt_perception.offline.building.engine_store import EngineStore
from trt_perception.offline.building.options.sources import load_options, read_class_names
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.offline.evaluation.coco.classes import read_class_map
from trt_perception.offline.evaluation.report.worst_images import write_worst_images

# Each function calls a reader with the FIFO in place of the file that it expects. If the reader
# chooses the file's name, the function first gives the FIFO this name.


def as_store_entry(fifo):
    entry = fifo.parent / ('a' * 64)
    entry.mkdir()
    fifo.rename(entry / 'entry.json')
    store = EngineStore(fifo.parent)
    assert store.find('a' * 64) is None


def as_calibration_cache(fifo):
    assert 'cannot be read' in read_ranges(fifo, ['x'])[1]


def as_profile(fifo):
    environment = {'FASTRTPS_DEFAULT_PROFILES_FILE': str(fifo), 'ROS_DISTRO': 'jazzy'}
    findings = [finding.found for finding in shell_findings(environment, folder=fifo.parent)]
    assert any('regular file' in found for found in findings)


def as_image_report(fifo):
    fifo.rename(fifo.parent / 'pictures.json')
    write_worst_images(fifo.parent, [], ('a',), {}, 1)


def as_model(fifo):
    fifo.rename(fifo.parent / 'm.onnx')
    read_model_file(fifo.parent / 'm.onnx')


def as_config_json(fifo):
    fifo.rename(fifo.parent / 'config.json')
    (fifo.parent / 'm.onnx').write_bytes(b'x')
    read_model_file(fifo.parent / 'm.onnx')


NO_FILES = {
    'options': lambda fifo: load_options(fifo, {}),
    'class names': lambda fifo: read_class_names(
        load_options(None, {'onnx': 'm.onnx', 'class_names_file': str(fifo)})
    ),
    'annotations': read_annotations,
    'class map': read_class_map,
    'list of images': lambda fifo: find_image_files(fifo.rename(fifo.with_suffix('.txt'))),
    'store': as_store_entry,
    'calibration cache': as_calibration_cache,
    'profile': as_profile,
    'list of worst images': as_image_report,
    'model': as_model,
    'config.json': as_config_json,
}


@pytest.mark.parametrize('kind', NO_FILES)
def test_reader_does_not_wait_for_a_fifo(kind, tmp_path):
    fifo = tmp_path / 'fifo'
    os.mkfifo(fifo)
    errors = []

    def read():
        try:
            NO_FILES[kind](fifo)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), 'the reader waits'
    assert all(isinstance(error, TrtPerceptionError) for error in errors), errors


@pytest.mark.parametrize('option', ['--config', '--class-names-file', '--annotations'])
def test_build_engine_refuses_a_fifo_with_a_message(option, tmp_path):
    os.mkfifo(tmp_path / 'fifo')
    onnx = Path(__file__).parents[2] / 'models' / 'digits.onnx'
    more = ['--validate', tmp_path] if option == '--annotations' else []
    program = Program(
        [executable('build_engine'), '--onnx', onnx, option, tmp_path / 'fifo', *more]
    )
    assert program.wait() in (1, 2)
    assert 'Traceback' not in program.output
    assert 'build_engine: ' in program.output


def test_writer_does_not_wait_for_a_reader(tmp_path):
    fifo = tmp_path / 'fifo'
    os.mkfifo(fifo)
    for files in ({fifo: b'x'}, {tmp_path / 'a': b'a', fifo: b'x', tmp_path / 'b': b'b'}):
        with pytest.raises(WriteError):
            write_atomically(files)
        assert list(tmp_path.iterdir()) == [fifo]


def test_writer_writes_into_a_pipe_with_a_reader(tmp_path):
    fifo = tmp_path / 'fifo'
    os.mkfifo(fifo)
    content = bytes(2**20)  # more than a pipe holds
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    received = []

    def read():
        os.set_blocking(reader, True)
        while part := os.read(reader, 2**16):
            received.append(part)

    writer = threading.Thread(target=write_atomically, args=({fifo: content},))
    writer.start()
    while not received:
        with contextlib.suppress(BlockingIOError):
            received.append(os.read(reader, 2**16))
        received = [part for part in received if part]
    read()
    writer.join()
    os.close(reader)
    assert b''.join(received) == content
