# SPDX-License-Identifier: Apache-2.0
"""Load a TensorRT engine, and create contexts that queue inference on a stream.

Supports ``tensorrt`` and ``tensorrt_lean`` 10.3 to 11.x, and ``tensorrt_rtx``. Enumeration values
are looked up by name, because TensorRT changes their numbers between releases.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import EngineError
from trt_perception.files.cache import read_cached, write_cached
from trt_perception.gpu import Device, DeviceBuffer, Stream
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.plan_header import read_plan_header
from trt_perception.model.input_layout import MAX_BATCH
from trt_perception.model.manifest import rebuild_command
from trt_perception.model.tensors import TensorSpec, parse_tensorrt_dtype, tensors_text
from trt_perception.process.tool_command import tool_command
from trt_perception.stages.tensorrt.plan import load_plan

_LOG: Final = logging.getLogger('trt_perception.tensorrt')


class TensorRtEngine:
    """A deserialised engine.

    Args:
        model: the plan.
        device: the current device.
        plugin_libraries: paths of plugin libraries to load before the plan.

    Attributes:
        inputs: name, shape and dtype of each input, with -1 for variable dimensions.
        outputs: name, shape and dtype of each output, with -1 for variable dimensions.
        header: the parsed header of the plan.
        module: name of the Python module that loaded the plan.

    Raises:
        EngineError: TensorRT is missing, or refuses the plan or a plugin library. The message has
            TensorRT's errors.
    """

    def __init__(
        self, model: ModelFile, device: Device, plugin_libraries: Sequence[str | Path] = ()
    ) -> None:
        self.header = read_plan_header(model.content, model.path.name)
        self._name = model.path.name
        command = rebuild_command(model.manifest, model.path)
        self._rebuild_fix = f'build it again on this machine: {command}'
        plan = load_plan(model, self.header, device, plugin_libraries)
        self.module = plan.module
        self._trt, self._log = plan.trt, plan.log
        self._runtime: Any = plan.runtime
        self._engine: Any = plan.engine
        # Configuration and cache must outlive the contexts, which TensorRT does not document.
        self._runtime_config: Any = None
        self._runtime_cache: Any = None
        self._cache_key = hashlib.sha256(
            repr(
                (model.sha256, device.name, device.compute_capability, self._trt.__version__)
            ).encode()
        ).hexdigest()
        engine: Any = plan.engine
        del plan  # holds the engine
        try:
            names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
            mode = self._trt.TensorIOMode
            self.inputs, self.outputs = (
                tuple(
                    self._tensor_spec(name)
                    for name in names
                    if engine.get_tensor_mode(name) == kind
                )
                for kind in (mode.INPUT, mode.OUTPUT)
            )
            if self.inputs and all(tensor.shape[:1] == (-1,) for tensor in self.inputs):
                # TensorRT-RTX 1.4 reports the outputs with the batch of the first profile.
                self.outputs = tuple(map(_with_open_batch, self.outputs))
            # Variable inputs may have variable outputs. create_context checks these outputs later.
            if not any(side < 0 for tensor in self.inputs for side in tensor.shape):
                self._check_fixed_shapes(self.outputs)
        except BaseException:
            engine = None
            self.close()
            raise

    def batch_sizes_for(self, image: TensorSpec, max_frames: int) -> tuple[int, ...]:
        """Return the batch sizes for which to create contexts; see ``batch_sizes``.

        Args:
            image: the image input with its final shape. Its batch size counts only if the engine
                has a fixed batch.
            max_frames: largest number of frames that arrive together.
        """
        own = next(tensor for tensor in self.inputs if tensor.name == image.name)
        if len(own.shape) != 4 or any(tensor.shape[0] >= 0 for tensor in self.inputs):
            return (image.shape[0],) if len(image.shape) == 4 else (1,)
        ranges = [
            (low[0], min(high[0], MAX_BATCH))
            for low, high in self._profile_ranges(image.name)
            if _is_shape_within(low[1:], image.shape[1:], high[1:])
        ]
        return batch_sizes(ranges, max_frames) or (image.shape[0],)

    def create_context(
        self,
        image: TensorSpec,
        stream: Stream,
        auxiliary_inputs: Sequence[TensorSpec] = (),
        share: TensorRtContext | None = None,
    ) -> TensorRtContext:
        """Return a context for one input shape.

        Args:
            image: the image input with its final shape.
            stream: the stream on which the profile and shapes are set.
            auxiliary_inputs: all other inputs with their final shapes.
            share: a context whose memory the new context uses. Only one of the two contexts may
                run at a time, and ``share`` must be closed last.

        Raises:
            EngineError: no profile includes the shape, or an output's shape depends on the data.
            CudaError: the GPU has not enough memory.
        """
        profile, is_open = self._find_profile(image)
        context = self._new_context()
        if context is None:
            raise self._error('no execution context')
        memory = None
        try:
            self._check_call(
                context.set_optimization_profile_async(profile, stream.handle),
                'set_optimization_profile_async',
            )
            stream.synchronize()  # shapes can only be set after the profile
            for tensor in (image, *auxiliary_inputs):
                self._check_call(
                    context.set_input_shape(tensor.name, tensor.shape), 'set_input_shape'
                )
            if share is None:
                memory = DeviceBuffer(max(256, self._engine.device_memory_size_v2))
            place = share.memory if share is not None else memory
            assert place is not None
            context.set_device_memory(place.pointer, place.size)
            unresolved = context.infer_shapes()
            if unresolved:
                raise EngineError(
                    self._name,
                    f'inputs {unresolved} have no shape',
                    expected='one image input and no other input of unknown shape',
                )
            outputs = tuple(
                TensorSpec(tensor.name, tuple(context.get_tensor_shape(tensor.name)), tensor.dtype)
                for tensor in self.outputs
            )
            self._check_fixed_shapes(outputs)
        except BaseException:
            # The exception's traceback keeps this Python frame, and would keep the context alive.
            context = None
            if memory is not None:
                memory.close()
            raise
        fix = _open_shape_fix(image) if is_open else ''
        return TensorRtContext(self, context, place, outputs, fix, owns=share is None)

    @property
    def native(self) -> Any:
        """The engine object of TensorRT, for inspection."""
        return self._engine

    def save_runtime_cache(self) -> None:
        """Save the kernels that TensorRT-RTX compiled, to make the next start faster."""
        if self._runtime_cache is not None:
            content = self._runtime_cache.serialize()
            if content is not None:
                write_cached('runtime', self._cache_key, bytes(content))

    def errors(self) -> str:
        """Return the last errors of TensorRT in one line."""
        return self._log.last_errors()

    def close(self) -> None:
        """Free the engine. The caller must close all its contexts first."""
        self._runtime_config = None
        self._engine = None
        self._runtime_cache = None
        self._runtime = None

    def _check_fixed_shapes(self, outputs: tuple[TensorSpec, ...]) -> None:
        """Refuse outputs whose shapes vary although all inputs have fixed shapes."""
        if any(side < 0 for tensor in outputs for side in tensor.shape):
            raise EngineError(
                self._name,
                f'the shape of an output depends on the data ({tensors_text(outputs)}), but a '
                'CUDA graph needs fixed shapes',
                fix='run the ONNX model instead, or export the detector without NMS',
            )

    def _new_context(self) -> Any:
        """Create a context whose memory this package allocates."""
        user_managed = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if not hasattr(self._trt, 'IRuntimeCache'):
            return self._engine.create_execution_context(user_managed)
        if self._runtime_config is None:
            self._runtime_config = self._new_runtime_config(user_managed)
        return self._engine.create_execution_context(self._runtime_config)

    def _new_runtime_config(self, user_managed: Any) -> Any:
        """Return the runtime configuration for contexts of TensorRT-RTX.

        The configuration must outlive the contexts. Without a configuration, TensorRT-RTX 1.4
        crashes if a context uses any profile but the first.
        """
        config = self._engine.create_runtime_config()
        config.set_execution_context_allocation_strategy(user_managed)
        # Each context has one shape, so its kernels must exist before the graph is captured.
        # NONE is wrong: TensorRT-RTX 1.4 then runs variable shapes on compute capability 9.0, but
        # boxes are 26 pixels off. With EAGER it refuses to run these shapes.
        strategy = self._trt.DynamicShapesKernelSpecializationStrategy
        config.dynamic_shapes_kernel_specialization_strategy = strategy.EAGER
        config.cuda_graph_strategy = (
            self._trt.CudaGraphStrategy.DISABLED
        )  # this package captures the whole frame in its own graph
        self._runtime_cache = config.create_runtime_cache()
        cached = read_cached('runtime', self._cache_key)
        if cached is not None and not self._runtime_cache.deserialize(cached):
            _LOG.warning('The runtime cache of %s is invalid and will be rebuilt', self._name)
        config.set_runtime_cache(self._runtime_cache)
        return config

    def _find_profile(self, image: TensorSpec) -> tuple[int, bool]:
        """Return the first profile that includes a shape, and whether it has several shapes."""
        ranges = []
        for profile, (low, high) in enumerate(self._profile_ranges(image.name)):
            if _is_shape_within(low, image.shape, high):
                return profile, low != high
            ranges.append(f'{list(low)} to {list(high)}')
        found = f'no profile includes the shape {list(image.shape)}, only {", ".join(ranges)}'
        raise EngineError(self._name, found)

    def _profile_ranges(self, name: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the smallest and the largest shape of an input in each profile."""
        return [
            (tuple(low), tuple(high))
            for low, _, high in (
                self._engine.get_tensor_profile_shape(name, profile)
                for profile in range(self._engine.num_optimization_profiles)
            )
        ]

    def _tensor_spec(self, name: str) -> TensorSpec:
        profiles = range(self._engine.num_optimization_profiles)
        if not all(self._is_linear(name, profile) for profile in profiles):
            found = f'tensor {name} must have the LINEAR format'
            raise EngineError(self._name, found, fix=self._rebuild_fix)
        dtype = parse_tensorrt_dtype(self._engine.get_tensor_dtype(name).name)
        return TensorSpec(name, tuple(self._engine.get_tensor_shape(name)), dtype)

    def _is_linear(self, name: str, profile: int) -> bool:
        if hasattr(self._trt, 'TensorFormat'):
            format_ = self._engine.get_tensor_format(name, profile)
            return bool(format_ == self._trt.TensorFormat.LINEAR)
        # The lean runtime lacks the enumeration. Its description ends with the name.
        return str(self._engine.get_tensor_format_desc(name, profile)).endswith('(kLINEAR)')

    def _check_call(self, succeeded: bool, call: str) -> None:
        if not succeeded:
            raise self._error(f'{call} failed')

    def _error(self, found: str) -> EngineError:
        return EngineError(self._name, f'{found}: {self._log.last_errors()}')


