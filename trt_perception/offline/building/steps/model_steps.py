# SPDX-License-Identifier: Apache-2.0
"""Steps that read an ONNX file and convert the model to the requested precision."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import onnx

from trt_perception.files.plain_text import size_text
from trt_perception.files.regular_files import real_path
from trt_perception.images.bag_images import bag_losses
from trt_perception.images.bag_options import check_bag_selection
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.input_layout import (
    auxiliary_shapes,
    batch_size,
    image_size,
    split_inputs,
)
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.recognition.recognise import stated_input_size
from trt_perception.model.tensors import ModelInfo, check_tensor_sizes
from trt_perception.offline.building.build_inputs import BuildInputs
from trt_perception.offline.building.calibration.images import (
    CalibrationImages,
    ImageSet,
    find_image_files,
)
from trt_perception.offline.building.engine.capabilities import check_operators, check_release
from trt_perception.offline.building.engine.network import resolve_profiles
from trt_perception.offline.building.engine.release import TensorRt, find_tensorrt
from trt_perception.offline.building.graph import onnx_slim
from trt_perception.offline.building.graph.onnx_model import (
    OnnxSource,
    check_model,
    load_onnx,
    unknown_operators,
)
from trt_perception.offline.building.graph.onnx_slim import random_inputs
from trt_perception.offline.building.graph.query_decoder import find_query_decoder
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.precision.calibrate import (
    choose_calibration_images,
    unused_calibration_options,
)
from trt_perception.offline.building.precision.prepare_precision import (
    ConvertedModel,
    prepare_precision,
)
from trt_perception.offline.building.precision.quantise_check import is_quantised
from trt_perception.offline.building.report import BuildLog, BuildReport
from trt_perception.offline.building.steps.accuracy_gate import check_labels
from trt_perception.offline.building.steps.prepare import (
    infer_outputs,
    recognise_source,
)


def read_model(options: BuildOptions, log: BuildLog) -> OnnxSource:
    """Read the ONNX file and its external weights."""
    with log.step('read') as step:
        source = load_onnx(read_model_file(options.onnx))
        size = len(source.file.content)
        log.report.input_model = {
            'file': str(source.file.path),
            'size_bytes': size,
            'sha256': source.file.sha256,
            'external_files': list(source.external_files),
            'inputs': [dataclasses.asdict(tensor) for tensor in source.inputs],
            'outputs': [dataclasses.asdict(tensor) for tensor in source.outputs],
            'metadata': dict(source.metadata),
        }
        nodes = len(source.model.graph.node)
        found = f'{source.file.path.name}, {size_text(size)}, {nodes} nodes'
        step.outcome = '\n'.join((found, *source.repairs))
    return source


def choose_release(options: BuildOptions, log: BuildLog) -> TensorRt:
    """Choose the TensorRT release that builds, and refuse options that it does not support."""
    with log.step('release') as step:
        tensorrt = find_tensorrt(options.runtime)
        gpu = tensorrt.gpu
        log.report.configuration |= {
            'tensorrt': {'flavour': tensorrt.flavour, 'version': tensorrt.version},
            'gpu': gpu
            and {'name': gpu.name, 'compute_capability': gpu.compute_capability, **gpu.cuda},
        }
        if tensorrt.unusable_gpu_reason:
            log.report.warn(
                f'the GPU of this machine cannot be used: {tensorrt.unusable_gpu_reason}'
            )
        check_release(tensorrt, options)
        place = f'{gpu.name} ({gpu.compute_capability})' if gpu else 'no GPU here'
        step.outcome = f'{tensorrt.label}, {place}'
    return tensorrt


def with_stated_size(options: BuildOptions, source: OnnxSource) -> BuildOptions:
    """Return the options with the input size that the model's files state.

    The options stay as they are if the input's size is fixed, or if they have shapes or a size.
    """
    image, _ = split_inputs(source.file.path.name, source.inputs)
    if options.shapes or options.input_size or image_size(image) is not None:
        return options
    manifest = source.file.manifest
    if manifest is not None:
        return replace(options, input_size=manifest.preprocessing.input_size)
    name = source.file.path.name
    model = ModelInfo(name, source.inputs, source.outputs, source.metadata, source.file.config)
    return replace(options, input_size=stated_input_size(model))


def find_images(
    options: BuildOptions, source: OnnxSource, report: BuildReport
) -> tuple[ImageSet | None, tuple[Path, ...]]:
    """Find the images for calibration and validation early, so that a wrong path fails at once."""
    quantised = is_quantised(source.model)
    sources = [images for images in (options.calibration_images, options.validate) if images]
    check_bag_selection(options.bag_selection, sources)
    calibration = choose_calibration_images(options, quantised=quantised)
    report.warn(unused_calibration_options(options, quantised=quantised))
    validation: tuple[Path, ...] = ()
    if options.validate:
        validation = tuple(find_image_files(options.validate, options.bag_selection))
    report.warn(*(loss for images in sources for loss in bag_losses(images)))
    if calibration is not None:
        calibrated = {real_path(path) for path in calibration.paths}
        if both := calibrated.intersection(map(real_path, validation)):
            report.warn(
                f'{len(both)} images are used for calibration and validation, which makes the '
                'accuracy look better than it is: validate on other images'
            )
    return calibration, validation


def check_source(inputs: BuildInputs, log: BuildLog) -> None:
    """Check the model by the rules of ONNX, and that TensorRT has its operators."""
    source = inputs.source
    with log.step('check') as step:
        warnings = check_model(source)
        operators = (node.op_type for node in source.model.graph.node)
        check_operators(inputs.tensorrt, source.file.path.name, operators)
        log.report.warn(*warnings)
        step.outcome = 'valid ONNX' if not warnings else 'has operators that ONNX does not define'


def recognise(inputs: BuildInputs, log: BuildLog) -> ModelSpec:
    """Determine the shapes of the engine, and preprocessing, decoder and class names."""
    source, options = inputs.source, inputs.options
    with log.step('recognise') as step:
        image, auxiliary = split_inputs(source.file.path.name, source.inputs)
        profiles = resolve_profiles(image, options)
        image = replace(image, shape=profiles[0].opt if profiles else image.shape)
        check_tensor_sizes(source.file.path.name, (image,))
        shapes = {image.name: image.shape, **auxiliary_shapes(image, auxiliary)}
        outputs = infer_outputs(source, shapes, image, auxiliary)
        spec = recognise_source(source, options, (image, *auxiliary), outputs)
        check_labels(
            inputs.validation,
            options.annotations,
            spec.class_names,
            spec.task,
            options.validate or '',
        )
        log.report.warn(spec.assumption)
        batch = min((profile.min[0] for profile in profiles), default=batch_size(image))
        if batch != 1:
            log.report.warn(
                f'the engine always computes at least {batch} images: a node with fewer cameras '
                'needs the same time per batch'
            )
        log.report.input_model |= {
            'decoder': spec.decoder.as_dict(),
            'preprocessing': dataclasses.asdict(spec.preprocessing),
            'task': spec.task.as_dict(),
            'classes': len(spec.class_names),
            'evidence': list(spec.evidence),
        }
        several = len(profiles) > 1
        sizes = ', '.join(map(str, profiles)) if several else 'x'.join(map(str, image.shape))
        found = (
            f'{spec.task.summary(spec.class_names)}, {spec.decoder}, '
            f'{sizes}; {spec.preprocessing.summary()}'
        )
        step.outcome = '\n'.join((found, *spec.evidence))
    return spec


def slim(inputs: BuildInputs, log: BuildLog) -> onnx.ModelProto:
    """Return a slimmed model with equal results, or the model itself if slimming failed."""
    model = inputs.source.model
    count = len(model.graph.node)
    log.report.optimization |= {'nodes_before': count, 'nodes_after': count}
    with log.step('slim') as step:
        if is_quantised(model):
            # Constant folding would merge weights with their scales.
            step.skip('the model is quantised already')
            return model
        if unknown_operators(model):
            step.skip('ONNX Runtime cannot run the model for a comparison')
            return model
        slimmed, warning = onnx_slim.slim(model, random_inputs(model, _last_shapes(inputs)))
        after = len(slimmed.graph.node)
        log.report.warn(warning)
        log.report.optimization['nodes_after'] = after
        step.outcome = warning or f'{count} nodes became {after}, same results'
    return slimmed


def _last_shapes(inputs: BuildInputs) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input in the second profile, or in the only one."""
    image, auxiliary = split_inputs(inputs.source.file.path.name, inputs.source.inputs)
    profiles = resolve_profiles(image, inputs.options)
    image = replace(image, shape=profiles[:2][-1].opt if profiles else image.shape)
    return {image.name: image.shape, **auxiliary_shapes(image, auxiliary)}


def convert(
    inputs: BuildInputs, spec: ModelSpec, slimmed: onnx.ModelProto, log: BuildLog
) -> ConvertedModel:
    """Calibrate and convert the model, and find its query decoder, if it has one."""
    options, images = inputs.options, None
    with log.step('precision') as step:
        if inputs.calibration is not None:
            images = CalibrationImages(inputs.calibration, spec.preprocessing, log.progress)
        converted = prepare_precision(
            slimmed, options, images, inputs.tensorrt, spec.input_shapes, log.progress
        )
        log.report.warn(*converted.warnings)
        log.report.optimization |= {'precision_asked': options.precision, **converted.details}
        step.outcome = converted.summary
    narrow = options.precision not in ('fp32', 'tf32')
    if not (narrow and spec.decoder.is_transformer):
        return converted
    queries = find_query_decoder(slimmed, spec.input_shapes)
    log.report.optimization['query_decoder'] = queries and queries.as_dict()
    return replace(converted, queries=queries)
