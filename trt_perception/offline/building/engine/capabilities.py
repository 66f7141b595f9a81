# SPDX-License-Identifier: Apache-2.0
"""Checks before a build that TensorRT and this machine support the options and the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trt_perception.errors import EngineError, UnavailableError
from trt_perception.model.files.plan_header import RTX_TARGET_BITS
from trt_perception.offline.building.engine.release import TensorRt
from trt_perception.offline.building.options.build_options import BuildOptions

# The first TensorRT-RTX release that built convolutions with Q/DQ nodes in our tests.
_FIRST_RTX_WITH_INT8: Final = (1, 7)
# Operators that TensorRT-RTX lacked in our tests, up to the release below. The check accepts
# these operators in newer releases.
_OPERATORS_MISSING_IN_RTX: Final = ('NonZero',)
_LAST_RTX_WITHOUT_OPERATORS: Final = (1, 7)
# For each precision, the lowest compute capability of GPUs that support this precision.
_MIN_COMPUTE_CAPABILITY: Final = {'tf32': (8, 0), 'bf16': (8, 0), 'fp8': (8, 9)}
# Why a run in ONNX Runtime on a CPU does not show the accuracy of an engine.
_ONNX_RUNTIME_PROBLEMS: Final = {
    'fp32': 'would compare FP32 with itself',
    'tf32': 'would compare FP32 with itself',
    'bf16': 'has no bf16 on CPUs',
}


def check_release(tensorrt: TensorRt, options: BuildOptions) -> None:
    """Refuse options that this TensorRT release or this machine does not support.

    Raises:
        UnavailableError: it contains one error for each unsupported option.
    """
    errors = [
        *_release_errors(tensorrt, options),
        *(_rtx_errors(tensorrt, options) if tensorrt.is_rtx else ()),
        *_target_gpu_errors(tensorrt, options),
    ]
    if errors:
        raise UnavailableError(tensorrt.label, errors)


def check_operators(tensorrt: TensorRt, name: str, operators: Iterable[str]) -> None:
    """Refuse a model with operators that this release lacks, before a long calibration starts.

    Raises:
        EngineError: this release lacks an operator.
    """
    missing = sorted(set(operators).intersection(_OPERATORS_MISSING_IN_RTX))
    if tensorrt.is_rtx and tensorrt.release <= _LAST_RTX_WITHOUT_OPERATORS and missing:
        raise EngineError(
            name,
            f'{tensorrt.label} lacks these operators of the model: {", ".join(missing)}',
            fix='export the model without NMS (Ultralytics: without nms=True), because this '
            'package does NMS itself',
        )


def _release_errors(tensorrt: TensorRt, options: BuildOptions) -> Iterable[EngineError]:
    level = options.hardware_compatibility.upper()
    if level != 'NONE' and tensorrt.find_member(f'HardwareCompatibilityLevel.{level}') is None:
        yield EngineError(
            f'--hardware-compatibility {options.hardware_compatibility}',
            'is missing in this release; same_compute_capability needs 10.12 or newer',
            fix='use another level, or a newer TensorRT',
        )
    tensorrt_calibrates = options.precision == 'int8' and options.calibration_tool == 'tensorrt'
    if tensorrt_calibrates and tensorrt.find_member('IBuilderConfig.int8_calibrator') is None:
        yield EngineError(
            '--calibration-tool tensorrt', 'this release has no calibrators', fix='use onnxruntime'
        )
    elif tensorrt_calibrates and options.calibration_method == 'percentile':
        yield EngineError(
            '--calibration-method percentile',
            "TensorRT's calibrators support only entropy and minmax",
            fix='use one of these, or --calibration-tool onnxruntime',
        )
    elif (
        tensorrt_calibrates
        and options.dla_core is not None
        and options.calibration_method != 'entropy'
    ):
        yield EngineError(
            '--dla-core',
            'a DLA supports only entropy calibration',
            fix='add --calibration-method entropy',
        )
    if options.compute_capabilities and not tensorrt.is_rtx:
        yield EngineError(
            '--compute-capabilities',
            'only TensorRT-RTX has this option',
            fix='use --hardware-compatibility instead',
        )


def _rtx_errors(tensorrt: TensorRt, options: BuildOptions) -> Iterable[EngineError]:
    checks = (
        (
            options.hardware_compatibility != 'none',
            '--hardware-compatibility',
            'TensorRT-RTX ignores this option',
            'use --compute-capabilities',
        ),
        (
            options.version_compatible,
            '--version-compatible',
            'an engine of TensorRT-RTX runs only with the release that built it',
            'leave the option out, and build with the release of the target',
        ),
        (
            options.timing_cache not in ('auto', 'off'),
            '--timing-cache',
            'TensorRT-RTX measures no kernels during a build',
            'leave the option out',
        ),
        (
            options.dla_core is not None,
            '--dla-core',
            'TensorRT-RTX runs on GPUs only',
            "leave the option out, or build with JetPack's TensorRT",
        ),
        (bool(options.plugins), '--plugins', 'TensorRT-RTX has no plugins', 'use TensorRT'),
        (
            options.precision == 'int8' and tensorrt.release < _FIRST_RTX_WITH_INT8,
            '--precision int8',
            'TensorRT-RTX 1.4 to 1.6 cannot build quantised convolutions',
            'use 1.7 or newer, or fp16',
        ),
    )
    for applies, option, found, fix in checks:
        if applies:
            yield EngineError(option, found, fix=fix)
    available = _available_compute_capabilities(tensorrt)
    unknown = [each for each in options.compute_capabilities if each not in available]
    if unknown:
        yield EngineError(
            f'--compute-capabilities {" ".join(unknown)}',
            'this release does not build for these GPUs',
            fix=f'choose from {", ".join(available)}',
        )


def _target_gpu_errors(tensorrt: TensorRt, options: BuildOptions) -> Iterable[EngineError]:
    """Yield errors for target GPUs without this precision, and for checks that need a GPU.

    Without compute capabilities in the options, the target is the GPU of this machine, if any.
    """
    targets = options.compute_capabilities
    if not targets and tensorrt.gpu is not None:
        targets = (tensorrt.gpu.compute_capability,)
    minimum = _MIN_COMPUTE_CAPABILITY.get(options.precision)
    missing = [t for t in targets if minimum and tuple(map(int, t.split('.'))) < minimum]
    if minimum and missing:
        yield EngineError(
            f'--precision {options.precision}',
            f'needs compute capability {minimum[0]}.{minimum[1]} or newer '
            f'(got {", ".join(missing)})',
            fix='use fp16',
        )
    problem = onnx_runtime_problem(options.precision)
    if problem and options.validate and tensorrt.gpu is None:
        yield EngineError(
            '--validate',
            f'this machine has no GPU, and ONNX Runtime cannot replace the GPU: it {problem}',
            fix='build without --validate, and measure on the target with evaluate_engine',
        )


def onnx_runtime_problem(precision: str) -> str:
    """Return why ONNX Runtime cannot replace an engine of this precision; empty if it can.

    The text is a predicate. The caller adds the subject.
    """
    return _ONNX_RUNTIME_PROBLEMS.get(precision, '')


def _available_compute_capabilities(tensorrt: TensorRt) -> list[str]:
    return [
        capability
        for capability in RTX_TARGET_BITS
        if tensorrt.find_member(f'ComputeCapability.{_member_name(capability)}') is not None
    ]


def compute_capability_names(options: BuildOptions) -> list[str]:
    """Return TensorRT-RTX's names of the compute capabilities to build for, such as ``SM86``."""
    return [_member_name(capability) for capability in options.compute_capabilities]


