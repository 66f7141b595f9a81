# SPDX-License-Identifier: Apache-2.0
"""Trials on the real machine: CUDA, the GPU, the kernel compiler and one run of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trt_perception.files.plain_text import join_first_items
from trt_perception.model.pipeline_options import PipelineOptions

# All other imports are late, because they need NumPy, which may be broken.


def cuda_versions() -> Mapping[str, str]:
    """Return the CUDA versions of driver and runtime, with the keys `driver` and `runtime`.

    Raises:
        CudaError: there is no driver, or cuda-python is missing.
    """
    from trt_perception import gpu

    return gpu.versions()


def open_device(index: int) -> Any:
    """Open a GPU.

    Raises:
        CudaError: the GPU does not exist, or the driver is too old for the runtime.
    """
    from trt_perception import gpu

    return gpu.Device(index)


def check_kernels(compute_capability: tuple[int, int]) -> None:
    """Check that NVRTC compiles an empty kernel for a GPU.

    Raises:
        CudaError: NVRTC is missing or does not know this GPU.
    """
    from trt_perception import gpu

    gpu.compile_kernels('extern "C" __global__ void nothing() {}', compute_capability)


def check_nvjpeg() -> str:
    """Test nvJPEG with a small JPEG. Return nvJPEG's version; empty without a usable library.

    Raises:
        CudaError: nvJPEG is installed, but does not work on the current device.
    """
    from trt_perception.errors import CudaError
    from trt_perception.gpu.nvjpeg import load_nvjpeg
    from trt_perception.stages.open_nvjpeg import open_nvjpeg

    try:
        load_nvjpeg()
    except CudaError:
        return ''
    with open_nvjpeg() as nvjpeg:
        return '.'.join(map(str, nvjpeg.version))


def run_model_once(
    path: str,
    options: PipelineOptions,
    device_ids: Sequence[int],
    check: Callable[[Any], object],
) -> str:
    """Open a model as *configure* does, run it on a grey image, and return a description.

    Args:
        device_ids: at least one CUDA device; an engine runs on each of them.
        check: called with the ModelSpec; raises ConfigError if the parameters do not fit it.

    Raises:
        TrtPerceptionError: the model cannot be used; the message gives the reason.
    """
    from trt_perception.model.files.model_file import is_onnx
    from trt_perception.model.files.triton_address import is_triton_address
    from trt_perception.pipelines.open_pipeline import open_pipeline
    from trt_perception.pipelines.warm_up import open_warm_pipeline

    on_gpu = not (is_onnx(path) or is_triton_address(path))
    facts = ''
    for index in device_ids if on_gpu else device_ids[:1]:
        pipeline, _ = open_warm_pipeline(path, replace(options, device_id=index), open_pipeline)
        try:
            spec = pipeline.spec
            check(spec)
            width, height = spec.preprocessing.input_size
            kind = spec.task.summary(spec.class_names)
            facts = f'{kind}, {spec.decoder.family}, input {width}x{height}'
        finally:
            pipeline.close()
    devices = join_first_items([str(index) for index in device_ids], 64)
    return f'works: {facts}' + (
        f', on devices {devices}' if on_gpu and len(device_ids) > 1 else ''
    )
