"""What is said where kernels do not compile, or compiler or driver are missing; without a GPU."""

from __future__ import annotations

import pytest

from support.gpu import fake_cuda
from support.gpu.gpu_standins import assert_nothing_is_left
from support.models.open_model import open_by_parameters
from trt_perception.errors import CudaError

pytest_plugins = ['support.gpu.gpu_standin_fixtures']


def test_a_kernel_that_does_not_compile_shows_the_compilers_log(machine, config):
    recorder, tensorrt = machine(log=b'kernels.cu(7): error: expected a ";"\n')
    with pytest.raises(
        CudaError, match=r'NVRTC 13\.0.*sm_87: NVRTC_ERROR_COMPILATION\n.*expected a ";"$'
    ):
        open_by_parameters(config)
    assert_nothing_is_left(recorder, tensorrt)


def test_a_compiler_that_does_not_know_the_gpu_says_so(machine, config):
    machine(log=b'nvrtc: error: invalid value for --gpu-architecture (-arch)\n')
    with pytest.raises(
        CudaError, match=r'sm_87: .*\n.*; install NVRTC of another .* knows this GPU'
    ):
        open_by_parameters(config)


def raising(error):
    def function(*arguments):
        raise error

    return function


def test_a_missing_compiler_says_what_to_install(machine, config):
    recorder, tensorrt = machine()
    library = recorder.modules[1]
    library.nvrtcVersion = raising(RuntimeError('Failure finding "libnvrtc.so"'))
    with pytest.raises(CudaError, match=r'NVRTC is missing.*apt install.*pip install'):
        open_by_parameters(config)
    assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize(
    ('status', 'driver', 'message'),
    [
        ('cudaErrorInsufficientDriver', 0, 'no NVIDIA driver was found; install'),
        ('cudaErrorInsufficientDriver', 12060, r'up to 12\.6, this cuda-bindings needs 13\.0'),
        ('cudaErrorNoDevice', 13000, 'shows no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES'),
    ],
)
def test_a_missing_or_old_driver_says_what_to_install(machine, config, status, driver, message):
    recorder, tensorrt = machine()
    runtime = recorder.modules[2]
    runtime.cudaDriverGetVersion = lambda: (fake_cuda.cudaError_t.cudaSuccess, driver)
    recorder.fails = lambda index, name: status if name == 'cudaGetDeviceCount' else None
    with pytest.raises(CudaError, match=message):
        open_by_parameters(config)
    assert_nothing_is_left(recorder, tensorrt)


def test_a_driver_library_that_cannot_be_loaded_says_what_to_install(machine, config):
    recorder, tensorrt = machine()
    recorder.modules[2].cudaGetDeviceCount = raising(RuntimeError('Failed to dlopen libcuda.so.1'))
    with pytest.raises(CudaError, match=r'no CUDA driver: .*libcuda.*install the NVIDIA driver'):
        open_by_parameters(config)
    recorder, tensorrt = machine()
    recorder.modules[0].cuLibraryLoadData = raising(RuntimeError('Failed to dlopen libcuda.so.1'))
    with pytest.raises(CudaError, match=r'no CUDA driver: .*libcuda.*install the NVIDIA driver'):
        open_by_parameters(config)
    assert_nothing_is_left(recorder, tensorrt)
