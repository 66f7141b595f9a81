# SPDX-License-Identifier: Apache-2.0
"""Open a pipeline with little free GPU memory, then with more, until it opens.

    python full_gpu.py ENGINE

Prints a JSON object. ``before`` and ``after`` are the free bytes with nothing open. Each of
``attempts`` has ``left`` (free bytes at its start), ``lost`` (bytes not freed), and ``kind`` and
``message`` of its error, which are empty for the last attempt.
"""

import json
import sys
from pathlib import Path

# Python starts this file by its path, so the folder of the tests' support is not in sys.path.
sys.path.append(str(Path(__file__).resolve().parents[2]))
from support.models.open_model import open_by_parameters
from trt_perception import gpu
from trt_perception.errors import CudaError, TrtPerceptionError
from trt_perception.parameters.values import ParameterValues

MIB = 2**20


def fill_memory():
    """Allocate all free memory; return the buffers, with the small ones last."""
    taken, size = [], 16 * 1024 * MIB
    while size >= MIB:
        try:
            taken.append(gpu.DeviceBuffer(size))
        except CudaError:  # noqa: PERF203
            size //= 2
    return taken


def try_to_open(device, parameters):
    left = device.memory()[0]
    kind = message = ''
    try:
        open_by_parameters(parameters).close()
    except TrtPerceptionError as error:
        kind, message = type(error).__name__, str(error)
    return {
        'left': left,
        'lost': left - device.memory()[0],
        'kind': kind,
        'message': message,
    }


def main():
    parameters = ParameterValues(engine_path=sys.argv[1])
    device = gpu.Device(0)
    for _ in range(3):  # the driver and TensorRT never free some allocations
        open_by_parameters(parameters).close()
    before = device.memory()[0]
    taken = fill_memory()
    attempts = [try_to_open(device, parameters)]
    while attempts[-1]['kind'] and taken:
        # Free the smallest buffer first.
        taken.pop().close()
        attempts.append(try_to_open(device, parameters))
    for buffer in taken:
        buffer.close()
    print(json.dumps({'before': before, 'after': device.memory()[0], 'attempts': attempts}))


if __name__ == '__main__':
    main()
