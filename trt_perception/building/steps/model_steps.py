"""The steps from an ONNX file to a model in the precision that was asked for."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from trt_perception.building.build_state import BuildState
from trt_perception.building.calibration.images import find_files
from trt_perception.building.engine.capabilities import check_operators, check_release
from trt_perception.building.engine.network import resolve_profiles
from trt_perception.building.engine.release import find_tensorrt
from trt_perception.building.engine_manifest import described
from trt_perception.building.graph import onnx_slim
from trt_perception.building.graph.onnx_model import check_model, load_onnx, unknown_operators
from trt_perception.building.graph.onnx_slim import random_inputs
from trt_perception.building.graph.query_decoder import find_query_decoder
from trt_perception.building.precision.calibrate import choose_images, unused_options
from trt_perception.building.precision.prepare_precision import make_precise
from trt_perception.building.precision.quantise_check import is_quantised
from trt_perception.building.steps.accuracy_gate import check_labels
from trt_perception.building.steps.prepare import check_readable, outputs_at, recognise_source
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.input_layout import batch_size, shapes_beside, split_inputs

__all__ = ['check', 'find_images', 'precision', 'read', 'recognise', 'release', 'slim']


def read(state: BuildState) -> None:
    """Read the ONNX file and its external weights."""
    with state.step('read') as step:
        source = state.source = load_onnx(read_model_file(state.options.onnx))
        size = len(source.file.content)
        state.report.input_model = {
            'file': str(source.file.path),
            'size_bytes': size,
            'sha256': source.file.sha256,
            'external_files': list(source.external),
            'inputs': [dataclasses.asdict(tensor) for tensor in source.inputs],
            'outputs': [dataclasses.asdict(tensor) for tensor in source.outputs],
            'metadata': dict(source.metadata),
        }
        nodes = len(source.model.graph.node)
        found = f'{source.file.path.name}, {size / 2**20:.1f} MiB, {nodes} nodes'
        step.outcome = '\n'.join((found, *source.repairs))


def release(state: BuildState) -> None:
    """Choose the TensorRT that builds, and refuse what it cannot."""
    with state.step('release') as step:
        tensorrt = state.tensorrt = find_tensorrt(state.options.runtime)
        gpu = tensorrt.gpu
        state.report.configuration |= {
            'tensorrt': {'flavour': tensorrt.flavour, 'version': tensorrt.version},
            'gpu': gpu
            and {'name': gpu.name, 'compute_capability': gpu.compute_capability, **gpu.cuda},
        }
        if tensorrt.unseen_gpu:
            state.report.warn(f'the GPU of this machine cannot be used: {tensorrt.unseen_gpu}')
        check_release(tensorrt, state.options)
        place = f'{gpu.name} ({gpu.compute_capability})' if gpu else 'no GPU here'
        step.outcome = f'{tensorrt.label}, {place}'


def find_images(state: BuildState) -> None:
    """Find the images for calibration and validation, because a wrong name must cost no build."""
    options, quantised = state.options, is_quantised(state.source.model)
    state.calibration = choose_images(options, quantised=quantised)
    state.report.warn(unused_options(options, quantised=quantised))
    state.validation = tuple(find_files(options.validate) if options.validate else ())
    if state.calibration is None:
        return
    calibrated = {path.resolve() for path in state.calibration.paths}
    if both := calibrated.intersection(path.resolve() for path in state.validation):
        state.report.warn(
            f'{len(both)} images serve calibration and validation both, and flatter the '
            'accuracy: validate on others'
        )


def check(state: BuildState) -> None:
    """Hold the model to ONNX's rules."""
    with state.step('check') as step:
        warnings = check_model(state.source)
        name, graph = state.source.file.path.name, state.source.model.graph
        check_operators(state.tensorrt, state.options, name, (n.op_type for n in graph.node))
        state.report.warn(*warnings)
        step.outcome = 'valid ONNX' if not warnings else 'has operators of others'


def recognise(state: BuildState) -> None:
    """Find out the shapes to build for, and how the model is fed and read."""
    with state.step('recognise') as step:
        source, options = state.source, state.options
        image, auxiliary = split_inputs(source.file.path.name, source.inputs)
        profiles = resolve_profiles(image, options)
        image = replace(image, shape=profiles[0].opt if profiles else image.shape)
        state.shapes = {image.name: image.shape, **shapes_beside(image, auxiliary)}
        other = replace(image, shape=profiles[:2][-1].opt if profiles else image.shape)
        state.other_shapes = {other.name: other.shape, **shapes_beside(other, auxiliary)}
        outputs = outputs_at(source, state.shapes, image, auxiliary)
        recognised = recognise_source(source, options, (image, *auxiliary), outputs)
        state.recognised = recognised
        inputs = tuple(
            replace(tensor, shape=state.shapes[tensor.name]) for tensor in source.inputs
        )
        check_readable(described(source.file, recognised, inputs, outputs))
        check_labels(
            state.validation, options.annotations, recognised.class_names, recognised.task
        )
        batch = min((profile.min[0] for profile in profiles), default=batch_size(image))
        if batch != 1:
            state.report.warn(
                f'the engine takes {batch} images at once or more: for one, and for the images '
                'of fewer cameras, it works as long'
            )
        state.report.input_model |= {
            'decoder': recognised.decoder.as_dict(),
            'preprocessing': dataclasses.asdict(recognised.preprocessing),
            'task': recognised.task.as_dict(),
            'classes': len(recognised.class_names),
            'evidence': list(recognised.evidence),
        }
        several = len(profiles) > 1
        shapes = ', '.join(map(str, profiles)) if several else 'x'.join(map(str, image.shape))
        found = (
            f'{recognised.task}, {recognised.decoder}, {len(recognised.class_names)} classes, '
            f'{shapes}; {recognised.preprocessing.in_words()}'
        )
        step.outcome = '\n'.join((found, *recognised.evidence))


def slim(state: BuildState) -> None:
    """Slim the graph where that changes nothing it computes."""
    with state.step('slim') as step:
        model = state.slimmed = state.source.model
        count = len(model.graph.node)
        state.report.optimization |= {'nodes_before': count, 'nodes_after': count}
        if is_quantised(model):
            # Folding would put weights and their scales together again.
            step.skip('the model is quantised already')
        elif unknown_operators(model):
            step.skip('ONNX Runtime cannot run it to compare')
        else:
            inputs = random_inputs(model, state.other_shapes)
            state.slimmed, warning = onnx_slim.slim(model, inputs)
            after = len(state.slimmed.graph.node)
            state.report.warn(warning)
            state.report.optimization['nodes_after'] = after
            step.outcome = warning or f'{count} nodes became {after}, same results'


def precision(state: BuildState) -> None:
    """Calibrate and convert, and find a decoder that is known to lose accuracy in 16 bits."""
    options, report = state.options, state.report
    with state.step('precision') as step:
        converted = state.converted = make_precise(
            state.slimmed,
            options,
            state.calibration,
            state.recognised.preprocessing,
            state.tensorrt,
            state.shapes,
            state.progress,
        )
        report.warn(*converted.warnings)
        report.optimization |= {'precision_asked': options.precision, **converted.details}
        step.outcome = converted.summary
    state.queries = None
    narrow = options.precision not in ('fp32', 'tf32')
    if narrow and state.recognised.decoder.transformer:
        found = state.queries = find_query_decoder(state.slimmed, state.shapes)
        report.optimization['query_decoder'] = found and found.as_dict()
