# SPDX-License-Identifier: Apache-2.0
"""Tools refuse loops of links and paths without a name with a message, or skip them."""

import contextlib
import importlib

import pytest

from support.detect_runs import detections, run_detect_images
from trt_perception.errors import TrtPerceptionError
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.output_files import check_output_paths, check_report_path

pytest_plugins = ['support.detect_fixtures']


def run(tool, *words):
    return importlib.import_module(f'trt_perception.offline.tools.{tool}').main([*map(str, words)])


@pytest.fixture(name='loop')
def _loop(tmp_path):
    path = tmp_path / 'loop.jpg'
    path.symlink_to(path.name)
    return path


@pytest.mark.parametrize('tool', ['write_manifest', 'export_triton', 'inspect_engine'])
@pytest.mark.parametrize('model', ['/', '.', '..', './', '//'])
def test_model_path_without_a_name_is_refused(tool, model, tmp_path, capsys):
    repository = ['--repository', tmp_path] if tool == 'export_triton' else []
    assert run(tool, model, *repository) == 2
    assert capsys.readouterr().err


def test_link_loop_among_images_is_skipped(tiny, pictures, loop, tmp_path, capsys):
    (pictures / 'c.jpg').symlink_to('c.jpg')
    (pictures / 'd.jpg').symlink_to(loop)
    out = tmp_path / 'out'
    assert run_detect_images('--engine', tiny, '--source', pictures, '--output', out) == 1
    assert 'c.jpg' in capsys.readouterr().err
    assert 'a.png' in detections(out)


@pytest.mark.parametrize('name', ['itself', 'other', 'file in the folder'])
def test_output_folder_that_is_a_link_loop_is_refused(
    tiny, pictures, loop, tmp_path, name, capsys
):
    out = tmp_path / 'out'
    out.symlink_to(out.name if name == 'itself' else loop)
    if name == 'file in the folder':
        out = out / 'below'
    assert run_detect_images('--engine', tiny, '--source', pictures, '--output', out) == 1
    assert str(out) in capsys.readouterr().err


@pytest.mark.parametrize('name', ['json', 'output', 'onnx'])
def test_check_of_the_files_of_a_build_reads_link_loops(tmp_path, name):
    loop = tmp_path / 'loop.engine'
    loop.symlink_to(loop.name)
    paths = {'onnx': tmp_path / 'model.onnx', 'output': tmp_path / 'a.engine', name: loop}
    options = BuildOptions(**{'json': tmp_path / 'report.json', **paths})
    with contextlib.suppress(TrtPerceptionError):
        check_report_path(options)
        check_output_paths(options)
