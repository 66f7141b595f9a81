"""From options to TensorRT's builder configuration."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from trt_perception.building.engine.capabilities import compute_capability_names
from trt_perception.building.engine.release import TensorRt
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.errors import ConfigError, EngineError, WriteError
from trt_perception.files.atomic_files import write_atomically
from trt_perception.files.cache import read_cached, write_cached
from trt_perception.files.checked_files import read_checked
from trt_perception.files.regular_files import read_regular
from trt_perception.stages.tensorrt_log import TensorRtLog

__all__ = ['TimingCache', 'configure_builder', 'load_plugins', 'resolve_plugin_paths']

_MIB: Final = 1024 * 1024
_TIMING_LIMIT: Final = 1024 * _MIB
# A weakly typed INT8 or BF16 engine without FP16 leaves its other layers in FP32, and is slow.
_WEAK_FLAGS: Final = {
    'fp16': ('FP16',),
    'bf16': ('BF16',),
    'int8': ('INT8', 'FP16'),
}


def configure_builder(
    tensorrt: TensorRt, builder: Any, config: Any, options: BuildOptions, *, strongly_typed: bool
) -> tuple[str, ...]:
    """Set all that the options ask for, but profiles and timing cache; return the flags' names.

    Args:
        tensorrt: that builds; check_release has passed.
        builder: TensorRT's.
        config: TensorRT's, new.
        options: what is wanted.
        strongly_typed: how the network was created.

    Raises:
        EngineError: this machine lacks what was asked for.
    """
    trt = tensorrt.module
    flags = [] if strongly_typed else list(_WEAK_FLAGS.get(options.precision, ()))
    wanted = {
        'SPARSE_WEIGHTS': options.sparsity,
        'REFIT': options.refit,
        'VERSION_COMPATIBLE': options.version_compatible,
        'GPU_FALLBACK': options.gpu_fallback,
    }
    flags += [name for name, asked in wanted.items() if asked]
    # On by default, where FP32 was asked for: results would differ in the third digit.
    if options.precision == 'tf32':
        flags.append('TF32')
    else:
        config.clear_flag(trt.BuilderFlag.TF32)
    for name in flags:
        config.set_flag(tensorrt.find(f'BuilderFlag.{name}'))
    if options.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, options.workspace_mib * _MIB)
    if options.optimization_level is not None:
        config.builder_optimization_level = options.optimization_level
    verbosity = options.profiling_verbosity.upper()
    config.profiling_verbosity = tensorrt.find(f'ProfilingVerbosity.{verbosity}')
    if options.hardware_compatibility != 'none':
        level = options.hardware_compatibility.upper()
        config.hardware_compatibility_level = tensorrt.find(f'HardwareCompatibilityLevel.{level}')
    if options.dla_core is not None:
        _use_dla(tensorrt, builder, config, options.dla_core)
    if options.compute_capabilities:
        _set_targets(tensorrt, config, compute_capability_names(options))
    return tuple(flags)


def _use_dla(tensorrt: TensorRt, builder: Any, config: Any, core: int) -> None:
    if core >= builder.num_DLA_cores:
        raise EngineError(
            f'--dla-core {core}',
            f'{tensorrt.label} finds {builder.num_DLA_cores} DLA cores on this machine',
            fix='leave it out to run on the GPU',
        )
    config.default_device_type = tensorrt.module.DeviceType.DLA
    config.DLA_core = core


def _set_targets(tensorrt: TensorRt, config: Any, names: list[str]) -> None:
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        target = tensorrt.find(f'ComputeCapability.{name}')
        if not config.set_compute_capability(target, index):
            raise EngineError(
                tensorrt.label,
                f'refuses to build for {name}',
                fix='leave it out of --compute-capabilities',
            )


def resolve_plugin_paths(libraries: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return where libraries of plugins are, after links.

    Raises:
        EngineError: one cannot be read, or others may write it: it is code as engines are.
    """
    try:
        return tuple(read_checked(library)[1] for library in libraries)
    except EngineError as error:
        raise type(error)(
            f'--plugins {error.subject}', error.found, expected=error.expected, fix=error.fix
        ) from error


def load_plugins(
    tensorrt: TensorRt, builder: Any, said: TensorRtLog, libraries: tuple[Path, ...]
) -> None:
    """Register TensorRT's own plugins, and load libraries of others.

    Raises:
        EngineError: a library cannot be loaded.
    """
    tensorrt.module.init_libnvinfer_plugins(said.logger, '')
    registry = builder.get_plugin_registry()
    for library, resolved in zip(libraries, resolve_plugin_paths(libraries), strict=True):
        if registry.load_library(str(resolved)) is None:
            raise EngineError(
                f'--plugins {library}',
                f'cannot be loaded; TensorRT reported: {said.last_errors(3)}',
            )


class TimingCache:
    """Times of kernels that TensorRT measured, kept from build to build.

    Args:
        tensorrt: that builds; entries are kept for each of its releases and GPU.
        options: ``timing_cache`` says where.
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
        """Where it is kept, empty where nowhere."""
        return str(self._path) if self._path else ('auto' if self._key else '')

    def attach(self, config: Any) -> str:
        """Let TensorRT use what is there; return a warning, empty where all is well.

        Raises:
            ConfigError: the file cannot be read.
        """
        if not self.storage:
            return ''
        content = self._read()
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):
            return ''
        config.set_timing_cache(config.create_timing_cache(b''), False)
        return (
            f'the timing cache ({self.storage}) is damaged or was made for another GPU or '
            'release, and is made again'
        )

    def save(self, config: Any) -> str:
        """Keep what TensorRT measured; return a warning, empty where all is well."""
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
            return read_regular(self._path, _TIMING_LIMIT)
        except FileNotFoundError:
            return b''
        except OSError as error:
            raise ConfigError(
                f'--timing-cache {self._path}', error.strerror or str(error)
            ) from error
