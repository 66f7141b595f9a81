# SPDX-License-Identifier: Apache-2.0
"""Tests with engines and manifests that change while they are read."""

import contextlib
import hashlib
import json
import os
import threading
from collections import Counter

from support.fuzz.untrusted_engines import OTHER, PLAN, error_of_opening, manifest_of, random_plan
from trt_perception.errors import EngineError, ManifestError
from trt_perception.model.files.model_file import read_model_file

pytest_plugins = ['support.fuzz.untrusted_fixtures']


@contextlib.contextmanager
def repeat_in_thread(action):
    """Repeat an action in another thread."""
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
    """Return a model, or None if it is refused."""
    try:
        return read_model_file(path)
    except EngineError:
        return None


def link(path, target):
    new = path.with_name(path.name + '.new')
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.replace(path)


def test_link_swapped_during_opening_loads_only_the_described_plan(engine_files, received_plans):
    good, evil = engine_files.folder / 'good', engine_files.folder / 'evil'
    good.write_bytes(PLAN)
    evil.write_bytes(OTHER)
    swaps = Counter()

    def swap():
        link(engine_files.engine, (good, evil)[swaps['all'] % 2])
        swaps['all'] += 1

    attempts = 0
    with repeat_in_thread(swap):
        # On a busy machine, one thread may wait. Continue until both threads had turns.
        while attempts < 400 or swaps['all'] < 100:
            error_of_opening(engine_files.engine)
            attempts += 1
    assert set(received_plans) <= {PLAN}
    print(f'{len(received_plans)} of {attempts} loaded, {swaps["all"]} swaps')


def test_swapped_pairs_of_model_and_manifest_are_never_mixed(engine_files):
    """Each model that is read must have its own manifest."""
    for name, content in (('a', PLAN), ('b', OTHER)):
        (engine_files.folder / name).write_bytes(content)
        (engine_files.folder / f'{name}.json').write_text(json.dumps(manifest_of(content)))
    turns = iter(range(10**9))

    def swap():
        name = 'ab'[next(turns) % 2]
        link(engine_files.engine, engine_files.folder / name)
        link(engine_files.manifest, engine_files.folder / f'{name}.json')

    outcomes = Counter()
    with repeat_in_thread(swap):
        for _ in range(400):
            model = read_or_none(engine_files.engine)
            outcomes['refused' if model is None else 'read'] += 1
            if model is not None:
                assert model.sha256 == hashlib.sha256(model.content).hexdigest()
                assert model.sha256 == model.manifest.engine.sha256
    print(dict(outcomes))


def test_file_written_during_reading_is_refused_or_intact(engine_files):
    """Bytes and size change in place. Returned bytes must have the hash in the manifest."""
    large = {letter: random_plan(letter, 3_000_000) for letter in 'ab'}
    engine_files.engine.write_bytes(large['a'])
    engine_files.manifest.write_text(json.dumps(manifest_of(large['a'])))
    turns = iter(range(10**9))

    def write():
        turn = next(turns) % 3
        with engine_files.engine.open('r+b') as file:
            file.write(large['ab'[turn % 2]])
            file.truncate(3_000_000 + turn // 2)

    outcomes = Counter()
    with repeat_in_thread(write):
        for _ in range(60):
            model = read_or_none(engine_files.engine)
            outcomes['refused' if model is None else 'read'] += 1
            assert model is None or model.content == large['a']
    print(dict(outcomes))
    assert outcomes.total() == 60


def test_file_that_changes_size_during_reading_is_refused(
    engine_files, monkeypatch, golden_messages
):
    real = os.fstat

    def lying(size):
        def fstat(descriptor):
            status = real(descriptor)
            values = list(status)
            values[6] = size
            return os.stat_result(values)

        return fstat

    engine_files.manifest.unlink()
    for size in (len(PLAN) - 1, len(PLAN) + 1):
        monkeypatch.setattr('trt_perception.model.files.model_file.os.fstat', lying(size))
        with golden_messages.raises(EngineError):
            read_model_file(engine_files.engine)


def test_large_file_without_a_manifest_is_not_read(engine_files, monkeypatch, golden_messages):
    os.truncate(engine_files.engine, 2**33)
    monkeypatch.setattr('trt_perception.model.files.model_file.read_exactly', None)
    read = json.dumps(manifest_of(PLAN)).encode()
    monkeypatch.setattr(
        'trt_perception.model.files.model_file.read_checked', lambda *_: (read, None)
    )
    with golden_messages.raises(ManifestError):
        read_model_file(engine_files.engine)
