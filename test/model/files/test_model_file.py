"""Opening a model file: what is trusted, what is refused and why, and what its manifest says."""

import hashlib
import io
import json
import os
import socket
from pathlib import Path

import pytest

from support.models.support_models import identity, manifest, write_model
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
def bare(tmp_path):
    """Return a model file without a manifest."""
    path = tmp_path / 'tiny.onnx'
    path.write_bytes(CONTENT)
    return path


@pytest.mark.parametrize('suffix', ['.onnx', '.engine', '.plan', '.trt'])
def test_a_model_without_manifest(tmp_path, suffix):
    path = tmp_path / f'tiny{suffix}'
    path.write_bytes(CONTENT)
    model = read_model_file(path)
    assert model.path == path
    assert model.content == CONTENT
    assert model.sha256 == hashlib.sha256(CONTENT).hexdigest()
    assert model.manifest is None
    assert model.is_onnx == (suffix == '.onnx')


@pytest.mark.parametrize('name', ['tiny.onnx', 'tiny.engine', 'tiny.plan', 'tiny.trt'])
def test_a_model_with_its_manifest(tmp_path, name):
    path = write_model(tmp_path, name)
    model = read_model_file(str(path))
    assert model.content == CONTENT
    assert model.manifest.class_names == ('cat', 'dog')


@pytest.mark.parametrize('name', ['tiny', 'tiny.pt', 'tiny.ONNX', 'tiny.onnx.json', '.onnx', ''])
def test_the_suffix_must_say_what_it_is(tmp_path, name, golden_messages):
    golden_messages.add(refusal(tmp_path / name))


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    write_model(tmp_path)
    assert read_model_file('~/tiny.onnx').content == CONTENT


def test_paths_that_lead_nowhere(tmp_path, golden_messages):
    golden_messages.add(refusal(tmp_path / 'missing.onnx'))
    golden_messages.add(refusal(tmp_path / 'no' / 'folder.onnx'))
    golden_messages.add(refusal(Path('/dev/null/tiny.onnx')))
    golden_messages.add(refusal('~nobody-of-this-name/tiny.onnx'))
    golden_messages.add(refusal('tiny\0.onnx'))
    golden_messages.add(refusal('x' * 5000 + '.onnx'))
    loop = tmp_path / 'loop.onnx'
    loop.symlink_to(loop)
    golden_messages.add(refusal(loop))
    dangling = tmp_path / 'dangling.onnx'
    dangling.symlink_to(tmp_path / 'gone.onnx')
    golden_messages.add(refusal(dangling))


def make_fifo(path):
    os.mkfifo(path)


def make_socket(path):
    # The path of a socket is short; the name in the file system outlives it.
    before = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)
    os.chdir(before)


NO_FILES = {
    'folder': lambda path: path.mkdir(),
    'FIFO': make_fifo,
    'socket': make_socket,
    'device': lambda path: path.symlink_to('/dev/zero'),
    'link to a folder': lambda path: path.symlink_to(path.parent),
}


@pytest.mark.parametrize('make', NO_FILES.values(), ids=NO_FILES.keys())
@pytest.mark.timeout(20)  # a FIFO must not be waited for
def test_only_regular_files(tmp_path, make, golden_messages):
    path = tmp_path / 'tiny.onnx'
    make(path)
    descriptors = len(os.listdir('/proc/self/fd'))
    golden_messages.add(refusal(path))
    assert len(os.listdir('/proc/self/fd')) == descriptors


def test_an_empty_file(tmp_path, golden_messages):
    path = tmp_path / 'tiny.onnx'
    path.touch()
    golden_messages.add(refusal(path))


def test_a_file_that_no_memory_holds(bare, golden_messages):
    os.truncate(bare, 17 * 1024**3)  # sparse
    golden_messages.add(refusal(bare))


@pytest.mark.parametrize('mode', [0o602, 0o606, 0o666, 0o777])
def test_writable_by_everybody_is_refused(bare, mode, golden_messages):
    bare.chmod(mode)
    golden_messages.add(refusal(bare))