class TensorRtContext:
    """One context with fixed shapes.

    Attributes:
        memory: working memory, which this context owns or shares with another context.
        outputs: name, final shape and dtype of each output.
    """

    def __init__(
        self,
        engine: TensorRtEngine,
        context: Any,
        memory: DeviceBuffer,
        outputs: tuple[TensorSpec, ...],
        fix: str,
        *,
        owns: bool,
    ) -> None:
        self._owner = engine
        self._context = context
        self.memory = memory
        self._owns = owns
        self._fix = fix
        self.outputs = outputs

    @property
    def native(self) -> Any:
        """The context object of TensorRT, for inspection."""
        return self._context

    def bind(self, addresses: Mapping[str, int]) -> None:
        """Bind inputs and outputs. ``addresses`` maps their names to device addresses."""
        for name, address in addresses.items():
            if not self._context.set_tensor_address(name, address):
                raise EngineError(f'set_tensor_address({name}) failed', self._owner.errors())

    def enqueue(self, stream: Stream) -> None:
        """Queue inference on a stream. Releases the GIL during the call.

        Raises:
            EngineError: TensorRT refuses. The message has TensorRT's errors.
            CudaError: the CUDA context is lost.
        """
        if not self._context.execute_async_v3(stream.handle):
            stream.raise_if_lost()
            raise EngineError('execute_async_v3 failed', self._owner.errors(), fix=self._fix)

    def is_capturable(self, stream: Stream) -> bool:
        """Return whether a CUDA graph can capture ``enqueue``. True if TensorRT cannot tell."""
        asked = getattr(self._context, 'is_stream_capturable', None)
        return True if asked is None else bool(asked(stream.handle))

    def close(self) -> None:
        """Free the context, and its memory if this context owns it."""
        self._context = None
        if self._owns:
            self.memory.close()


