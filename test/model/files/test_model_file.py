# SPDX-License-Identifier: Apache-2.0
"""Tests of reading model files and manifests: which are trusted, and which are refused."""

import hashlib
import io
import json
import os
import socket
from pathlib import Path

import pytest

from support.folders import open_paths
from support.models.support_models import file_identity, manifest, write_model
from trt_perception.errors import EngineError, ManifestError
from trt_perception.files.checked_files import read_checked
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import MANIFEST_MAX_BYTES

CONTENT = b'a model'


def refusal(path, error=EngineError):
    with pytest.raises(error) as caught:
        read_model_file(path)
    return str(caught.value)


@pytest.fixture
def model_without_manifest(tmp_path):
    """Return a model file without a manifest."""
    path = tmp_path / 'tiny.onnx'
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize('suffix', ['.onnx', '.engine', '.plan', '.trt'])
def test_model_without_a_manifest_is_read(tmp_path, suffix):
    path = tmp_path / f'tiny{suffix}'
    path.write_bytes(CONTENT)
    model = read_model_file(path)
    assert model.path == path
    assert model.content == CONTENT
    assert model.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert model.manifest is None
    assert model.is_onnx == (suffix == '.onnx')


@pytest.mark.parametrize('name', ['tiny.onnx', 'tiny.engine', 'tiny.plan', 'tiny.trt'])
def test_model_with_its_manifest_is_read(tmp_path, name):
    path = write_model(tmp_path, name)
    model = read_model_file(str(path))
    assert model.content == CONTENT
    assert model.manifest.class_names == ('cat', 'dog')


@pytest.mark.parametrize('name', ['tiny', 'tiny.pt', 'tiny.ONNX', 'tiny.onnx.json', '.onnx', ''])
def test_unknown_suffix_is_refused(tmp_path, name, golden_messages):
    golden_messages.add(refusal(tmp_path / name))


def test_tilde_in_the_path_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    write_model(tmp_path)
    assert read_model_file('~/tiny.onnx').content == CONTENT


def test_missing_files_are_refused(tmp_path, golden_messages):
    golden_messages.add(refusal(tmp_path / 'missing.onnx'))
    golden_messages.add(refusal(tmp_path / 'no' / 'folder.onnx'))
    golden_messages.add(refusal(Path('/dev/null/tiny.onnx')))
    golden_messages.add(refusal('~nobody-of-this-name/tiny.onnx'))
    golden_messages.add(refusal('x' * 5000 + '.onnx'))
    loop = tmp_path / 'loop.onnx'
    loop.symlink_to(loop)
    for path in (loop, 'tiny\0.onnx'):  # each version of Python words the reason differently
        with pytest.raises(EngineError) as caught:
            read_model_file(path)
        assert caught.value.subject == str(path)
    dangling = tmp_path / 'dangling.onnx'
    dangling.symlink_to(tmp_path / 'gone.onnx')
    golden_messages.add(refusal(dangling))


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    # The path of a socket must be short, so bind a relative path. Closing keeps the file.
    before = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(before)


MAKERS_OF_SPECIAL_FILES = {
    'folder': lambda path: path.mkdir(),
    'FIFO': make_fifo,
    'socket': make_socket,
    'device': lambda path: path.symlink_to('/dev/zero'),
    'link to a folder': lambda path: path.symlink_to(path.parent),
}


@pytest.mark.parametrize(
    'make', MAKERS_OF_SPECIAL_FILES.values(), ids=MAKERS_OF_SPECIAL_FILES.keys()
)
def test_files_other_than_regular_files_are_refused(tmp_path, make, golden_messages):
    path = tmp_path / 'tiny.onnx'
    make(path)
    golden_messages.add(refusal(path))
    assert os.path.realpath(path) not in open_paths()


def test_empty_file_is_refused(tmp_path, golden_messages):
    path = tmp_path / 'tiny.onnx'
    path.touch()
    golden_messages.add(refusal(path))


def test_file_larger_than_the_limit_is_refused(model_without_manifest, golden_messages):
    os.truncate(model_without_manifest, 17 * 1024**3)  # sparse
    golden_messages.add(refusal(model_without_manifest))


@pytest.mark.parametrize('mode', [0o602, 0o606, 0o666, 0o777])
def test_file_that_other_users_may_write_is_refused(model_without_manifest, mode, golden_messages):
    model_without_manifest.chmod(mode)
    golden_messages.add(refusal(model_without_manifest))


