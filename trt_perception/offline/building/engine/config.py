# SPDX-License-Identifier: Apache-2.0
"""Transfers build options to TensorRT's builder configuration; loads timing caches."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import ConfigError, EngineError, WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.cache import read_cached, write_cached
from trt_perception.files.regular_files import read_regular
from trt_perception.offline.building.engine.capabilities import compute_capability_names
from trt_perception.offline.building.engine.release import TensorRt
from trt_perception.offline.building.options.build_options import BuildOptions

_MIB: Final = 1024 * 1024
_MAX_CACHE_BYTES: Final = 1024 * _MIB
# With INT8 alone, TensorRT would run all other layers in FP32, which is slow.
_WEAK_TYPING_FLAGS: Final = {
    'fp16': ('FP16',),
    'bf16': ('BF16',),
    'int8': ('INT8', 'FP16'),
}


def configure_builder(
    tensorrt: TensorRt, builder: Any, config: Any, options: BuildOptions, *, strongly_typed: bool
) -> tuple[str, ...]:
    """Set TensorRT's builder configuration, and return the names of the flags that were set.

    ``add_profiles`` sets the profiles, and ``TimingCache`` sets the timing cache.

    Args:
        tensorrt: TensorRT to build with. Call check_release first.
        config: TensorRT's builder configuration, still with TensorRT's defaults.

    Raises:
        EngineError: the DLA core is missing, or TensorRT refuses a compute capability.
    """
    trt = tensorrt.module
    flags = [] if strongly_typed else list(_WEAK_TYPING_FLAGS.get(options.precision, ()))
    requests = {
        'SPARSE_WEIGHTS': options.sparsity,
        'VERSION_COMPATIBLE': options.version_compatible,
        # The node refuses plans with embedded code, such as a lean runtime.
        'EXCLUDE_LEAN_RUNTIME': options.version_compatible,
        'GPU_FALLBACK': options.gpu_fallback,
    }
    flags += [name for name, is_requested in requests.items() if is_requested]
    # TensorRT enables TF32 by default. TF32 would change the third digit of FP32 results.
    if options.precision == 'tf32':
        flags.append('TF32')
    else:
        config.clear_flag(trt.BuilderFlag.TF32)
    for name in flags:
        config.set_flag(tensorrt.find_member(f'BuilderFlag.{name}'))
    if options.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib * _MIB)
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    verbosity = options.profiling_verbosity.upper()
    config.profiling_verbosity = tensorrt.find_member(f'ProfilingVerbosity.{verbosity}')
    if options.hardware_compatibility != 'none':
        level = options.hardware_compatibility.upper()
        config.hardware_compatibility_level = tensorrt.find_member(
            f'HardwareCompatibilityLevel.{level}'
        )
    if options.dla_core is not None:
        _use_dla(tensorrt, builder, config, options.dla_core)
    if options.compute_capabilities:
        _set_compute_capabilities(tensorrt, config, compute_capability_names(options))
    return tuple(flags)


def _use_dla(tensorrt: TensorRt, builder: Any, config: Any, core: int) -> None:
    if core >= builder.num_DLA_cores:
        raise EngineError(
            f'--dla-core {core}',
            f'{tensorrt.label} finds {builder.num_DLA_cores} DLA cores on this machine',
            fix='leave the option out to use the GPU',
        )
    config.default_device_type = tensorrt.module.DeviceType.DLA
    config.DLA_core = core


def _set_compute_capabilities(tensorrt: TensorRt, config: Any, names: list[str]) -> None:
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        target = tensorrt.find_member(f'ComputeCapability.{name}')
        if not config.set_compute_capability(target, index):
            raise EngineError(
                tensorrt.label,
                f'refuses to build for {name}',
                fix='remove it from --compute-capabilities',
            )


class TimingCache:
    """Loads kernel times of earlier builds for TensorRT, and saves the times of this build.

    Args:
        tensorrt: TensorRT to build with. The automatic cache has one entry for each release, GPU
            and CUDA version.
        options: ``timing_cache`` is a path, ``auto`` or ``off``. TensorRT-RTX has no timing cache.
    """

    def __init__(self, tensorrt: TensorRt, options: BuildOptions) -> None:
        self._path: Path | None = None
        self._key = ''
        if options.timing_cache == 'off' or tensorrt.is_rtx:
            return
        if options.timing_cache != 'auto':
            self._path = Path(options.timing_cache).expanduser()
        elif tensorrt.gpu is not None:
            parts = (tensorrt.flavour, tensorrt.version, *vars(tensorrt.gpu).values())
            self._key = hashlib.sha256(repr(parts).encode()).hexdigest()

    @property
    def storage(self) -> str:
        """Path of the cache, or ``auto``; empty if no cache is used."""
        return str(self._path) if self._path else ('auto' if self._key else '')

    def attach(self, config: Any) -> str:
        """Give TensorRT the cached times. Return a warning, or an empty text on success.

        Raises:
            ConfigError: the file exists and cannot be read.
        """
        if not self.storage:
            return ''
        content = self._read()
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):
            return ''
        config.set_timing_cache(config.create_timing_cache(b''), False)
        return (
            f'the timing cache ({self.storage}) is damaged, or for another GPU or release. '
            'It is replaced'
        )

    def save(self, config: Any) -> str:
        """Save the times that TensorRT measured. Return a warning, or an empty text."""
        cache = config.get_timing_cache() if self.storage else None
        if cache is None:
            return ''
        content = bytes(cache.serialize())
        if self._path is None:
            write_cached('timing', self._key, content)
            return ''
        try:
            write_atomically({self._path: content})
        except WriteError as error:
            return f'--timing-cache {error}'
        return ''

    def _read(self) -> bytes:
        if self._path is None:
            return read_cached('timing', self._key) or b''
        try:
            return read_regular(self._path, _MAX_CACHE_BYTES)
        except FileNotFoundError:
            return b''
        except OSError as error:
            raise ConfigError(
                f'--timing-cache {self._path}', error.strerror or str(error)
            ) from error