def batch_sizes(ranges: Sequence[tuple[int, int]], max_frames: int) -> tuple[int, ...]:
    """Return the batch sizes to prepare. Each size gets a context and a CUDA graph.

    A profile with a fixed size gives this size. A profile with a range gives both ends and the
    powers of two between them. So a batch above the smallest size fills more than half of its
    prepared size.

    Args:
        ranges: smallest and largest batch of each profile.
        max_frames: largest number of frames that arrive together. Sizes above the smallest
            sufficient size are left out.

    Returns:
        The sizes, smallest first.
    """
    sizes: set[int] = set()
    for low, high in ranges:
        powers = {2**power for power in range(high.bit_length())}
        sizes |= {each for each in powers | {low, high} if low <= each <= high}
    ordered = sorted(sizes)
    enough = next((at for at, each in enumerate(ordered, 1) if each >= max_frames), len(ordered))
    return tuple(ordered[:enough])


def _with_open_batch(tensor: TensorSpec) -> TensorSpec:
    """Return an output with its batch as variable if the reported batch is above 1."""
    several = len(tensor.shape) > 1 and tensor.shape[0] > 1
    return replace(tensor, shape=(-1, *tensor.shape[1:])) if several else tensor


def _is_shape_within(low: Sequence[int], shape: Sequence[int], high: Sequence[int]) -> bool:
    return all(a <= side <= b for a, side, b in zip(low, shape, high, strict=True))


def _open_shape_fix(image: TensorSpec) -> str:
    """Return the fix for an engine with variable shapes that loads but does not run."""
    return (
        'build the engine for one shape, because some releases cannot run variable shapes on some '
        'GPUs (TensorRT-RTX 1.4 on compute capability 9.0): '
        + tool_command('build_engine', 'MODEL', '--shapes', 'x'.join(map(str, image.shape)))
    )
