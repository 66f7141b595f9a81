# SPDX-License-Identifier: Apache-2.0
"""Read names and used memory of this machine's GPUs from NVML, without a CUDA context."""

from __future__ import annotations

import ctypes

_NAME_BYTES = 96


class _Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (
        ('total', ctypes.c_ulonglong),
        ('free', ctypes.c_ulonglong),
        ('used', ctypes.c_ulonglong),
    )


def _open_nvml():
    """Return NVML and the handles of all GPUs; None and no handles if NVML is missing or fails."""
    try:
        nvml = ctypes.CDLL('libnvidia-ml.so.1')
    except OSError:
        return None, []
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return None, []
    devices = [ctypes.c_void_p() for _ in range(count.value)]
    for index, device in enumerate(devices):
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)):
            return None, []
    return nvml, devices


def names():
    """Return the names of the GPUs."""
    nvml, devices = _open_nvml()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    return [
        name.value.decode(errors='replace')
        for device in devices
        if not nvml.nvmlDeviceGetName(device, name, _NAME_BYTES)
    ]


def driver():
    """Return the version of the driver; '' if unknown."""
    nvml, _ = _open_nvml()
    version = ctypes.create_string_buffer(_NAME_BYTES)
    if nvml is None or nvml.nvmlSystemGetDriverVersion(version, _NAME_BYTES):
        return ''
    return version.value.decode(errors='replace')


def used_mib():
    """Return the memory used on all GPUs by all processes, in MiB; None if NVML reports none."""
    nvml, devices = _open_nvml()
    memory, used = _Memory(), 0
    for device in devices:
        if nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
            return None
        used += memory.used
    return used / 2**20 if devices else None
