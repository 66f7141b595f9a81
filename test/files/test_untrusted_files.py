"""A thousand engines and manifests that are not what they should be.

Bytes that differ from their manifest never reach TensorRT: a stand-in runtime remembers every
plan that it is given.
"""

import contextlib
import copy
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import types
from collections import Counter
from pathlib import Path

import pytest
from support_models import identity
from support_models import manifest

from trt_perception.config import DetectorConfig
from trt_perception.errors import EngineError
from trt_perception.errors import ManifestError
from trt_perception.errors import TrtPerceptionError
from trt_perception.model.model_file import read_model_file
from trt_perception.pipelines import cuda_pipeline
from trt_perception.pipelines.open_pipeline import open_pipeline

NOBODY = 65534
STRANGER = 12345
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason='giving files away and becoming somebody else needs root'
)


def plan(seed, size=600):
    """Return bytes with the header of a TensorRT plan."""
    head = b'ftrt' + bytes(20) + bytes([10, 13, 3, 9])
    return head + random.Random(seed).randbytes(size - len(head))


PLAN, OTHER = plan(1), plan(2)


def described(content, name='tiny.engine', **changes):
    return manifest(**{'onnx': None, 'engine': identity(name, content), **changes})


class Place:
    """A folder with an engine and its manifest."""

    def __init__(self, folder):
        self.folder = folder
        self.engine = folder / 'tiny.engine'
        self.manifest = folder / 'tiny.engine.json'

    def reset(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.engine.write_bytes(PLAN)
        self.manifest.write_text(json.dumps(described(PLAN)))


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / 'models')
    place.reset()
    return place


@pytest.fixture
def given(monkeypatch):
    """Stand in for TensorRT and the GPU; return the list of plans that the runtime was given."""
    plans = []

    class Runtime:
        def __init__(self, logger):
            self.logger = logger

        def deserialize_cuda_engine(self, content):
            plans.append(bytes(content))
            raise EngineError('TensorRT', 'the stand-in was reached')

    fake = types.ModuleType('tensorrt')
    vars(fake).update(Runtime=Runtime, ILogger=object, __version__='10.13.3.9')
    device = types.SimpleNamespace(name='none', compute_capability=(8, 6), integrated=False)
    monkeypatch.setitem(sys.modules, 'tensorrt', fake)
    monkeypatch.setattr(cuda_pipeline, 'Device', lambda index: device)
    return plans


def attempt(path):
    """Open an engine as the node does; return the error, which is the package's own."""
    with pytest.raises(TrtPerceptionError) as caught:
        open_pipeline(DetectorConfig(engine_path=str(path)))
    return caught.value


def test_the_stand_in_is_reached_by_a_good_engine(place, given):
    assert 'stand-in was reached' in str(attempt(place.engine))
    assert given == [PLAN]


# Engines. Each takes a random generator and a place, and spoils it.


