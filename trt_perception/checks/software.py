# SPDX-License-Identifier: Apache-2.0
"""Checks of Python packages and GPU software: installed versions and their compatibility.

Each package is imported in a separate process, because a module that was compiled for another
NumPy may end its process.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from trt_perception.checks import trial
from trt_perception.checks.finding import Finding, Level
from trt_perception.errors import CudaError
from trt_perception.images.decompress import INSTALL_SIMPLEJPEG

CHECKED_MODULES: Final = (
    'numpy',
    'cv2',
    'PIL',
    'simplejpeg',
    'rclpy',
    'sensor_msgs.msg',
    'vision_msgs.msg',
    'cv_bridge',
    'foxglove_msgs.msg',
    'bond.msg',
    'onnxruntime',
    'tensorrt',
    'tensorrt_lean',
    'tensorrt_rtx',
)
_PYTHON_VERSIONS: Final = ((3, 10), (3, 14))
_OLDEST_TENSORRT: Final = (10, 3)
# Prints the fields of ModuleImport as the last line, after any output of the imported module.
_IMPORT_SCRIPT: Final = """
import importlib, json, sys, traceback
try:
    module = importlib.import_module(sys.argv[1])
    result = {'version': str(getattr(module, '__version__', 'installed'))}
except BaseException as error:
    result = {
        'version': '',
        'error': traceback.format_exception_only(error)[-1].strip(),
        'missing': isinstance(error, ModuleNotFoundError),
        # Python sets error.name if the module is missing, but not if its compiled code fails.
        'clash': isinstance(error, AttributeError)
        or isinstance(error, ImportError) and error.name is None,
    }
