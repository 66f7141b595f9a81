"""Building a plan: ONNX bytes and options in, the plan's bytes and what is known of them out.

Serves ``tensorrt`` 10.3 to 11.x and ``tensorrt_rtx``. Only TensorRT-RTX builds without a GPU.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trt_perception.building.engine.calibrator import CalibrationData, attach_calibrator
from trt_perception.building.engine.capabilities import build_remarks, check_release
from trt_perception.building.engine.config import TimingCache, configure_builder, load_plugins
from trt_perception.building.engine.hints import tensorrt_error
from trt_perception.building.engine.network import (
    add_profiles,
    keep_in_fp32,
    parse_onnx,
    tensor_specs,
)
from trt_perception.building.engine.progress import (
    EngineProgress,
    make_progress_monitor,
    run_in_build_thread,
)
from trt_perception.building.engine.release import BuildGpu, TensorRt, uses_strong_typing
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.options.values import ShapeProfile
from trt_perception.errors import ConfigError, EngineError
from trt_perception.files.plain_text import join_first
from trt_perception.model.files.plan_header import read_plan_header
from trt_perception.model.tensors import TensorSpec
from trt_perception.stages.tensorrt_log import TensorRtLog

__all__ = ['BuiltPlan', 'build_plan']


@dataclass(frozen=True)
class BuiltPlan:
    """A plan and what is known of it.

    Attributes:
        content: the plan's bytes.
        flavour: ``tensorrt`` or ``tensorrt_rtx``.
        version: of the TensorRT that built it, as its module gives it.
        gpu: of the machine that built it, None where it has none.
        inputs: -1 for a side that may vary.
        outputs: likewise.
        profiles: shapes of the image input, none where its sides are fixed.
        strongly_typed: the model's types decided each layer's precision.
        flags: names of TensorRT's builder flags that were set.
        layer_count: in TensorRT's network before it was optimised.
        build_s: the build took, parsing included.
        timing_cache: where it was kept, empty where nowhere.
        calibration_cache_status: whether TensorRT's own calibration was reused, empty without one.
        warnings: TensorRT's, each once.
        remarks: sentences for the user.
    """

    content: bytes
    flavour: str
    version: str
    gpu: BuildGpu | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profiles: tuple[ShapeProfile, ...]
    strongly_typed: bool
    flags: tuple[str, ...]
    layer_count: int
    build_s: float
    timing_cache: str
    calibration_cache_status: str
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]


def build_plan(
    onnx_bytes: bytes,
    options: BuildOptions,
    tensorrt: TensorRt,
    *,
    fp32_nodes: Collection[str] = (),
    calibration: CalibrationData | None = None,
    progress: EngineProgress = lambda *_: None,
) -> BuiltPlan:
    """Build a plan.

    Args:
        onnx_bytes: the model, weights within, its types as ``uses_strong_typing`` wants them.
        options: what is wanted.
        tensorrt: who builds, from find_tensorrt.
        fp32_nodes: ONNX nodes to hold to FP32 where the network is weakly typed; a strongly typed
            model says so itself.
        calibration: for TensorRT's own calibration, which ``calibration_tool`` asks for.
        progress: called ten times a second, in this thread, with how far TensorRT is.

    Raises:
        EngineError: TensorRT, its release or this machine cannot build it; the message holds what
            TensorRT said and what to do.
        ConfigError: a calibration image or a file named by the options cannot be used.
        KeyboardInterrupt: Ctrl-C; TensorRT has stopped by then.
    """
    check_release(tensorrt, options)
    implicit = options.precision == 'int8' and options.calibration_tool == 'tensorrt'
    if implicit != (calibration is not None):
        raise ConfigError(
            'images for TensorRT to calibrate with',
            'belong to --precision int8 with --calibration-tool tensorrt, and to nothing else',
        )
    stop = threading.Event()
    monitor = make_progress_monitor(tensorrt.module, stop)

    def work() -> BuiltPlan:
        data = None if calibration is None else _stoppable(calibration, stop)
        return _PlanBuild(tensorrt, options, monitor, stop).run(onnx_bytes, fp32_nodes, data)

    def watch() -> None:
        phase, done, total = monitor.position()
        if phase:
            progress(phase, done, total)

    return run_in_build_thread(work, stop, watch=watch)


class _PlanBuild:
    """One build: TensorRT's builder, its network and its log, which belong together.

    Args:
        tensorrt: who builds.
        options: what is wanted.
        monitor: that TensorRT reports to.
        stop: set to end the build.
    """

    def __init__(
        self, tensorrt: TensorRt, options: BuildOptions, monitor: Any, stop: threading.Event
    ) -> None:
        self.tensorrt = tensorrt
        self.options = options
        self.monitor = monitor
        self.stop = stop
        self.said = TensorRtLog(tensorrt.module, quiet=True, verbose=options.verbose)
        self.strongly_typed = uses_strong_typing(tensorrt, options)

    def run(
        self,
        onnx_bytes: bytes,
        fp32_nodes: Collection[str],
        calibration: CalibrationData | None,
    ) -> BuiltPlan:
        """Build; the arguments are those of build_plan."""
        tensorrt, options, said = self.tensorrt, self.options, self.said
        start = time.perf_counter()
        builder, network = _network(tensorrt, said, strongly_typed=self.strongly_typed)
        load_plugins(tensorrt, builder, said, options.plugins)
        parse_onnx(tensorrt, network, said, onnx_bytes, options.onnx.name)
        inputs, outputs = tensor_specs(network)
        config = builder.create_builder_config()
        flags = configure_builder(
            tensorrt, builder, config, options, strongly_typed=self.strongly_typed
        )
        if not self.strongly_typed and fp32_nodes:
            keep_in_fp32(tensorrt, network, fp32_nodes)
            config.set_flag(tensorrt.find('BuilderFlag.OBEY_PRECISION_CONSTRAINTS'))
            flags = (*flags, 'OBEY_PRECISION_CONSTRAINTS')
        profiles = add_profiles(builder, config, inputs, options)
        times = TimingCache(tensorrt, options)
        notes = [times.attach(config)]
        config.progress_monitor = self.monitor
        calibrator = None
        if calibration is not None:
            method = options.calibration_method
            calibrator = attach_calibrator(
                tensorrt, builder, config, calibration, method, failed=self.stop.set
            )
        content = self._serialised(builder, network, config, calibrator)
        notes.append(times.save(config))
        return BuiltPlan(
            content=content,
            flavour=tensorrt.flavour,
            version=tensorrt.version,
            gpu=tensorrt.gpu,
            inputs=inputs,
            outputs=outputs,
            profiles=profiles,
            strongly_typed=self.strongly_typed,
            flags=flags,
            layer_count=network.num_layers,
            build_s=time.perf_counter() - start,
            timing_cache=times.storage,
            calibration_cache_status='' if calibrator is None else calibrator.cache_status,
            warnings=(*said.warnings, *filter(None, notes)),
            remarks=(
                *build_remarks(tensorrt, options, os.environ.get('NVIDIA_TF32_OVERRIDE')),
                *filter(None, [_missing_range_remark(calibrator)]),
                *(calibration.warnings if calibration is not None else ()),
            ),
        )

    def _serialised(self, builder: Any, network: Any, config: Any, calibrator: Any) -> bytes:
        """Return the plan that TensorRT builds; the calibrator is closed."""
        tensorrt, options, said = self.tensorrt, self.options, self.said
        try:
            plan = builder.build_serialized_network(network, config)
        finally:
            if calibrator is not None:
                calibrator.close()
                if calibrator.error is not None:  # whatever became of the build
                    raise calibrator.error
        if plan is None:
            found = f'{tensorrt.label} built no engine'
            heard = f'TensorRT reported: {" ".join(said.last_errors().split())}'
            details = [heard, _missing_range_remark(calibrator)]
            raise tensorrt_error(options.onnx.name, found, details, said.errors)
        content = bytes(plan)
        header = read_plan_header(content, options.engine_path().name)
        if header.module != tensorrt.flavour:
            raise EngineError(tensorrt.label, f'wrote a plan that is for {header.module}')
        return content


def _missing_range_remark(calibrator: Any) -> str:
    """Return a sentence on tensors that TensorRT's own calibration has no range for."""
    if calibrator is None or not calibrator.tensors_without_scale:
        return ''
    return (
        "TensorRT's calibration found no range for "
        f'{join_first(calibrator.tensors_without_scale)}: they are always 0 on these '
        'images, and TensorRT may build no engine or a poor one. '
        'Calibrate with images in which they are not, or use --calibration-tool onnxruntime, '
        'which leaves the layers that read them in float'
    )


def _stoppable(data: CalibrationData, stop: threading.Event) -> CalibrationData:
    """Return the data, ending with an error once ``stop`` is set: half the ranges are none."""

    def batches() -> Iterator[npt.NDArray[np.float32]]:
        for batch in data.open_batches():
            if stop.is_set():
                raise EngineError('the calibration', 'was stopped')
            yield batch

    return dataclasses.replace(data, open_batches=batches)


def _network(tensorrt: TensorRt, said: TensorRtLog, *, strongly_typed: bool) -> tuple[Any, Any]:
    """Return a builder and an empty network."""
    trt = tensorrt.module
    network, failure = None, None
    try:
        builder = trt.Builder(said.logger)
        flag = int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = builder.create_network(1 << flag if strongly_typed else 0)
    except Exception as error:  # bindings raise TypeError where C++ gives a null pointer
        failure = error
    if network is None:
        raise EngineError(
            tensorrt.label,
            f'cannot make a builder. TensorRT reported: {said.last_errors()}',
            fix='build where a GPU and its driver are, or use --runtime tensorrt_rtx',
        ) from failure
    return builder, network