def _member_name(capability: str) -> str:
    return 'SM' + capability.replace('.', '')


def build_remarks(
    tensorrt: TensorRt, options: BuildOptions, tf32_override: str | None
) -> list[str]:
    """Return sentences for the report on restrictions of an engine with these options.

    Args:
        tf32_override: value of the environment variable NVIDIA_TF32_OVERRIDE; None if not set.
    """
    remarks = []
    if tensorrt.is_rtx and options.precision == 'fp32' and tf32_override != '0':
        remarks.append(
            'TensorRT-RTX ignores the builder flag TF32 (measured with 1.4): on GPUs with TF32, '
            'FP32 convolutions multiply with 10 bits of mantissa. For full FP32 set '
            'NVIDIA_TF32_OVERRIDE=0 for the build and for each run of the engine'
        )
    if tensorrt.is_rtx and tf32_override == '0':
        remarks.append('TensorRT-RTX loads the engine only with NVIDIA_TF32_OVERRIDE=0')
    if options.precision == 'int8' and tensorrt.is_rtx:
        remarks.append('INT8 with TensorRT-RTX is experimental: compare its speed with fp16')
    if options.precision == 'int8' and not tensorrt.is_rtx:
        remarks.append('INT8 is not always faster than FP16: compare with benchmark_engine')
    if (
        (options.dla_core is not None and options.precision == 'int8')
        and options.calibration_tool != 'tensorrt'
        and tensorrt.release < (11, 0)
    ):
        remarks.append(
            'up to TensorRT 10, a DLA cannot run layers with Q/DQ nodes, so they run on the GPU: '
            'use --calibration-tool tensorrt'
        )
    if options.plugin_libraries:
        remarks.append('the engine needs the same plugin libraries on each machine that runs it')
    if options.plugin_modules:
        remarks.append('the node runs only the ahead-of-time plugins of Python modules')
    return remarks
