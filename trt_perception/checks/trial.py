"""What the checks try for real: CUDA, the GPU, its compiler, one run of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ['check_jpeg', 'check_kernels', 'cuda_versions', 'open_device', 'run_once']

# All imports are late: NumPy, which everything below needs, may be what is broken.


def cuda_versions() -> Mapping[str, str]:
    """Return CUDA's versions of driver and runtime.

    Raises:
        CudaError: there is no driver, or cuda-python is missing.
    """
    from trt_perception import gpu

    return gpu.versions()


def open_device(index: int) -> Any:
    """Open a GPU.

    Raises:
        CudaError: there is none, or the driver is too old for the runtime.
    """
    from trt_perception import gpu

    return gpu.Device(index)


def check_kernels(compute_capability: tuple[int, int]) -> None:
    """Compile an empty kernel.

    Raises:
        CudaError: NVRTC is missing or does not know this GPU.
    """
    from trt_perception import gpu

    gpu.compile_kernels('extern "C" __global__ void nothing() {}', compute_capability)


def check_jpeg() -> str:
    """Decode a small JPEG by nvJPEG; return its version, empty where it is not installed.

    Raises:
        CudaError: it is installed, and does not work with the current device.
    """
    from trt_perception.errors import CudaError
    from trt_perception.gpu.nvjpeg import load_nvjpeg
    from trt_perception.stages.jpeg import open_nvjpeg

    try:
        load_nvjpeg()
    except CudaError:
        return ''
    with open_nvjpeg() as nvjpeg:
        return '.'.join(map(str, nvjpeg.version))


def run_once(values: Mapping[str, Any]) -> str:
    """Open a model as *configure* does, run a grey image through it, and say what it is.

    Args:
        values: the node's parameters by name.

    Raises:
        TrtPerceptionError: it cannot be used; the message says why.
    """
    from trt_perception.config import DetectorConfig
    from trt_perception.pipelines.open_pipeline import open_pipeline
    from trt_perception.pipelines.ready import ready_pipeline

    pipeline, _ = ready_pipeline(DetectorConfig.from_values(values), open_pipeline)
    try:
        spec = pipeline.spec
        width, height = spec.preprocessing.input_size
        return f'works: input {width}x{height}, {len(spec.class_names)} classes'
    finally:
        pipeline.close()