@pytest.mark.parametrize('mode', [0o600, 0o644, 0o664, 0o660, 0o755])
def test_file_with_safe_modes_is_read(model_without_manifest, mode):
    model_without_manifest.chmod(mode)
    assert read_model_file(model_without_manifest).content == CONTENT


def test_checks_apply_to_the_target_of_a_link(model_without_manifest, tmp_path, golden_messages):
    link = tmp_path / 'link.onnx'
    link.symlink_to(model_without_manifest)
    assert read_model_file(link).content == CONTENT  # ignore the link's own mode, 777
    model_without_manifest.chmod(0o666)
    golden_messages.add(refusal(link))


needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason='only root can change the owner of a file'
)


@needs_root
def test_file_of_another_user_is_refused(model_without_manifest, golden_messages):
    os.chown(model_without_manifest, 12345, -1)
    golden_messages.add(refusal(model_without_manifest))


@needs_root
@pytest.mark.parametrize(('owner', 'accepted'), [(0, True), (1234, True), (4321, False)])
def test_files_of_root_and_of_this_user_are_trusted(
    tmp_path, owner, accepted, monkeypatch, golden_messages
):
    path = write_model(tmp_path)
    os.chown(path, owner, -1)
    monkeypatch.setattr(os, 'geteuid', lambda: 1234)
    if accepted:
        assert read_model_file(path).content == CONTENT
    else:
        golden_messages.add(refusal(path))


def test_unreadable_file_is_refused(model_without_manifest, monkeypatch, golden_messages):
    if os.geteuid() == 0:  # root can read all files, so replace the system call

        def deny(*arguments, **more):
            raise PermissionError(13, 'Permission denied')

        monkeypatch.setattr(os, 'open', deny)
    else:
        model_without_manifest.chmod(0)
    golden_messages.add(refusal(model_without_manifest))


def test_read_error_is_reported(model_without_manifest, monkeypatch, golden_messages):
    class FailingFile(io.BytesIO):
        def read(self, *size):
            raise OSError(5, 'Input/output error')

        def fileno(self):
            return 0

    def open_failing_file(descriptor, mode):
        os.close(descriptor)
        return FailingFile()

    monkeypatch.setattr('trt_perception.files.regular_files.os.fdopen', open_failing_file)
    golden_messages.add(refusal(model_without_manifest))
    with golden_messages.raises(EngineError):
        read_checked(model_without_manifest)


def test_file_that_differs_from_its_manifest_is_refused(tmp_path, golden_messages):
    path = write_model(tmp_path)
    path.write_bytes(b'b model')  # the size is unchanged
    golden_messages.add(refusal(path, ManifestError))
    path.write_bytes(b'a longer model')
    golden_messages.add(refusal(path, ManifestError))


def test_refusal_of_a_changed_engine_mentions_the_build_command(tmp_path, golden_messages):
    path = write_model(tmp_path, 'tiny.engine', onnx=file_identity('net.onnx', b'x'))
    path.write_bytes(b'b model')
    golden_messages.add(refusal(path, ManifestError))


@pytest.mark.parametrize('change', [{'size_bytes': 8}, {'sha256': '0' * 64}])
def test_file_with_a_wrong_size_or_hash_in_its_manifest_is_refused(tmp_path, change):
    path = write_model(tmp_path, onnx={**file_identity('tiny.onnx', CONTENT), **change})
    refusal(path, ManifestError)


@pytest.mark.parametrize(('name', 'other'), [('tiny.onnx', 'engine'), ('tiny.plan', 'onnx')])
def test_manifest_without_an_entry_for_the_file_is_refused(tmp_path, name, other, golden_messages):
    path = write_model(tmp_path, name)
    content = manifest(onnx=None, engine=None)
    content[other] = file_identity(name, CONTENT)
    path.with_name(name + '.json').write_text(json.dumps(content))
    golden_messages.add(refusal(path, ManifestError))


def test_each_file_is_compared_with_its_own_entry(tmp_path):
    for name in ('tiny.onnx', 'tiny.engine'):
        path = tmp_path / name
        path.write_bytes(name.encode())
        content = manifest(
            onnx=file_identity('tiny.onnx', b'tiny.onnx'),
            engine=file_identity('tiny.engine', b'tiny.engine'),
        )
        path.with_name(name + '.json').write_text(json.dumps(content))
        assert read_model_file(path).manifest.onnx.size_bytes == 9


