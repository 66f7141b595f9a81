# SPDX-License-Identifier: Apache-2.0
"""Builds a plan, the serialised engine, from ONNX bytes and build options.

Supports ``tensorrt`` 10.3 to 11.x and ``tensorrt_rtx``. Only TensorRT-RTX builds without a GPU.
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

from trt_perception.errors import ConfigError, EngineError
from trt_perception.files.plain_text import join_first_items
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.files.plan_header import read_plan_header
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.building.engine.calibrator import CalibrationData, attach_calibrator
from trt_perception.offline.building.engine.capabilities import build_remarks, check_release
from trt_perception.offline.building.engine.config import TimingCache, configure_builder
from trt_perception.offline.building.engine.hints import tensorrt_error
from trt_perception.offline.building.engine.network import (
    add_profiles,
    input_and_output_specs,
    keep_in_fp32,
    parse_onnx,
)
from trt_perception.offline.building.engine.progress import (
    EngineProgress,
    make_progress_monitor,
    run_in_build_thread,
)
from trt_perception.offline.building.engine.release import BuildGpu, TensorRt, uses_strong_typing
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.options.values import ShapeProfile
from trt_perception.stages.tensorrt.log import TensorRtLog
from trt_perception.stages.tensorrt.plugins import load_plugins


@dataclass(frozen=True)
class BuiltPlan:
    """A plan, with a record of its build.

    Attributes:
        content: the plan's bytes.
        flavour: ``tensorrt`` or ``tensorrt_rtx``.
        version: version of TensorRT's Python module that built the plan.
        gpu: GPU of the building machine; None without a GPU.
        inputs: input tensors; a dynamic dimension is -1.
        outputs: output tensors; a dynamic dimension is -1.
        profiles: shapes of the image input; empty if all its dimensions are fixed.
        strongly_typed: whether the model's types decided the precision of each layer.
        layer_count: number of layers in TensorRT's network before optimisation.
        build_s: build time in seconds, including parsing.
        timing_cache: path of the timing cache or ``auto``; empty without a cache.
        calibration_cache_status: whether TensorRT's calibrator reused ranges; empty without a
            calibrator.
        warnings: TensorRT's warnings without duplicates, and faults of the timing cache.
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
    plugins: tuple[FileIdentity, ...]
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
    """Build a plan with TensorRT.

    Args:
        onnx_bytes: model with embedded weights. If ``uses_strong_typing`` returns True, the types
            in the graph are the engine's types.
        fp32_nodes: ONNX nodes that compute in FP32 in a weakly typed network. Ignored in a
            strongly typed network, whose graph contains the types.
        calibration: data for TensorRT's own calibrator; required if ``calibration_tool`` is
            ``tensorrt`` and the precision ``int8``, otherwise None.
        progress: called ten times a second in this thread, with TensorRT's progress.

    Raises:
        EngineError: this TensorRT or this machine cannot build the model. The message has
            TensorRT's text and a remedy.
        ConfigError: a calibration image or a file in the options cannot be used.
        KeyboardInterrupt: the user pressed Ctrl-C, and TensorRT has stopped.
    """
    check_release(tensorrt, options)
    tensorrt_calibrates = options.precision == 'int8' and options.calibration_tool == 'tensorrt'
    if tensorrt_calibrates != (calibration is not None):
        raise ConfigError(
            "images for TensorRT's calibrator",
            'are required with --precision int8 --calibration-tool tensorrt, and only then',
        )
    stop = threading.Event()
    monitor = make_progress_monitor(tensorrt.module, stop)

    def work() -> BuiltPlan:
        data = None if calibration is None else _with_stop(calibration, stop)
        return _PlanBuild(tensorrt, options, monitor, stop).run(onnx_bytes, fp32_nodes, data)

    def on_poll() -> None:
        phase, done, total = monitor.position()
        if phase:
            progress(phase, done, total)

    return run_in_build_thread(work, stop, on_poll=on_poll)