@pytest.mark.parametrize('mode', [0o600, 0o644, 0o664, 0o660, 0o755])
def test_other_modes_are_fine(bare, mode):
    bare.chmod(mode)
    assert read_model_file(bare).content == CONTENT


def test_a_link_is_judged_by_its_target(bare, tmp_path, golden_messages):
    link = tmp_path / 'link.onnx'
    link.symlink_to(bare)
    assert read_model_file(link).content == CONTENT  # a link's own mode is 777
    bare.chmod(0o666)
    golden_messages.add(refusal(link))


as_root = pytest.mark.skipif(os.geteuid() != 0, reason='giving a file away needs root')


@as_root
def test_somebody_elses_file_is_refused(bare, golden_messages):
    os.chown(bare, 12345, -1)
    golden_messages.add(refusal(bare))


@as_root
@pytest.mark.parametrize(('owner', 'accepted'), [(0, True), (1234, True), (4321, False)])
def test_root_and_oneself_are_trusted(tmp_path, owner, accepted, monkeypatch, golden_messages):
    path = write_model(tmp_path)
    os.chown(path, owner, -1)
    monkeypatch.setattr(os, 'geteuid', lambda: 1234)
    if accepted:
        assert read_model_file(path).content == CONTENT
    else:
        golden_messages.add(refusal(path))


def test_an_unreadable_file(bare, monkeypatch, golden_messages):
    if os.geteuid() == 0:  # root reads everything, so the system call says no

        def no(*arguments, **more):
            raise PermissionError(13, 'Permission denied')

        monkeypatch.setattr(os, 'open', no)
    else:
        bare.chmod(0)
    golden_messages.add(refusal(bare))


def test_a_disk_that_fails(bare, monkeypatch, golden_messages):
    class Failing(io.BytesIO):
        def read(self, *size):
            raise OSError(5, 'Input/output error')

        def fileno(self):
            return 0

    def failing(descriptor, mode):
        os.close(descriptor)
        return Failing()

    monkeypatch.setattr('trt_perception.files.regular_files.os.fdopen', failing)
    golden_messages.add(refusal(bare))
    with golden_messages.raises(EngineError):
        read_checked(bare)


def test_other_bytes_than_the_manifest_says(tmp_path, golden_messages):
    path = write_model(tmp_path)
    path.write_bytes(b'b model')  # same size
    golden_messages.add(refusal(path, ManifestError))
    path.write_bytes(b'a longer model')
    golden_messages.add(refusal(path, ManifestError))


def test_other_bytes_of_an_engine_name_the_command_that_makes_it(tmp_path, golden_messages):
    path = write_model(tmp_path, 'tiny.engine', onnx=identity('net.onnx', b'x'))
    path.write_bytes(b'b model')
    golden_messages.add(refusal(path, ManifestError))


@pytest.mark.parametrize('change', [{'size_bytes': 8}, {'sha256': '0' * 64}])
def test_size_and_hash_must_both_be_right(tmp_path, change):
    path = write_model(tmp_path, onnx={**identity('tiny.onnx', CONTENT), **change})
    refusal(path, ManifestError)


@pytest.mark.parametrize(('name', 'other'), [('tiny.onnx', 'engine'), ('tiny.plan', 'onnx')])
def test_a_manifest_of_another_kind_of_file(tmp_path, name, other, golden_messages):
    path = write_model(tmp_path, name)
    described = manifest(onnx=None, engine=None)
    described[other] = identity(name, CONTENT)
    path.with_name(name + '.json').write_text(json.dumps(described))
    golden_messages.add(refusal(path, ManifestError))


def test_both_entries_and_each_file_is_held_to_its_own(tmp_path):
    for name in ('tiny.onnx', 'tiny.engine'):
        path = tmp_path / name
        path.write_bytes(name.encode())
        described = manifest(
            onnx=identity('tiny.onnx', b'tiny.onnx'),
            engine=identity('tiny.engine', b'tiny.engine'),
        )
        path.with_name(name + '.json').write_text(json.dumps(described))
        assert read_model_file(path).manifest.onnx.size_bytes == 9