def test_error_mentions_the_broken_manifest(tmp_path, golden_messages):
    path = write_model(tmp_path)
    path.with_name('tiny.onnx.json').write_text('{')
    golden_messages.add(refusal(path, ManifestError))


@pytest.mark.parametrize('size', [0, MANIFEST_MAX_BYTES + 1])
def test_empty_or_too_large_manifest_is_refused(tmp_path, size, golden_messages):
    path = write_model(tmp_path)
    os.truncate(path.with_name('tiny.onnx.json'), size)
    golden_messages.add(refusal(path))


def test_manifest_gets_the_same_file_checks_as_the_model(tmp_path, golden_messages):
    path = write_model(tmp_path)
    manifest_file = path.with_name('tiny.onnx.json')
    manifest_file.chmod(0o666)
    golden_messages.add(refusal(path))
    manifest_file.unlink()
    manifest_file.mkdir()
    golden_messages.add(refusal(path))
    manifest_file.rmdir()
    os.mkfifo(manifest_file)
    golden_messages.add(refusal(path))
    manifest_file.unlink()
    # A broken link counts as a manifest, not as a missing manifest.
    manifest_file.symlink_to(tmp_path / 'gone.json')
    golden_messages.add(refusal(path))


def test_manifest_may_be_a_link(tmp_path):
    path = write_model(tmp_path)
    manifest_file = path.with_name('tiny.onnx.json')
    manifest_file.rename(tmp_path / 'elsewhere.json')
    manifest_file.symlink_to(tmp_path / 'elsewhere.json')
    assert read_model_file(path).manifest is not None


def test_linked_model_uses_its_own_manifest_or_that_of_the_target(tmp_path):
    folder = tmp_path / 'store'
    folder.mkdir()
    target = write_model(folder, class_names=['there', 'x'])
    link = tmp_path / 'link.onnx'
    link.symlink_to(target)
    model = read_model_file(link)
    assert model.path == link
    assert model.manifest.class_names == ('there', 'x')
    manifest_of_link = manifest(
        onnx=file_identity('tiny.onnx', CONTENT), engine=None, class_names=['here', 'x']
    )
    (tmp_path / 'link.onnx.json').write_text(json.dumps(manifest_of_link))
    assert read_model_file(link).manifest.class_names == ('here', 'x')


def test_error_has_the_system_error_as_cause(tmp_path):
    with pytest.raises(EngineError) as caught:
        read_model_file(tmp_path / 'missing.onnx')
    assert isinstance(caught.value.__cause__, FileNotFoundError)


PLAN = b'ftrt' + bytes(200)


def write_engine_with_prefix(tmp_path, prefix, plan=PLAN):
    """Write an engine with bytes before its plan, as the exporter of Ultralytics does."""
    path = tmp_path / 'yolo.engine'
    path.write_bytes(len(prefix).to_bytes(4, 'little') + prefix + plan)
    return path


def test_metadata_of_ultralytics_before_a_plan_are_read(tmp_path):
    metadata = {'task': 'detect', 'imgsz': [480, 640], 'names': {'0': 'cat'}, 'batch': 1}
    path = write_engine_with_prefix(tmp_path, json.dumps(metadata).encode())
    model = read_model_file(path)
    assert model.content == PLAN
    assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert model.metadata == {
        'task': 'detect',
        'imgsz': '[480, 640]',
        'names': "{'0': 'cat'}",
        'batch': '1',
    }


def test_size_in_the_manifest_includes_the_metadata_before_a_plan(tmp_path):
    path = write_engine_with_prefix(tmp_path, b'{"task": "detect"}')
    content = path.read_bytes()
    write_model(tmp_path, 'yolo.engine', content)
    model = read_model_file(path)
    assert model.content == PLAN
    assert model.manifest.engine.size_bytes == len(content)


@pytest.mark.parametrize(
    ('prefix', 'plan'),
    [
        (b'', PLAN),
        (b'{"task": ', PLAN),
        (b'["task"]', PLAN),
        (b'[' * 100_000, PLAN),
        (b'\xff\xfe', PLAN),
        (b'{"task": "detect"}', b'no plan' * 9),
        (b'{"task": "detect"}', b''),
    ],
    ids=str,
)
def test_other_bytes_before_a_plan_are_kept(tmp_path, prefix, plan):
    path = write_engine_with_prefix(tmp_path, prefix, plan)
    model = read_model_file(path)
    assert model.content == path.read_bytes()
    assert model.metadata == {}