print()
print(json.dumps(result))
"""
_NUMPY_FIX: Final = (
    "python3 -m pip install 'numpy<2' (ROS 2 from apt needs it), or install OpenCV with pip"
)
_AREA: Final = 'Python and packages'
_GPU_AREA: Final = 'GPU'
_JPEG_ON_CPU_NOTE: Final = (
    'the CPU decodes compressed images. To use the GPU: python3 -m pip install nvidia-nvjpeg '
    '(CUDA 12: nvidia-nvjpeg-cu12); on a Jetson: sudo apt install libnvjpeg-13-2, or the package '
    'of your CUDA version'
)
_WITHOUT_GPU_NOTE: Final = (
    'without a GPU, the node runs only ONNX models on the CPU, and models on a Triton server'
)


@dataclass(frozen=True)
class ModuleImport:
    """The result of importing a module.

    Attributes:
        version: version of the module; empty if the import failed.
        error: the exception, or how the process ended; empty if the import succeeded.
        missing: whether the module is not installed; False for a broken module.
        clash: whether the module was compiled for another release of a dependency, mostly NumPy.
    """

    version: str
    error: str = ''
    missing: bool = False
    clash: bool = False


@dataclass(frozen=True)
class InstalledGpu:
    """A GPU that can be opened.

    Attributes:
        compute_capability: major and minor number.
        index: index of the CUDA device.
    """

    name: str
    compute_capability: tuple[int, int]
    index: int = 0


def import_modules(names: Sequence[str] = CHECKED_MODULES) -> dict[str, ModuleImport]:
    """Import each module in a separate process, four at a time. Map each name to its result."""
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(names, pool.map(_import_module, names), strict=True))


def _import_module(name: str) -> ModuleImport:
    try:
        ended = subprocess.run(
            [sys.executable, '-c', _IMPORT_SCRIPT, name],
            capture_output=True,
            text=True,
            timeout=120,
        )
    except subprocess.TimeoutExpired:
        return ModuleImport('', 'the import took more than 120 s')
    if ended.returncode < 0:
        said = f'the import ended the process with signal {-ended.returncode}'
        return ModuleImport('', said, clash=True)
    try:
        return ModuleImport(**json.loads(ended.stdout.splitlines()[-1]))
    except (IndexError, TypeError, ValueError):
        return ModuleImport('', f'the import ended the process with exit code {ended.returncode}')


def package_findings(
    modules: Mapping[str, ModuleImport],
    *,
    needs_onnx: bool,
    needs_bond: bool = False,
    has_ros: bool = True,
    python: tuple[int, int] = sys.version_info[:2],
) -> Iterator[Finding]:
    """Check Python and the packages that are imported on every machine.

    Args:
        needs_bond: whether the parameter bond.enabled is true.
        has_ros: whether ROS 2 is sourced or installed; False skips its packages.
    """
    low, high = _PYTHON_VERSIONS
    version = f'{python[0]}.{python[1]}'
    if low <= python <= high:
        yield Finding(_AREA, 'Python', 'green', f'{version}, {sys.executable}')
    else:
        fix = f'use Python {low[0]}.{low[1]} to {high[0]}.{high[1]}'
        yield Finding(_AREA, 'Python', 'yellow', f'{version}, which was not tested', fix)
    source = 'source the setup.bash of ROS 2 and of the workspace, and use the Python of ROS 2'
    fixes = {
        'numpy': 'sudo apt install python3-numpy',
        'cv2': 'sudo apt install python3-opencv',
    }
    ros_fixes = {
        'rclpy': source,
        'sensor_msgs.msg': 'sudo apt install ros-$ROS_DISTRO-sensor-msgs',
        'vision_msgs.msg': 'sudo apt install ros-$ROS_DISTRO-vision-msgs',
    }
    for name, fix in {**fixes, **(ros_fixes if has_ros else {})}.items():
        package, module = name.removesuffix('.msg'), modules[name]
        if module.version:
            yield Finding(_AREA, package, 'green', module.version)
        else:
            fix = _NUMPY_FIX if module.clash else fix
            yield Finding(_AREA, package, 'red', module.error, fix)
    if has_ros:
        yield _cv_bridge_finding(modules['cv_bridge'])
        yield _foxglove_msgs_finding(modules['foxglove_msgs.msg'])
        yield _bond_finding(modules['bond.msg'], is_needed=needs_bond)
    yield _pillow_finding(modules['PIL'])
    yield _simplejpeg_finding(modules['simplejpeg'])
    runtime = modules['onnxruntime']
    if runtime.version:
        yield Finding(_AREA, 'ONNX Runtime', 'green', runtime.version)
    else:
        fix = 'python3 -m pip install onnxruntime, in the environment of the node'
        found = f'{runtime.error}; ONNX models cannot run'
        level: Level = 'red' if needs_onnx else 'yellow'
        yield Finding(_AREA, 'ONNX Runtime', level, found, fix)


def _cv_bridge_finding(module: ModuleImport) -> Finding:
    if module.version:
        return Finding(_AREA, 'cv_bridge', 'green', module.version)
    if module.missing:
        return Finding(_AREA, 'cv_bridge', 'green', 'not installed; only rare encodings need it')
    return Finding(_AREA, 'cv_bridge', 'yellow', module.error, _NUMPY_FIX)


def _foxglove_msgs_finding(module: ModuleImport) -> Finding:
    if module.version:
        return Finding(_AREA, 'foxglove_msgs', 'green', module.version)
    if module.missing:
        found = 'not installed; only the topic annotations (for Foxglove) needs it'
        return Finding(_AREA, 'foxglove_msgs', 'green', found)
    found = f'{module.error}; the topic annotations is not published'
    fix = 'sudo apt install --reinstall ros-$ROS_DISTRO-foxglove-msgs'
    return Finding(_AREA, 'foxglove_msgs', 'yellow', found, fix)


def _bond_finding(module: ModuleImport, *, is_needed: bool) -> Finding:
    if module.version:
        return Finding(_AREA, 'bond', 'green', module.version)
    found = 'not installed' if module.missing else module.error
    if not is_needed:
        found = f'{found}; only the parameter bond.enabled needs it'
        return Finding(_AREA, 'bond', 'green', found)
    found = f'{found}, but the parameter bond.enabled is true'
    fix = 'sudo apt install --reinstall ros-$ROS_DISTRO-bond, or set bond.enabled to false'
    return Finding(_AREA, 'bond', 'red', found, fix)


def _pillow_finding(module: ModuleImport) -> Finding:
    if module.version:
        return Finding(_AREA, 'Pillow', 'green', module.version)
    cannot = 'PNG and image files cannot be read, and the CPU cannot run models that antialias'
    found = f'{module.error}; {cannot}'
    return Finding(_AREA, 'Pillow', 'yellow', found, 'sudo apt install python3-pil')


def _simplejpeg_finding(module: ModuleImport) -> Finding:
    if module.version:
        return Finding(_AREA, 'simplejpeg', 'green', module.version)
    instead = 'OpenCV decodes JPEG on the CPU, and prints a line for each damaged file'
    found = f'{module.error}; {instead}. Truncated images may have grey pixels'
    fix = _NUMPY_FIX if module.clash else INSTALL_SIMPLEJPEG
    return Finding(_AREA, 'simplejpeg', 'yellow', found, fix)


def gpu_findings(
    modules: Mapping[str, ModuleImport],
    *,
    needs_engine: bool,
    device_ids: Sequence[int],
    found: list[InstalledGpu],
) -> Iterator[Finding]:
    """Check driver, CUDA, NVRTC, nvJPEG and TensorRT.

    Args:
        needs_engine: whether the detector runs an engine; missing parts are then red, not yellow.
        device_ids: indices of the CUDA devices.
        found: list to which the function appends each usable GPU.
    """
    bad: Level = 'red' if needs_engine else 'yellow'
    try:
        versions = trial.cuda_versions()
    except CudaError as error:  # further checks would fail for the same reason
        yield _cuda_error_finding('CUDA', bad, error)
    else:
        text = f'driver for CUDA {versions["driver"]}, runtime {versions["runtime"]}'
        yield Finding(_GPU_AREA, 'CUDA', 'green', text)
        for index in device_ids:
            yield from _device_findings(
                index, f' {index}' if len(device_ids) > 1 else '', bad, found
            )
    yield from _tensorrt_findings(modules, bad)


def _device_findings(
    index: int, label: str, bad: Level, found: list[InstalledGpu]
) -> Iterator[Finding]:
    """Check one GPU until the first error. Further checks would fail for the same reason.

    Args:
        index: index of the CUDA device.
        found: list to which the function appends the GPU if it is usable.
    """
    step = 'device'
    try:
        device = trial.open_device(index)
        gpu = InstalledGpu(device.name, device.compute_capability, index)
        found.append(gpu)
        capability = '.'.join(map(str, gpu.compute_capability))
        text = f'{gpu.name}, compute capability {capability}'
        yield Finding(_GPU_AREA, f'{step}{label}', 'green', text)
        step = 'NVRTC'
        trial.check_kernels(gpu.compute_capability)
        yield Finding(_GPU_AREA, f'{step}{label}', 'green', 'compiles for this GPU')
        yield _nvjpeg_finding(label)
    except CudaError as error:
        yield _cuda_error_finding(f'{step}{label}', bad, error)


def _cuda_error_finding(name: str, bad: Level, error: CudaError) -> Finding:
    fix = error.fix or 'install or repair the NVIDIA driver: nvidia-smi must work'
    return Finding(_GPU_AREA, name, bad, error.statement, f'{fix} ({_WITHOUT_GPU_NOTE})')


def _nvjpeg_finding(label: str) -> Finding:
    """Return the finding of nvJPEG, which is optional and decodes compressed images."""
    try:
        version = trial.check_nvjpeg()
    except CudaError as error:
        fix = error.fix or 'install nvJPEG of a CUDA release that the driver supports'
        found = f'{error.statement}; compressed images are decoded on the CPU'
        return Finding(_GPU_AREA, f'nvJPEG{label}', 'yellow', found, fix)
    found = (
        f'{version}, decodes JPEG'
        if version
        else f'no usable library is installed; {_JPEG_ON_CPU_NOTE}'
    )
    return Finding(_GPU_AREA, f'nvJPEG{label}', 'green', found)


def _tensorrt_findings(modules: Mapping[str, ModuleImport], bad: Level) -> Iterator[Finding]:
    there = {name: modules[name] for name in ('tensorrt', 'tensorrt_lean', 'tensorrt_rtx')}
    for name, module in there.items():
        version = tuple(int(part) for part in re.findall(r'\d+', module.version)[:2])
        if version and name != 'tensorrt_rtx' and version < _OLDEST_TENSORRT:
            fix = 'install TensorRT 10.3 or newer (JetPack 6.1 or newer)'
            yield Finding(_GPU_AREA, name, 'yellow', f'{module.version} is too old', fix)
        elif version:
            note = '; only runs version-compatible engines' if name == 'tensorrt_lean' else ''
            yield Finding(_GPU_AREA, name, 'green', f'{module.version}{note}')
        elif not module.missing:
            fix = 'install it again, with libraries of the same version'
            yield Finding(_GPU_AREA, name, bad, module.error, fix)
    if all(module.missing for module in there.values()):
        fix = (
            'JetPack: sudo apt install python3-libnvinfer; else python3 -m pip install tensorrt '
            '(or tensorrt-rtx-cu13, or tensorrt-lean-cu13); without TensorRT, engines do not run, '
            'but ONNX models do'
        )
        found = f'none of {", ".join(there)} is installed'
        yield Finding(_GPU_AREA, 'TensorRT', bad, found, fix)
