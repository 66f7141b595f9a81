# SPDX-License-Identifier: Apache-2.0
"""Damages bags in many ways, and checks that the reader returns the rest and reports the losses.

Run as a program: `python -m support.fuzz.bag_fuzz FOLDER FIRST COUNT`. It reads COUNT damaged
bags, prints one JSON line with the results, and stays within LIMIT_BYTES of memory.
"""

import json
import random
import resource
import shutil
import struct
import sys
from pathlib import Path

from mcap.writer import CompressionType, IndexType

from support.bags import messages, write_folder, write_mcap

#: Address space that reading may add. Two limits of the reader's constants fit in.
LIMIT_BYTES = 3 * 2**30
ROWS = messages(90, size=700)
FIELDS = struct.Struct('<Q')
#: Sizes, offsets and times that a damaged file may state.
LIES = (0, 1, 8, 33, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


def write_originals(folder):
    """Write intact bags of all kinds. Return their paths."""
    kinds = {
        'zstd': {},
        'lz4': {'compression': CompressionType.LZ4},
        'plain': {'compression': CompressionType.NONE},
        'one_chunk': {'chunk_size': 10**7},
        'no_index': {'index_types': IndexType.NONE},
        'unchunked': {'use_chunking': False},
    }
    paths = [write_mcap(folder / f'{name}.mcap', ROWS, **kinds[name]) for name in kinds]
    return paths + [
        write_folder(folder / f'{storage}_{mode}'.lower(), ROWS, storage, mode)
        for storage in ('SQLITE3', 'MCAP')
        for mode in ('NONE', 'MESSAGE', 'FILE')
    ]


def damage(content, rng):
    """Return damaged bytes, and the name of the damage."""
    content = bytearray(content)
    kind = rng.choice(['truncate', 'flip', 'flips', 'zeros', 'lie', 'copy', 'insert', 'garbage'])
    size = len(content)
    place = rng.randrange(size)
    if kind == 'truncate':
        del content[place:]
    elif kind in ('flip', 'flips'):
        for _ in range(1 if kind == 'flip' else rng.randrange(2, 200)):
            content[rng.randrange(size)] ^= 1 << rng.randrange(8)
    elif kind == 'zeros':
        end = min(size, place + rng.choice([16, 512, 4096, 20000]))
        content[place:end] = bytes(end - place)
    elif kind == 'lie':
        # Values of 8 bytes that look like a size, an offset or a time.
        for _ in range(rng.choice([1, 1, 3, 30])):
            place = rng.randrange(max(1, size - 8))
            FIELDS.pack_into(content, place, rng.choice([*LIES, size, place]))
    elif kind == 'copy':
        # A page or record in the place of another, so that pages may contain each other.
        length = rng.choice([37, 512, 4096])
        source = rng.randrange(size) // length * length
        target = rng.randrange(size) // length * length
        content[target : target + length] = content[source : source + length]
    elif kind == 'insert':
        content[place:place] = rng.randbytes(rng.choice([1, 9, 4096]))
    else:
        content[:] = content[: rng.choice([0, 8, 16, 100])] + rng.randbytes(rng.randrange(5000))
    return bytes(content[: 4 * size]), kind


def damaged_copy(original, folder, rng):
    """Write a damaged copy of a bag. Return its path and the name of the damage."""
    if original.is_file():
        path = folder / original.name
        content, kind = damage(original.read_bytes(), rng)
        path.write_bytes(content)
        return path, kind
    path = shutil.copytree(original, folder / original.name)
    file = rng.choice(sorted(path.iterdir()))
    content, kind = damage(file.read_bytes(), rng)
    if file.suffix != '.yaml' and rng.random() < 0.3:
        (path / 'metadata.yaml').unlink()
    file.write_bytes(content)
    return path, kind


def read(path):
    """Return the messages of a damaged bag, its losses, and the reason if it cannot be opened."""
    from trt_perception.bags.open_bag import open_bag
    from trt_perception.errors import ConfigError

    try:
        bag = open_bag(path)
    except ConfigError as error:
        return [], [], str(error)
    try:
        found = list(bag.messages(bag.topics))
        assert [m.log_ns for m in found] == sorted(m.log_ns for m in found), path
        assert len({(m.topic, m.log_ns, m.data) for m in found}) == len(found), path
        return found, [*bag.losses, *bag.refused], ''
    finally:
        bag.close()


def peak_memory():
    """Return the peak of this process in bytes. `ru_maxrss` includes that of its parent."""
    status = Path('/proc/self/status').read_text()
    return int(status.partition('VmHWM:')[2].split()[0]) * 1024


def main(folder, first, count):
    originals = write_originals(folder)
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    intact = {(topic, ns, data) for topic, ns, data in ROWS}
    results = {'read': 0, 'refused': 0, 'whole': 0, 'partial': 0, 'silent': [], 'wrong': []}
    for seed in range(first, first + count):
        rng = random.Random(seed)
        work = folder / str(seed)
        work.mkdir()
        path, kind = damaged_copy(rng.choice(originals), work, rng)
        found, losses, refusal = read(path)
        results['refused' if refusal else 'read'] += 1
        kept = {(m.topic, m.log_ns, m.data) for m in found}
        has_checksums = path.stem in ('zstd', 'lz4', 'plain', 'one_chunk')
        if not refusal:
            missing = intact - kept
            results['partial' if missing else 'whole'] += 1
            if missing and not losses:
                results['silent'].append((seed, path.name, kind, len(missing), has_checksums))
            if kept - intact and has_checksums:
                results['wrong'].append((seed, path.name, kind, len(kept - intact)))
        shutil.rmtree(work)
    results['memory'] = peak_memory()
    print(json.dumps(results))


if __name__ == '__main__':
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
