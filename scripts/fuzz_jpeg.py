# SPDX-License-Identifier: Apache-2.0
"""Send damaged JPEG files through the node's checks to nvJPEG, on a machine with a GPU.

Child processes decode the files. Each of these is an error: a process crashes, bytes before or
after the pixels change, pixels stay unwritten, the GPU is lost, or an undamaged file looks
different after a damaged file.

Exit codes: 0 no error, 1 errors, 2 wrong usage or nvJPEG is missing, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / 'test')]

from support.fuzz import jpeg_fuzz  # noqa: E402
from trt_perception import gpu  # noqa: E402
from trt_perception.errors import (  # noqa: E402
    CudaError,
    ImageError,
)
from trt_perception.gpu.bindings import call  # noqa: E402
from trt_perception.gpu.nvjpeg import NvJpeg  # noqa: E402
from trt_perception.images.compressed import check_image_file  # noqa: E402
from trt_perception.images.jpeg import (  # noqa: E402
    as_plain_jpeg,
    decode_on_cpu,
)
from trt_perception.process.option_parser import OptionParser  # noqa: E402

EXAMPLES = """\
examples:
  scripts/fuzz_jpeg                             100,000 files, in minutes
  scripts/fuzz_jpeg --seconds 60                stop after a minute
  scripts/fuzz_jpeg --count 1000 --here         in this process, for compute-sanitizer