def flip_bits(rng, place):
    content = bytearray(PLAN)
    for position in rng.sample(range(8 * len(content)), rng.randrange(1, 5)):
        content[position // 8] ^= 1 << position % 8
    place.engine.write_bytes(content)


def truncate(rng, place):
    place.engine.write_bytes(PLAN[: rng.randrange(len(PLAN))])


def extend(rng, place):
    place.engine.write_bytes(PLAN + rng.randbytes(rng.choice((1, 4, 4096))))


def replace_engine(rng, place):
    place.engine.write_bytes(plan(rng.randrange(10, 10**9)))


def grow_without_bytes(rng, place):
    os.truncate(place.engine, rng.choice((2**30, 2**33, 2**34, 2**34 + 1)))  # sparse


def declare_another_size(rng, place):
    sizes = (0, -1, 1, len(PLAN) - 1, len(PLAN) + 1, 2**31, 2**53, 2**53 + 1, 2**64, 10**400)
    content = described(PLAN)
    content['engine']['size_bytes'] = rng.choice(sizes)
    place.manifest.write_text(json.dumps(content))


def declare_another_hash(rng, place):
    digest = list(hashlib.sha256(PLAN).hexdigest())
    at = rng.randrange(64)
    digest[at] = rng.choice([c for c in '0123456789abcdefABCg' if c != digest[at]])
    content = described(PLAN)
    content['engine']['sha256'] = ''.join(digest)
    place.manifest.write_text(json.dumps(content))


def swap_links(rng, place):
    """Let the engine, or its manifest, be a link to that of another engine."""
    store = place.folder / 'store'
    store.mkdir()
    (store / 'other.engine').write_bytes(OTHER)
    (store / 'other.engine.json').write_text(json.dumps(described(OTHER, 'other.engine')))
    if rng.random() < 0.5:
        place.engine.unlink()
        place.engine.symlink_to(store / 'other.engine')
    else:
        place.manifest.unlink()
        place.manifest.symlink_to(store / 'other.engine.json')


def break_links(rng, place):
    target = rng.choice((place.engine, place.manifest))
    target.unlink()
    target.symlink_to(rng.choice((target, place.folder, place.folder / 'gone', '/dev/zero')))


def open_to_all(rng, place):
    target = rng.choice((place.engine, place.manifest))
    target.chmod(0o002 | rng.getrandbits(9))


def give_away(rng, place):
    os.chown(rng.choice((place.engine, place.manifest)), rng.randrange(1000, 60000), -1)


SPOILED = {
    flip_bits: 250,
    truncate: 120,
    extend: 40,
    replace_engine: 60,
    grow_without_bytes: 10,
    declare_another_size: 40,
    declare_another_hash: 60,
    swap_links: 40,
    break_links: 30,
    open_to_all: 50,
    give_away: 40,
}


@pytest.mark.parametrize('spoil', SPOILED, ids=lambda spoil: spoil.__name__)
def test_spoiled_engines_never_reach_tensorrt(spoil, place, given):
    if spoil is give_away and os.geteuid() != 0:
        pytest.skip('giving files away needs root')
    for seed in range(SPOILED[spoil]):
        place.reset()
        spoil(random.Random(seed), place)
        error = attempt(place.engine)
        assert given == [], (seed, error)
        assert isinstance(error, EngineError), (seed, error)


# Manifests.


def paths(content, at=()):
    """Yield the path of every value in a manifest."""
    if at:
        yield at
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from paths(value, (*at, key))


def malformed():
    """Return manifests that break a rule of docs/manifest.md, as text."""
    whole = described(PLAN)
    texts = []

    def add(path, value):
        content = copy.deepcopy(whole)
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        texts.append(json.dumps(content))

    free = {('onnx',), ('engine',), ('notes',), ('notes', 'trained_on')}
    for path in paths(whole):
        for value in (None, [], {}, True, -7, 10**400, float('nan'), 'x' * 70_000, '\ud800', ['']):
            kept = path in free or (path[0] in ('inputs', 'outputs') and path[-1] == 'shape')
            name = path[0] in ('inputs', 'outputs') and path[-1] == 'name'
            size = path[-1] == 'shape' or path[-2:-1] == ('shape',)
            text = isinstance(value, str) and (name or path == ('engine', 'file'))
            if kept or size or text or (value is True and path[0] == 'decoder'):
                continue
            if path == ('preprocessing', 'mean', path[-1]) and value == -7:
                continue
            add(path, value)
        content = copy.deepcopy(whole)
        place = content
        for key in path[:-1]:
            place = place[key]
        if isinstance(place, dict):
            place['unknown key'] = 1
            texts.append(json.dumps(content))
    good = json.dumps(whole)
    texts += [good[:cut] for cut in range(0, len(good) - 1, 37)]
    texts += [good + good, '[' * 100_000, '{"schema":' * 5000, 'null', '""', '[]', '1e999', '\0']
    texts += [good[:-1] + ', "schema": 1}', good.replace('"schema": 1', '"schema": 2')]
    texts += [
        good.replace('tiny.engine', name) for name in ('../x', '/etc/passwd', '.', '..', 'a/b')
    ]
    return texts


def test_malformed_manifests_are_refused(place, given):
    texts = malformed()
    assert len(texts) > 200
    accepted = []
    for text in texts:
        place.manifest.write_text(text, errors='surrogatepass')
        assert isinstance(attempt(place.engine), EngineError)
        accepted += [text[:400]] * len(given)
        given.clear()
    assert accepted == []
    print(f'{len(texts)} malformed manifests refused')


def test_flipped_bits_in_a_manifest(place, given):
    """They may make another manifest that holds; it must still be the engine's."""
    whole = json.dumps(described(PLAN)).encode()
    rng = random.Random(3)
    outcomes = Counter()
    for _ in range(300):
        content = bytearray(whole)
        for position in rng.sample(range(8 * len(content)), rng.randrange(1, 4)):
            content[position // 8] ^= 1 << position % 8
        place.manifest.write_bytes(content)
        given.clear()
        attempt(place.engine)
        if given:
            assert given == [PLAN]
            engine = json.loads(content)['engine']
            assert engine['sha256'] == hashlib.sha256(PLAN).hexdigest()
            assert engine['size_bytes'] == len(PLAN)
        outcomes['loaded' if given else 'refused'] += 1
    print(dict(outcomes))
    assert outcomes['refused'] > 200


def test_there_are_a_thousand_cases():
    assert sum(SPOILED.values()) + len(malformed()) + 300 >= 1000


# Races.


@contextlib.contextmanager
def meanwhile(action):
    """Do something over and over in another thread."""
    stop = threading.Event()

    def work():
        while not stop.is_set():
            action()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def read_or_none(path):
    """Read a model; None where it is refused."""
    try:
        return read_model_file(path)
    except EngineError:
        return None


def link(path, target):
    new = path.with_name(path.name + '.new')
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(path)


def test_links_that_are_swapped_while_they_are_opened(place, given):
    good, evil = place.folder / 'good', place.folder / 'evil'
    good.write_bytes(PLAN)
    evil.write_bytes(OTHER)
    swaps = Counter()

    def swap():
        link(place.engine, (good, evil)[swaps['all'] % 2])
        swaps['all'] += 1

    attempts = 0
    with meanwhile(swap):
        # A busy machine may let one of the two threads wait; both must get their turns.
        while attempts < 400 or swaps['all'] < 100:
            attempt(place.engine)
            attempts += 1
    assert set(given) <= {PLAN}
    print(f'{len(given)} of {attempts} loaded, {swaps["all"]} swaps')


def test_pairs_that_are_swapped_while_they_are_opened(place):
    """Whatever is read, model and manifest belong together."""
    for name, content in (('a', PLAN), ('b', OTHER)):
        (place.folder / name).write_bytes(content)
        (place.folder / f'{name}.json').write_text(json.dumps(described(content)))
    turns = iter(range(10**9))

    def swap():
        name = 'ab'[next(turns) % 2]
        link(place.engine, place.folder / name)
        link(place.manifest, place.folder / f'{name}.json')

    outcomes = Counter()
    with meanwhile(swap):
        for _ in range(400):
            model = read_or_none(place.engine)
            outcomes['refused' if model is None else 'read'] += 1
            if model is not None:
                assert model.sha256 == hashlib.sha256(model.content).hexdigest()
                assert model.sha256 == model.manifest.engine.sha256
    print(dict(outcomes))


def test_a_file_that_is_written_while_it_is_read(place):
    """Bytes change in place, the size too: what is returned has the manifest's hash."""
    large = {letter: plan(letter, 3_000_000) for letter in 'ab'}
    place.engine.write_bytes(large['a'])
    place.manifest.write_text(json.dumps(described(large['a'])))
    turns = iter(range(10**9))

    def write():
        turn = next(turns) % 3
        with place.engine.open('r+b') as file:
            file.write(large['ab'[turn % 2]])
            file.truncate(3_000_000 + turn // 2)

    outcomes = Counter()
    with meanwhile(write):
        for _ in range(60):
            model = read_or_none(place.engine)
            outcomes['refused' if model is None else 'read'] += 1
            assert model is None or model.content == large['a']
    print(dict(outcomes))
    assert outcomes.total() == 60


def test_a_file_that_grows_or_shrinks_under_the_reader(place, monkeypatch):
    real = os.fstat

    def lying(size):
        def fstat(descriptor):
            status = real(descriptor)
            values = list(status)
            values[6] = size
            return os.stat_result(values)

        return fstat

    place.manifest.unlink()
    for size, word in ((len(PLAN) - 1, 'got more'), (len(PLAN) + 1, f'got {len(PLAN)}')):
        monkeypatch.setattr('trt_perception.model.model_file.os.fstat', lying(size))
        with pytest.raises(EngineError, match=word):
            read_model_file(place.engine)


def test_gigabytes_that_nobody_vouches_for_are_not_read(place, monkeypatch):
    os.truncate(place.engine, 2**33)
    monkeypatch.setattr('trt_perception.model.model_file.read_opened', None)
    read = json.dumps(described(PLAN)).encode()
    monkeypatch.setattr('trt_perception.model.model_file.read_checked', lambda *_: (read, None))
    with pytest.raises(ManifestError, match=f'got {2**33} bytes'):
        read_model_file(place.engine)


# Owners and modes, as somebody who is not root.


@contextlib.contextmanager
def as_nobody():
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


@as_root
@pytest.mark.parametrize(
    ('owner', 'mode', 'word'),
    [
        (0, 0o644, ''),
        (NOBODY, 0o600, ''),
        (NOBODY, 0o664, ''),
        (STRANGER, 0o644, f'uid {STRANGER}'),
        (0, 0o600, 'Permission denied'),
        (NOBODY, 0o000, 'Permission denied'),
        (NOBODY, 0o606, 'chmod o-w'),
        (0, 0o666, 'chmod o-w'),
    ],
)
@pytest.mark.parametrize('which', ['tiny.engine', 'tiny.engine.json'])
def test_as_somebody_who_is_not_root(owner, mode, word, which, given):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        place = Place(Path(folder) / 'models')
        place.reset()
        target = place.folder / which
        os.chown(target, owner, -1)
        target.chmod(mode)
        with as_nobody():
            message = str(attempt(place.engine))
    assert (given == [PLAN]) == (not word), message
    assert word in message
