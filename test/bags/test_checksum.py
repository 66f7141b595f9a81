# SPDX-License-Identifier: Apache-2.0
"""The CRC-32 of MCAP files: with and without zlib-ng, values and results are the same."""

import json
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from mcap.writer import CompressionType

from support.bags import messages, write_mcap
from support.optional_packages import needs
from trt_perception.bags.checksum import crc32

TEST_FOLDER = Path(__file__).resolve().parents[1]
#: Prints the module that computes checksums, log times of the messages, and the losses of a bag.
READ = """
import json, sys
if sys.argv[1] == 'without':
    sys.modules['zlib_ng'] = sys.modules['zlib_ng.zlib_ng'] = None
from trt_perception.bags import checksum
from trt_perception.bags.open_bag import open_bag
bag = open_bag(sys.argv[2])
times = [message.log_ns for message in bag.messages(bag.topics)]
losses = [[loss.start_ns, loss.end_ns] for loss in bag.losses]
print(json.dumps([checksum._function().__module__, times, losses]))
"""


@pytest.mark.parametrize('size', [0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 255, 4096, 5121, 6_220_871])
def test_checksum_equals_that_of_zlib(size):
    data = np.random.default_rng(size).integers(0, 256, size + 7, np.uint8).tobytes()
    for start in range(7):  # also at addresses that are not aligned
        part = memoryview(data)[start : start + size]
        assert crc32(part) == zlib.crc32(part)
        assert crc32(part, 0xFEDCBA98) == zlib.crc32(part, 0xFEDCBA98)
    assert crc32(data[3:], crc32(data[:3])) == zlib.crc32(data)


@needs('zlib_ng')
def test_damaged_chunk_is_found_with_and_without_zlib_ng(tmp_path):
    rows = messages()
    path = write_mcap(tmp_path / 'a.mcap', rows, compression=CompressionType.NONE)
    content = bytearray(path.read_bytes())
    # Within a text, so that only the checksum tells the damage.
    content[content.index(b'x' * 1000, len(content) // 2) + 500] ^= 1
    path.write_bytes(content)
    results = []
    for mode in ('with', 'without'):
        process = subprocess.run(
            [sys.executable, '-c', READ, mode, str(path)],
            capture_output=True,
            text=True,
            timeout=280,
            cwd=TEST_FOLDER,
        )
        assert process.returncode == 0, process.stderr
        results.append(json.loads(process.stdout))
    assert [module for module, *_ in results] == ['zlib_ng.zlib_ng', 'zlib']
    assert results[0][1:] == results[1][1:]
    _, times, losses = results[1]
    assert len(losses) == 1
    assert 0 < len(times) < len(rows)
