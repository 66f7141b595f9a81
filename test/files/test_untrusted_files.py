# SPDX-License-Identifier: Apache-2.0
"""Tests with hundreds of damaged engines and manifests.

Bytes that differ from their manifest must not reach TensorRT. A stand-in for TensorRT's
runtime records every plan that it receives.
"""

import contextlib
import copy
import hashlib
import json
import os
import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from support.fuzz.untrusted_engines import (
    OTHER,
    PLAN,
    EngineFiles,
    error_of_opening,
    manifest_of,
    random_plan,
    value_paths,
)
from trt_perception.errors import EngineError

pytest_plugins = ['support.fuzz.untrusted_fixtures']
NOBODY = 65534
STRANGER = 12345
as_root = pytest.mark.skipif(
    os.geteuid() != 0, reason='needs root to change the owner of files and the user'
)


def test_valid_engine_reaches_the_stand_in_for_tensorrt(engine_files, received_plans):
    assert 'stand-in was reached' in str(error_of_opening(engine_files.engine))
    assert received_plans == [PLAN]


# Engines. Each function damages an engine or its manifest at random.


def flip_bits(rng, engine_files):
    content = bytearray(PLAN)
    for position in rng.sample(range(8 * len(content)), rng.randrange(1, 5)):
        content[position // 8] ^= 1 << position % 8
    engine_files.engine.write_bytes(content)


def truncate(rng, engine_files):
    engine_files.engine.write_bytes(PLAN[: rng.randrange(len(PLAN))])


def extend(rng, engine_files):
    engine_files.engine.write_bytes(PLAN + rng.randbytes(rng.choice((1, 4, 4096))))


def replace_engine(rng, engine_files):
    engine_files.engine.write_bytes(random_plan(rng.randrange(10, 10**9)))


def grow_without_bytes(rng, engine_files):
    os.truncate(engine_files.engine, rng.choice((2**30, 2**33, 2**34, 2**34 + 1)))  # a sparse file


def declare_another_size(rng, engine_files):
    sizes = (0, -1, 1, len(PLAN) - 1, len(PLAN) + 1, 2**31, 2**53, 2**53 + 1, 2**64, 10**400)
    content = manifest_of(PLAN)
    content['engine']['size_bytes'] = rng.choice(sizes)
    engine_files.manifest.write_text(json.dumps(content))


def declare_another_hash(rng, engine_files):
    digest = list(hashlib.sha256(PLAN).hexdigest())
    at = rng.randrange(64)
    digest[at] = rng.choice([c for c in '0123456789abcdefABCg' if c != digest[at]])
    content = manifest_of(PLAN)
    content['engine']['sha256'] = ''.join(digest)
    engine_files.manifest.write_text(json.dumps(content))


def swap_links(rng, engine_files):
    """Replace the engine or its manifest by a link to the file of another engine."""
    store = engine_files.folder / 'store'
    store.mkdir()
    (store / 'other.engine').write_bytes(OTHER)
    (store / 'other.engine.json').write_text(json.dumps(manifest_of(OTHER, 'other.engine')))
    if rng.random() < 0.5:
        engine_files.engine.unlink()
        engine_files.engine.symlink_to(store / 'other.engine')
    else:
        engine_files.manifest.unlink()
        engine_files.manifest.symlink_to(store / 'other.engine.json')


def break_links(rng, engine_files):
    target = rng.choice((engine_files.engine, engine_files.manifest))
    target.unlink()
    target.symlink_to(
        rng.choice((target, engine_files.folder, engine_files.folder / 'gone', '/dev/zero'))
    )


def make_world_writable(rng, engine_files):
    target = rng.choice((engine_files.engine, engine_files.manifest))
    target.chmod(0o002 | rng.getrandbits(9))


def change_owner(rng, engine_files):
    os.chown(
        rng.choice((engine_files.engine, engine_files.manifest)), rng.randrange(1000, 60000), -1
    )


SPOILED = {
    flip_bits: 80,
    truncate: 40,
    extend: 12,
    replace_engine: 10,
    grow_without_bytes: 10,
    declare_another_size: 30,
    declare_another_hash: 30,
    swap_links: 10,
    break_links: 30,
    make_world_writable: 30,
    change_owner: 10,
}


@pytest.mark.parametrize('damage', SPOILED, ids=lambda damage: damage.__name__)
def test_spoiled_engines_never_reach_tensorrt(damage, engine_files, received_plans):
    if damage is change_owner and os.geteuid() != 0:
        pytest.skip('needs root to change the owner of a file')
    for seed in range(SPOILED[damage]):
        engine_files.reset()
        damage(random.Random(seed), engine_files)
        error = error_of_opening(engine_files.engine)
        assert received_plans == [], (seed, error)
        assert isinstance(error, EngineError), (seed, error)


# Manifests


def malformed():
    """Return manifests that break a rule of docs/manifest.md, as text."""
    whole = manifest_of(PLAN)
    texts = []

    def add(path, value):
        content = copy.deepcopy(whole)
        place = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        texts.append(json.dumps(content))

    free = {('onnx',), ('engine',), ('notes',), ('notes', 'trained_on')}
    for path in value_paths(whole):
        for value in (None, [], {}, True, -7, 10**400, float('nan'), 'x' * 70_000, '\ud800', ['']):
            kept = path in free or (path[0] in ('inputs', 'outputs') and path[-1] == 'shape')
            name = path[0] in ('inputs', 'outputs') and path[-1] == 'name'
            size = path[-1] == 'shape' or path[-2:-1] == ('shape',)
            text = isinstance(value, str) and (name or path == ('engine', 'file'))
            if kept or size or text or (value is True and path[0] == 'decoder'):
                continue
            if path == ('preprocessing', 'mean', path[-1]) and value == -7:
                continue
            if path == ('preprocessing', 'pad_value') and value is None:
                continue  # padding with zeros after normalisation
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


def test_malformed_manifests_are_refused(engine_files, received_plans):
    texts = malformed()
    assert len(texts) > 200
    accepted = []
    for text in texts:
        engine_files.manifest.write_text(text, errors='surrogatepass')
        assert isinstance(error_of_opening(engine_files.engine), EngineError)
        accepted += [text[:400]] * len(received_plans)
        received_plans.clear()
    assert accepted == []
    print(f'{len(texts)} malformed manifests refused')


def test_manifest_with_flipped_bits_is_refused_or_fits_the_engine(engine_files, received_plans):
    """A flip may produce another valid manifest, which must still describe the engine."""
    whole = json.dumps(manifest_of(PLAN)).encode()
    rng = random.Random(3)
    outcomes = Counter()
    for _ in range(150):
        content = bytearray(whole)
        for position in rng.sample(range(8 * len(content)), rng.randrange(1, 4)):
            content[position // 8] ^= 1 << position % 8
        engine_files.manifest.write_bytes(content)
        received_plans.clear()
        error_of_opening(engine_files.engine)
        if received_plans:
            assert received_plans == [PLAN]
            engine = json.loads(content)['engine']
            assert engine['sha256'] == hashlib.sha256(PLAN).hexdigest()
            assert engine['size_bytes'] == len(PLAN)
        outcomes['loaded' if received_plans else 'refused'] += 1
    print(dict(outcomes))
    assert outcomes['refused'] > 100


# Owners and modes, checked as a user other than root


@contextlib.contextmanager
def act_as_nobody():
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
def test_owner_and_mode_are_checked_for_users_other_than_root(
    owner, mode, word, which, received_plans, golden_messages
):
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        place = EngineFiles(Path(folder) / 'models')
        place.reset()
        target = place.folder / which
        os.chown(target, owner, -1)
        target.chmod(mode)
        with act_as_nobody():
            message = str(error_of_opening(place.engine))
    assert (received_plans == [PLAN]) == (not word), message
    golden_messages.add(message)
