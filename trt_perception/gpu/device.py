"""One GPU."""

from __future__ import annotations

from typing import Any

from trt_perception.errors import CudaError
from trt_perception.gpu.bindings import call, runtime

__all__ = ['Device']


class Device:
    """One GPU, used through its primary context.

    Attributes:
        index: the CUDA ordinal.
        name: as the driver gives it.
        compute_capability: (major, minor).
        integrated: CPU and GPU share their memory, as on Jetson.

    Raises:
        CudaError: there is no driver, it is too old, or no such device.
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
        """Make it this thread's device; each thread starts with device 0.

        CUDA alone knows which one is: another Device, or a library, may have set it meanwhile.
        """
        call('cudaSetDevice', self.index)

    def memory(self) -> tuple[int, int]:
        """Return free and total memory in bytes."""
        free, total = call('cudaMemGetInfo')
        return int(free), int(total)

    def synchronize(self) -> None:
        """Wait for everything on the device; for setting up and tests, not for the frame path."""
        call('cudaDeviceSynchronize')
