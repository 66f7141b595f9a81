# SPDX-License-Identifier: Apache-2.0
"""Errors name a missing compiler, a missing driver or a compile error. Needs no GPU."""

from __future__ import annotations

import pytest

from support.gpu import fake_cuda
from support.gpu.gpu_standins import assert_nothing_is_left
from support.models.open_model import open_by_parameters
from trt_perception.errors import CudaError

pytest_plugins = ['support.gpu.gpu_standin_fixtures']


@pytest.mark.parametrize(
    'log',
    [
        b'kernels.cu(7): error: expected a ";"\n',
        b'nvrtc: error: invalid value for --gpu-architecture (-arch)\n',
    ],
    ids=['mistake', 'unknown GPU'],
)
def test_compile_error_has_the_compiler_log(install_standins, parameters, log, golden_messages):
    recorder, tensorrt = install_standins(log=log)
    with golden_messages.raises(CudaError):
        open_by_parameters(parameters)
    assert_nothing_is_left(recorder, tensorrt)


def raising(error):
    def function(*arguments):
        raise error

    return function


def test_missing_compiler_error_says_what_to_install(
    install_standins, parameters, golden_messages
):
    recorder, tensorrt = install_standins()
    library = recorder.modules[1]
    library.nvrtcVersion = raising(RuntimeError('Failure finding "libnvrtc.so"'))
    with golden_messages.raises(CudaError):
        open_by_parameters(parameters)
    assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize(
    ('status', 'driver'),
    [
        ('cudaErrorInsufficientDriver', 0),
        ('cudaErrorInsufficientDriver', 12060),
        ('cudaErrorNoDevice', 13000),
    ],
)
def test_missing_or_old_driver_error_says_what_to_install(
    install_standins, parameters, status, driver, golden_messages
):
    recorder, tensorrt = install_standins()
    runtime = recorder.modules[2]
    runtime.cudaDriverGetVersion = lambda: (fake_cuda.cudaError_t.cudaSuccess, driver)
    recorder.fails = lambda index, name: status if name == 'cudaGetDeviceCount' else None
    with golden_messages.raises(CudaError):
        open_by_parameters(parameters)
    assert_nothing_is_left(recorder, tensorrt)


@pytest.mark.parametrize(('module', 'call'), [(2, 'cudaGetDeviceCount'), (0, 'cuLibraryLoadData')])
def test_unloadable_driver_library_error_says_what_to_install(
    install_standins, parameters, module, call, golden_messages
):
    recorder, tensorrt = install_standins()
    error = RuntimeError('Failed to dlopen libcuda.so.1')
    setattr(recorder.modules[module], call, raising(error))
    with golden_messages.raises(CudaError):
        open_by_parameters(parameters)
    assert_nothing_is_left(recorder, tensorrt)
