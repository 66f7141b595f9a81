"""What a TensorRT release, or this machine, cannot do: refused with its reason before building."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trt_perception.building.engine.release import TensorRt
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.errors import EngineError, UnavailableError

__all__ = [
    'build_remarks',
    'check_operators',
    'check_release',
    'compute_capability_names',
    'onnx_runtime_problem',
]

# The first TensorRT-RTX that builds convolutions with Q/DQ nodes; measured.
_RTX_INT8: Final = (1, 7)
# Operators that TensorRT-RTX lacks up to this release, measured; newer ones are tried.
_NOT_IN_RTX: Final = ('NonZero',)
_LACKED_UP_TO: Final = (1, 7)
# Compute capabilities from which on GPUs have the arithmetic.
_NEEDS: Final = {'tf32': (8, 0), 'bf16': (8, 0), 'fp8': (8, 9)}
# Why ONNX Runtime on a CPU says nothing of an engine's accuracy.
_ONNX_RUNTIME_PROBLEMS: Final = {
    'fp32': 'would compare FP32 with itself',
    'tf32': 'would compare FP32 with itself',
    'bf16': 'has no bf16 on CPUs',
}


def check_release(tensorrt: TensorRt, options: BuildOptions) -> None:
    """Refuse what cannot work with this release on this machine.

    Raises:
        UnavailableError: with an error for each option that is not available.
    """
    refused = [
        *_refused_by_release(tensorrt, options),
        *(_refused_by_rtx(tensorrt, options) if tensorrt.is_rtx else ()),
        *_refused_by_gpu(tensorrt, options),
    ]
    if refused:
        raise UnavailableError(tensorrt.label, refused)


def check_operators(
    tensorrt: TensorRt, options: BuildOptions, name: str, operators: Iterable[str]
) -> None:
    """Refuse a model that this release cannot take, before anything is calibrated for it.

    Args:
        tensorrt: that builds.
        options: plugins may bring what is missing.
        name: the model's, for messages.
        operators: those of the model.

    Raises:
        EngineError: it needs an operator that is not there.
    """
    lacking = sorted(set(operators).intersection(_NOT_IN_RTX))
    if tensorrt.is_rtx and tensorrt.release <= _LACKED_UP_TO and lacking and not options.plugins:
        raise EngineError(
            name,
            f'{tensorrt.label} does not have these operators of the model: {", ".join(lacking)}',
            fix='export it without NMS inside (Ultralytics: without nms=True); NMS is done here',
        )


def _refused_by_release(tensorrt: TensorRt, options: BuildOptions) -> Iterable[EngineError]:
    level = options.hardware_compatibility.upper()
    if level != 'NONE' and tensorrt.find(f'HardwareCompatibilityLevel.{level}') is None:
        yield EngineError(
            f'--hardware-compatibility {options.hardware_compatibility}',
            'this release does not have it; same_compute_capability came with 10.12',
            fix='use another level, or a newer TensorRT',
        )
    implicit = options.precision == 'int8' and options.calibration_tool == 'tensorrt'
    if implicit and tensorrt.find('IBuilderConfig.int8_calibrator') is None:
        yield EngineError(
            '--calibration-tool tensorrt', 'this release has no calibrators', fix='use onnxruntime'
        )
    elif implicit and options.calibration_method == 'percentile':
        yield EngineError(
            '--calibration-method percentile',
            'TensorRT itself has only entropy and minmax',
            fix='use one of these, or --calibration-tool onnxruntime',
        )
    elif implicit and options.dla_core is not None and options.calibration_method != 'entropy':
        yield EngineError(
            '--dla-core',
            'a DLA takes ranges by entropy only',
            fix='give --calibration-method entropy',
        )
    if options.compute_capabilities and not tensorrt.is_rtx:
        yield EngineError(
            '--compute-capabilities',
            'only TensorRT-RTX has them',
            fix='use --hardware-compatibility instead',
        )


def _refused_by_rtx(tensorrt: TensorRt, options: BuildOptions) -> Iterable[EngineError]:
    no_gpu = tensorrt.gpu is None
    refusals = (
        (
            options.hardware_compatibility != 'none',
            '--hardware-compatibility',
            'TensorRT-RTX ignores it',
            'use --compute-capabilities',
        ),
        (
            options.version_compatible,
            '--version-compatible',
            'engines of TensorRT-RTX run with the release that built them only',
            'leave it out, and build with the release of the target',
        ),
        (
            options.timing_cache not in ('auto', 'off'),
            '--timing-cache',
            'TensorRT-RTX measures no kernels when it builds',
            'leave it out',
        ),
        (
            options.dla_core is not None,
            '--dla-core',
            'TensorRT-RTX runs on GPUs only',
            'leave it out, or build with TensorRT of JetPack',
        ),
        (
            options.precision == 'int8' and tensorrt.release < _RTX_INT8,
            '--precision int8',
            'TensorRT-RTX 1.4 to 1.6 cannot build quantised convolutions',
            'use 1.7 or newer, or fp16',
        ),
        (
            options.refit and no_gpu,
            '--refit',
            'TensorRT-RTX builds refittable engines only where there is a GPU',
            'leave it out, or build on a machine with one',
        ),
    )
    for applies, option, found, fix in refusals:
        if applies:
            yield EngineError(option, found, fix=fix)
    unknown = [
        capability
        for capability, name in zip(
            options.compute_capabilities, compute_capability_names(options), strict=True
        )
        if tensorrt.find(f'ComputeCapability.{name}') is None
    ]
    if unknown:
        yield EngineError(
            f'--compute-capabilities {" ".join(unknown)}',
            'this release does not build for that',
            fix=f'give some of {", ".join(_targets(tensorrt))}',
        )


def _refused_by_gpu(tensorrt: TensorRt, options: BuildOptions) -> Iterable[EngineError]:
    """Say which targets lack the arithmetic; those that nobody named are TensorRT's business."""
    targets = options.compute_capabilities
    if not targets and tensorrt.gpu is not None:
        targets = (tensorrt.gpu.compute_capability,)
    needed = _NEEDS.get(options.precision)
    lacking = [t for t in targets if needed and tuple(map(int, t.split('.'))) < needed]
    if needed and lacking:
        yield EngineError(
            f'--precision {options.precision}',
            f'needs compute capability {needed[0]}.{needed[1]} or newer '
            f'(got {", ".join(lacking)})',
            fix='use fp16',
        )
    unlike = onnx_runtime_problem(options.precision)
    if unlike and options.validate and tensorrt.gpu is None:
        yield EngineError(
            '--validate',
            f'there is no GPU here, and ONNX Runtime, which would stand in for it, {unlike}',
            fix='build without --validate, and measure on the target with evaluate_engine',
        )


