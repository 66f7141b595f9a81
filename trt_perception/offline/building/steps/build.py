# SPDX-License-Identifier: Apache-2.0
"""Build an engine step by step: from an ONNX file to an engine, its manifest and a report.

Guarantees: a build that fails leaves existing files unchanged. The report has the duration and the
outcome of each step up to the failed step. Cheap checks come before slow steps.
"""

from __future__ import annotations

from trt_perception.offline.building.build_inputs import BuildInputs
from trt_perception.offline.building.engine.python_plugins import registered_creators
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.output_files import check_output_paths, write_outputs
from trt_perception.offline.building.report import BuildLog
from trt_perception.offline.building.steps import engine_steps, model_steps
from trt_perception.offline.building.steps.reuse import StoreEntry
from trt_perception.offline.building.steps.validation import validate
from trt_perception.stages.tensorrt.plugins import check_plugin_files


def build(options: BuildOptions, log: BuildLog) -> None:
    """Build an engine.

    Args:
        log: the steps fill its report. After an exception, the report has the results so far.

    Raises:
        ConfigError: the options do not fit the files.
        WriteError: engine and manifest cannot be written.
        EngineError: the model cannot be built with these options, or accuracy falls too far.
        TrtPerceptionError: an image cannot be read, or the GPU fails.
        KeyboardInterrupt: the user pressed Ctrl-C.
    """
    log.report.configuration['options'] = options.as_dict()
    replaces = check_output_paths(options)
    check_plugin_files(options.plugin_libraries)
    source = model_steps.read_model(options, log)
    tensorrt = model_steps.choose_release(options, log)
    with registered_creators(tensorrt.module, options.plugin_modules):
        options = model_steps.with_stated_size(options, source)
        calibration, validation = model_steps.find_images(options, source, log.report)
        inputs = BuildInputs(options, source, tensorrt, calibration, validation)

        entry = None if options.store is None else StoreEntry(inputs)
        stored = None if entry is None else entry.load(log)
        if stored is not None:
            write_outputs(stored, None, replaces, log)
            return

        model_steps.check_source(inputs, log)
        spec = model_steps.recognise(inputs, log)
        slimmed = model_steps.slim(inputs, log)
        converted = model_steps.convert(inputs, spec, slimmed, log)
        engine = engine_steps.build(inputs, spec, converted, log)
        verified = engine_steps.verify(inputs, spec, converted, engine, log)
        engine_steps.compare_with_fp16(inputs, spec, slimmed, engine, verified, log)
        engine = validate(inputs, spec, converted, engine, verified, log)

        write_outputs(engine, engine_steps.quantised_model(inputs, spec, converted), replaces, log)
        if entry is not None:
            entry.save(engine, log.report)
