# SPDX-License-Identifier: Apache-2.0
"""Select a GPU, and read its properties."""

from __future__ import annotations

from typing import Any

from trt_perception.errors import CudaError
from trt_perception.gpu.bindings import call, runtime


class Device:
    """One GPU, used through its primary context.

    Attributes:
        index: the CUDA ordinal.
        compute_capability: (major, minor).
        integrated: whether CPU and GPU share their memory, as on Jetson.

    Raises:
        CudaError: the driver is missing or too old, or the device does not exist.
    """

    def __init__(self, index: int) -> None:
        count = call('cudaGetDeviceCount')
        if not 0 <= index < count:
            raise CudaError(
                "parameter 'device_ids'",
                str(index),
                expected=f'a number from 0 to {count - 1}, one per GPU of this machine',
            )
        self.index = index
        self.use()
        self.compute_capability = (
            self._attribute(runtime().cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor),
            self._attribute(runtime().cudaDeviceAttr.cudaDevAttrComputeCapabilityMinor),
        )
        self.integrated = bool(self._attribute(runtime().cudaDeviceAttr.cudaDevAttrIntegrated))
        self.name: str = call('cudaGetDeviceProperties', index).name.decode()

    def _attribute(self, attribute: Any) -> int:
        return int(call('cudaDeviceGetAttribute', attribute, self.index))

    def use(self) -> None:
        """Make this GPU the current device of the calling thread. Threads start with device 0.

        Always calls CUDA: another Device or a library may have changed the current device.
        """
        call('cudaSetDevice', self.index)

    def memory(self) -> tuple[int, int]:
        """Return free and total memory in bytes."""
        free, total = call('cudaMemGetInfo')
        return int(free), int(total)

    def synchronize(self) -> None:
        """Wait for all streams of the device. Only for setup and tests, not per frame."""
        call('cudaDeviceSynchronize')