def onnx_runtime_problem(precision: str) -> str:
    """Return why ONNX Runtime says nothing about an engine of this precision, empty if it does."""
    return _ONNX_RUNTIME_PROBLEMS.get(precision, '')


def _targets(tensorrt: TensorRt) -> list[str]:
    names = [name for name in dir(tensorrt.find('ComputeCapability')) if name.startswith('SM')]
    numbers = sorted(int(name.removeprefix('SM')) for name in names)
    return [f'{number // 10}.{number % 10}' for number in numbers]


def compute_capability_names(options: BuildOptions) -> list[str]:
    """Return the names in TensorRT-RTX of the GPUs to build for, as in ``SM86``."""
    return ['SM' + capability.replace('.', '') for capability in options.compute_capabilities]


def build_remarks(
    tensorrt: TensorRt, options: BuildOptions, tf32_override: str | None
) -> list[str]:
    """Return what the user should know of an engine built so; sentences for the report.

    Args:
        tensorrt: that builds.
        options: what is built.
        tf32_override: the environment variable NVIDIA_TF32_OVERRIDE, None where it is not set.
    """
    found = []
    if tensorrt.is_rtx and options.precision == 'fp32' and tf32_override != '0':
        found.append(
            'TensorRT-RTX ignores the switch for TF32 (measured with 1.4): on GPUs that have it, '
            'FP32 convolutions multiply with 10 bits of mantissa. For full FP32 set '
            'NVIDIA_TF32_OVERRIDE=0, when building and whenever the engine runs'
        )
    if tensorrt.is_rtx and tf32_override == '0':
        found.append('TensorRT-RTX loads the engine only where NVIDIA_TF32_OVERRIDE=0 is set too')
    if options.precision == 'int8' and tensorrt.is_rtx:
        found.append('INT8 with TensorRT-RTX is experimental: compare its speed with fp16')
    if options.precision == 'int8' and not tensorrt.is_rtx:
        found.append('INT8 is not always faster than FP16: compare with benchmark_engine')
    if (
        (options.dla_core is not None and options.precision == 'int8')
        and options.calibration_tool != 'tensorrt'
        and tensorrt.release < (11, 0)
    ):
        found.append(
            'up to TensorRT 10 a DLA takes INT8 ranges from TensorRT alone, and layers with Q/DQ '
            'nodes go to the GPU: --calibration-tool tensorrt'
        )
    if options.plugins:
        found.append('the engine needs the same plugin libraries wherever it runs')
    return found