"""
_BATCH = 1000
_GUARD = 4096
# Above this size, unwritten pixels are not detected, because the check needs two decoded copies.
_LARGE = 2**20
_REFERENCE = '320x240 420 5'


class Target:
    """Memory for decoded pixels, with guard bytes before and after the pixels."""

    def __init__(self):
        self.nvjpeg = NvJpeg()
        self.decoder = self.nvjpeg.decoder()
        self.stream = gpu.Stream()
        self._device = gpu.DeviceBuffer(2**20)
        self._host = gpu.PinnedBuffer(2**20)

    def decode(self, frame, fill):
        """Return the reason of a refusal, the pixels, and whether the guards are intact."""
        pixels = frame.height * frame.step
        size = pixels + 2 * _GUARD
        if size > self._device.size:
            self._device.close()
            self._host.close()
            self._device, self._host = gpu.DeviceBuffer(size), gpu.PinnedBuffer(size)
        call('cudaMemsetAsync', self._device.pointer, fill, size, self.stream.handle)
        self.stream.synchronize()
        place = self._device.pointer + _GUARD
        reason = self.decoder.decode(
            frame.jpeg, (frame.width, frame.height), place, frame.step, self.stream
        )
        gpu.copy_async(self._host.pointer, self._device.pointer, size, self.stream)
        self.stream.synchronize()
        found = self._host.array[:size]
        whole = (found[:_GUARD] == fill).all() and (found[_GUARD + pixels :] == fill).all()
        return reason, found[_GUARD : _GUARD + pixels], bool(whole)


def frame_of(content):
    """Return a file as the node's frame for nvJPEG, or the node's reason to refuse the file."""
    try:
        return as_plain_jpeg(check_image_file(np.frombuffer(content, np.uint8)))
    except ImageError:
        return 'refused'


class Fuzzer:
    """Counts the outcomes of files, and records errors."""

    def __init__(self):
        self.outcomes = Counter()
        self.wrong = []
        self.files = jpeg_fuzz.plain_jpegs()
        self._target = Target()
        self._reference = frame_of(self.files[_REFERENCE])
        self._expected = self._target.decode(self._reference, 0)[1].copy()

    def look(self, content, name):
        """Decode one file and count its outcome."""
        frame = frame_of(content)
        if isinstance(frame, str):
            self.outcomes[frame if frame == 'refused' else f'CPU: {frame}'] += 1
            return
        reason, pixels, whole = self._target.decode(frame, 0x55)
        if not whole:
            self.wrong.append(f'{name}: bytes around the pixels were changed')
        self.outcomes[f'nvJPEG: {reason or "decoded"}'] += 1
        if reason:
            try:
                decode_on_cpu(frame)
                self.outcomes['decoded by the CPU instead'] += 1
            except ImageError:
                self.outcomes['also refused by the CPU'] += 1
        elif pixels.size < _LARGE:
            first = pixels.copy()
            again, pixels, whole = self._target.decode(frame, 0xAA)
            if again or not whole or (first != pixels).any():
                differing = int((first != pixels).sum())
                self.wrong.append(
                    f'{name}: two decodes differ in {differing} of {pixels.size} bytes; '
                    f'the second: {again or "decoded"}, '
                    f'bytes around the pixels {"kept" if whole else "changed"}'
                )

    def whole_file(self, name):
        """Check that an undamaged file still gives the same pixels as at the beginning."""
        reason, pixels, _ = self._target.decode(self._reference, 0x33)
        if reason or (pixels != self._expected).any():
            self.wrong.append(f'{name}: an undamaged file looks different afterwards: {reason}')


def run_here(seed, count, progress):
    """Decode some files in this process; write the name of the current file to ``progress``."""
    fuzzer = Fuzzer()
    rng = random.Random(seed)
    for index in range(count):
        content = jpeg_fuzz.randomly_changed_jpeg(rng, fuzzer.files)
        if progress is not None:
            progress.write_text(str(index))
        name = f'seed {seed}, file {index}'
        try:
            fuzzer.look(content, name)
            if index % 25 == 24:
                fuzzer.whole_file(name)
        except CudaError as error:
            fuzzer.wrong.append(f'{name}: {error}')
            break
    return {'outcomes': fuzzer.outcomes, 'wrong': fuzzer.wrong[:20]}


def run_child(seed, count, folder):
    """Decode some files in a child process."""
    progress = Path(folder) / str(seed)
    command = [sys.executable, __file__, '--here', '--seed', str(seed), '--count', str(count)]
    ended = subprocess.run(
        [*command, '--progress', str(progress)], capture_output=True, text=True, timeout=600
    )
    if ended.returncode in (0, 1) and ended.stdout:
        return json.loads(ended.stdout.splitlines()[-1])
    last = progress.read_text() if progress.exists() else 'none'
    said = ended.stderr.strip().splitlines()[-1:]
    wrong = f'seed {seed}, file {last}: the process ended with {ended.returncode}: {said}'
    return {'outcomes': {}, 'wrong': [wrong]}


def run_children(options):
    """Decode files until the count or the time limit is reached."""
    started = time.monotonic()
    outcomes, wrong = Counter(), []
    seeds = range(options.seed, options.seed + -(-options.count // _BATCH))

    def work(seed):
        if time.monotonic() - started < options.seconds and len(wrong) < 10:
            count = min(_BATCH, options.count - (seed - options.seed) * _BATCH)
            found = run_child(seed, count, folder)
            outcomes.update(found['outcomes'])
            wrong.extend(found['wrong'])

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.processes) as pool:
        list(pool.map(work, seeds))
    return {'outcomes': outcomes, 'wrong': wrong, 'seconds': time.monotonic() - started}


def main():
    parser = OptionParser(
        'scripts/fuzz_jpeg', 'Damaged JPEGs through nvJPEG, in child processes.', EXAMPLES
    )
    parser.add_argument('--count', type=int, default=100_000, help='files (default 100,000)')
    parser.add_argument(
        '--seconds', type=float, default=3600.0, help='start no new files after this time'
    )
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--processes', type=int, default=4, help='at once (default 4)')
    parser.add_argument('--here', action='store_true', help='decode in this process only')
    parser.add_argument('--progress', type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        gpu.Device(0)
        version = '.'.join(map(str, NvJpeg().version))
    except CudaError as error:
        parser.error(str(error))
    try:
        if options.here:
            result = run_here(options.seed, options.count, options.progress)
        else:
            result = run_children(options)
    except KeyboardInterrupt:
        return 130
    files = sum(
        n for kind, n in result['outcomes'].items() if not kind.endswith(('instead', 'too'))
    )
    print(json.dumps({'nvjpeg': version, 'files': files, **result}))
    return 1 if result['wrong'] else 0


if __name__ == '__main__':
    sys.exit(main())
