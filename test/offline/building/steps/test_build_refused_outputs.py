# SPDX-License-Identifier: Apache-2.0
"""build_engine refuses each output path that it cannot or must not write, with a message."""

import os
import subprocess

import pytest

from support import golden
from support.building.messages import text_of_messages
from support.folders import contents_by_path
from support.models.detector_models import (
    DECODER_AND_CLASSES_ARGUMENTS,
    run_build_engine,
    write_detector,
    write_images,
)
from support.programs import executable, small_disk
from trt_perception.errors import ConfigError
from trt_perception.offline.building.options.sources import load_options
from trt_perception.offline.building.output_files import check_output_paths

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytest_plugins = ['support.building.build_fixtures']
INT8 = ('--precision', 'int8')


pytestmark = pytest.mark.usefixtures('own_caches')


def test_invalid_path_of_the_quantised_model_is_refused(tmp_path, build_error):
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    arguments = ('--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS)
    calibrated = (*arguments, *INT8, '--calibration-images', images)
    qdq, other = tmp_path / 'q.onnx', write_detector(tmp_path, 'other.onnx')
    report = ('--json', tmp_path / 'q.onnx.json')
    messages = [
        build_error(*arguments, '--qdq-onnx', qdq, code=2),
        build_error(*calibrated, '--qdq-onnx', tmp_path / 'q.bin', code=2),
        build_error(*calibrated, '--qdq-onnx', path, code=2),
        build_error(*calibrated, '--qdq-onnx', tmp_path / 'missing' / 'q.onnx', code=2),
        build_error(*calibrated, '--qdq-onnx', other, code=2),
        build_error(*calibrated, '--qdq-onnx', qdq, *report, code=2),
    ]
    golden.check('offline/building/refused_qdq_onnx.txt', text_of_messages(messages, tmp_path))


def test_full_disk_is_reported(tmp_path):
    path = write_detector(tmp_path)
    before = contents_by_path(tmp_path)

    done = subprocess.run(
        [executable('build_engine'), '--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS],
        **small_disk(4096),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert 'net.engine: ' in done.stderr
    assert 'File too large' in done.stderr
    assert 'iB free' in done.stderr
    assert contents_by_path(tmp_path) == before


def test_output_paths_that_cannot_be_written_are_refused(tmp_path, build_error):
    arguments = ('--onnx', write_detector(tmp_path), *DECODER_AND_CLASSES_ARGUMENTS)
    (tmp_path / 'file').write_bytes(b'')
    messages = []
    for folder in ('missing', 'file'):
        messages.append(
            build_error(*arguments, '--output', tmp_path / folder / 'x.engine', code=2)
        )
        messages.append(build_error(*arguments, '--json', tmp_path / folder / 'x.json', code=2))
    (tmp_path / 'net.engine').mkdir()
    messages.append(build_error(*arguments, code=2))
    golden.check('offline/building/refused_folders.txt', text_of_messages(messages, tmp_path))


def test_folder_without_permission_is_refused(tmp_path, capsys, golden_messages):
    path = write_detector(tmp_path)
    folder = tmp_path / 'locked'
    folder.mkdir(mode=0o555)
    before = contents_by_path(tmp_path)
    command = [executable('build_engine'), '--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS]
    if os.geteuid() == 0:  # root needs this capability to ignore permissions
        command = ['setpriv', '--bounding-set', '-dac_override', *command]
    for option in (('--output', folder / 'x.engine'), ('--json', folder / 'x.json')):
        done = subprocess.run([*command, *option], capture_output=True, text=True, timeout=120)
        assert done.returncode == 2, done.stderr
        golden_messages.add(done.stderr)
    assert (
        run_build_engine(
            '--onnx', path, *DECODER_AND_CLASSES_ARGUMENTS, '--output', '/proc/x.engine'
        )
        == 2
    )
    assert 'build_engine: /proc/x.engine: ' in capsys.readouterr().err
    assert contents_by_path(tmp_path) == before


def test_other_files_are_not_overwritten(tmp_path, build_error):
    arguments = ('--onnx', write_detector(tmp_path), *DECODER_AND_CLASSES_ARGUMENTS)
    names = ['net.engine', 'net.engine.json', 'net.onnx', 'net.onnx.json']
    messages = [build_error(*arguments, '--json', tmp_path / name, code=2) for name in names]
    for name, content in zip(names[:2], (b'my thesis', b'{"my": 1}'), strict=True):
        (tmp_path / name).write_bytes(content)
        messages.append(build_error(*arguments, code=2))
        (tmp_path / name).unlink()
    golden.check('offline/building/refused_overwriting.txt', text_of_messages(messages, tmp_path))


@pytest.mark.parametrize(
    ('name', 'option'),
    [('a.engine', 'output'), ('a.engine.json', 'output'), ('a.onnx', 'qdq_onnx')],
)
def test_pipe_in_place_of_a_file_is_refused(tmp_path, name, option, golden_messages):
    os.mkfifo(tmp_path / name)  # reading a pipe would block forever
    arguments = {'onnx': write_detector(tmp_path), option: tmp_path / name.removesuffix('.json')}
    if option == 'qdq_onnx':
        arguments |= {'precision': 'int8', 'calibration_images': str(tmp_path)}
    with golden_messages.raises(ConfigError):
        check_output_paths(
            load_options(None, {key: str(value) for key, value in arguments.items()})
        )
