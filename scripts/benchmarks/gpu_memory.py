"""Read the used memory of this machine's GPUs from NVML, without a CUDA context."""

from __future__ import annotations

import ctypes


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (
        ('total', ctypes.c_ulonglong),
        ('free', ctypes.c_ulonglong),
        ('used', ctypes.c_ulonglong),
    )


def used_mib():
    """Return the memory used on all GPUs by all processes, in MiB; None if NVML reports none."""
    try:
        nvml = ctypes.CDLL('libnvidia-ml.so.1')
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None
    used = 0
    for index in range(count.value):
        device, memory = ctypes.c_void_p(), _Memory()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            return None
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
            return None
        used += memory.used
    return used / 2**20