class _PlanBuild:
    """Runs one build with TensorRT, and records TensorRT's messages.

    Args:
        stop: set by the caller or by a failed calibrator to end the build.
    """

    def __init__(
        self, tensorrt: TensorRt, options: BuildOptions, monitor: Any, stop: threading.Event
    ) -> None:
        self.tensorrt = tensorrt
        self.options = options
        self.monitor = monitor
        self.stop = stop
        self.trt_log = TensorRtLog(tensorrt.module, quiet=True, verbose=options.verbose)
        self.strongly_typed = uses_strong_typing(tensorrt, options)

    def run(
        self,
        onnx_bytes: bytes,
        fp32_nodes: Collection[str],
        calibration: CalibrationData | None,
    ) -> BuiltPlan:
        """Build the plan. ``build_plan`` explains the arguments."""
        tensorrt, options, trt_log = self.tensorrt, self.options, self.trt_log
        start = time.perf_counter()
        builder, network = _create_network(tensorrt, trt_log, strongly_typed=self.strongly_typed)
        plugins = load_plugins(tensorrt.module, trt_log, options.plugin_libraries)
        parse_onnx(tensorrt, network, trt_log, onnx_bytes, options.onnx.name)
        inputs, outputs = input_and_output_specs(network)
        config = builder.create_builder_config()
        flags = configure_builder(
            tensorrt, builder, config, options, strongly_typed=self.strongly_typed
        )
        if not self.strongly_typed and fp32_nodes:
            keep_in_fp32(tensorrt, network, fp32_nodes)
            config.set_flag(tensorrt.find_member('BuilderFlag.OBEY_PRECISION_CONSTRAINTS'))
            flags = (*flags, 'OBEY_PRECISION_CONSTRAINTS')
        profiles = add_profiles(builder, config, inputs, options)
        timing_cache = TimingCache(tensorrt, options)
        cache_warnings = [timing_cache.attach(config)]
        config.progress_monitor = self.monitor
        calibrator = None
        if calibration is not None:
            method = options.calibration_method
            calibrator = attach_calibrator(
                tensorrt, builder, config, calibration, method, on_failure=self.stop.set
            )
        content = self._serialise(builder, network, config, calibrator)
        cache_warnings.append(timing_cache.save(config))
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
            plugins=plugins,
            timing_cache=timing_cache.storage,
            calibration_cache_status='' if calibrator is None else calibrator.cache_status,
            warnings=(*trt_log.warnings, *filter(None, cache_warnings)),
            remarks=(
                *build_remarks(tensorrt, options, os.environ.get('NVIDIA_TF32_OVERRIDE')),
                *filter(None, [_missing_range_remark(calibrator)]),
                *(calibration.warnings if calibration is not None else ()),
            ),
        )

    def _serialise(self, builder: Any, network: Any, config: Any, calibrator: Any) -> bytes:
        """Return the plan's bytes, and close the calibrator.

        Raises:
            EngineError: TensorRT built no plan, or a plan for another flavour.
            BaseException: the error that the calibrator recorded.
        """
        tensorrt, options, trt_log = self.tensorrt, self.options, self.trt_log
        try:
            plan = builder.build_serialized_network(network, config)
        finally:
            if calibrator is not None:
                calibrator.close()
                if calibrator.error is not None:  # even a finished plan would have wrong ranges
                    raise calibrator.error
        if plan is None:
            found = f'{tensorrt.label} built no engine'
            heard = f'TensorRT reported: {" ".join(trt_log.last_errors().split())}'
            details = [heard, _missing_range_remark(calibrator)]
            raise tensorrt_error(tensorrt, options.onnx.name, found, details, trt_log.errors)
        content = bytes(plan)
        header = read_plan_header(content, options.engine_path().name)
        if header.module != tensorrt.flavour:
            raise EngineError(tensorrt.label, f'wrote a plan for {header.module}')
        return content


def _missing_range_remark(calibrator: Any) -> str:
    """Return a sentence that lists the tensors without a range; empty if there are none."""
    if calibrator is None or not calibrator.tensors_without_scale:
        return ''
    return (
        "TensorRT's calibration found no range for "
        f'{join_first_items(calibrator.tensors_without_scale)}: '
        'these tensors are always 0 on the calibration images. TensorRT may build no engine, or '
        'an inaccurate engine. Calibrate with other images, or use --calibration-tool '
        'onnxruntime, which keeps the layers that read these tensors in float'
    )


def _with_stop(data: CalibrationData, stop: threading.Event) -> CalibrationData:
    """Return calibration data whose batches raise EngineError after ``stop`` is set.

    Ending the batches early instead would make TensorRT compute ranges from some of the images.
    """

    def batches() -> Iterator[npt.NDArray[np.float32]]:
        for batch in data.open_batches():
            if stop.is_set():
                raise EngineError('the calibration', 'was stopped')
            yield batch

    return dataclasses.replace(data, open_batches=batches)


def _create_network(
    tensorrt: TensorRt, trt_log: TensorRtLog, *, strongly_typed: bool
) -> tuple[Any, Any]:
    """Return a builder and an empty network.

    Raises:
        EngineError: TensorRT cannot create them, for example without a GPU.
    """
    trt = tensorrt.module
    network, failure = None, None
    try:
        builder = trt.Builder(trt_log.logger)
        flag = int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
        network = builder.create_network(1 << flag if strongly_typed else 0)
    except Exception as error:  # the bindings raise TypeError if C++ returns a null pointer
        failure = error
    if network is None:
        raise EngineError(
            tensorrt.label,
            f'cannot create a builder. TensorRT reported: {trt_log.last_errors()}',
            fix='build on a machine with a GPU and its driver, or use --runtime tensorrt_rtx',
        ) from failure
    return builder, network