def test_a_broken_manifest_is_named(tmp_path, golden_messages):
    path = write_model(tmp_path)
    path.with_name('tiny.onnx.json').write_text('{')
    golden_messages.add(refusal(path, ManifestError))


@pytest.mark.parametrize('size', [0, MANIFEST_MAX_BYTES + 1])
def test_a_manifest_too_small_or_large(tmp_path, size, golden_messages):
    path = write_model(tmp_path)
    os.truncate(path.with_name('tiny.onnx.json'), size)
    golden_messages.add(refusal(path))


def test_a_manifest_is_opened_as_carefully_as_the_model(tmp_path, golden_messages):
    path = write_model(tmp_path)
    beside = path.with_name('tiny.onnx.json')
    beside.chmod(0o666)
    golden_messages.add(refusal(path))
    beside.unlink()
    beside.mkdir()
    golden_messages.add(refusal(path))
    beside.rmdir()
    os.mkfifo(beside)
    golden_messages.add(refusal(path))
    beside.unlink()
    # A link that leads nowhere is no absent manifest.
    beside.symlink_to(tmp_path / 'gone.json')
    golden_messages.add(refusal(path))


def test_a_manifest_may_be_a_link(tmp_path):
    path = write_model(tmp_path)
    beside = path.with_name('tiny.onnx.json')
    beside.rename(tmp_path / 'elsewhere.json')
    beside.symlink_to(tmp_path / 'elsewhere.json')
    assert read_model_file(path).manifest is not None


def test_a_link_to_a_model_finds_the_manifest_there_unless_it_has_its_own(tmp_path):
    folder = tmp_path / 'store'
    folder.mkdir()
    target = write_model(folder, class_names=['there', 'x'])
    link = tmp_path / 'link.onnx'
    link.symlink_to(target)
    model = read_model_file(link)
    assert model.path == link
    assert model.manifest.class_names == ('there', 'x')
    own = manifest(onnx=identity('tiny.onnx', CONTENT), engine=None, class_names=['here', 'x'])
    (tmp_path / 'link.onnx.json').write_text(json.dumps(own))
    assert read_model_file(link).manifest.class_names == ('here', 'x')


def test_the_cause_is_attached(tmp_path):
    with pytest.raises(EngineError) as caught:
        read_model_file(tmp_path / 'missing.onnx')
    assert isinstance(caught.value.__cause__, FileNotFoundError)


PLAN = b'ftrt' + bytes(200)


def engine_with(tmp_path, front, plan=PLAN):
    """Write an engine with something in front of its plan, as Ultralytics' exporter does."""
    path = tmp_path / 'yolo.engine'
    path.write_bytes(len(front).to_bytes(4, 'little') + front + plan)
    return path


def test_what_ultralytics_writes_in_front_of_a_plan_is_its_metadata(tmp_path):
    told = {'task': 'detect', 'imgsz': [480, 640], 'names': {'0': 'cat'}, 'batch': 1}
    path = engine_with(tmp_path, json.dumps(told).encode())
    model = read_model_file(path)
    assert model.content == PLAN
    assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert model.metadata == {
        'task': 'detect',
        'imgsz': '[480, 640]',
        'names': "{'0': 'cat'}",
        'batch': '1',
    }


def test_a_manifest_speaks_of_the_whole_file(tmp_path):
    path = engine_with(tmp_path, b'{"task": "detect"}')
    content = path.read_bytes()
    write_model(tmp_path, 'yolo.engine', content)
    model = read_model_file(path)
    assert model.content == PLAN
    assert model.manifest.engine.size_bytes == len(content)


@pytest.mark.parametrize(
    ('front', 'plan'),
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
def test_anything_else_in_front_is_left_as_it_is(tmp_path, front, plan):
    path = engine_with(tmp_path, front, plan)
    model = read_model_file(path)
    assert model.content == path.read_bytes()
    assert model.metadata == {}
