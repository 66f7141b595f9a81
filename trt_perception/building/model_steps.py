"""The steps from an ONNX file to a model in the precision that was asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from trt_perception.building.accuracy_gate import check_labels
from trt_perception.building.engine.capabilities import check_release
from trt_perception.building.engine.release import TensorRt
from trt_perception.building.engine.release import find_tensorrt
from trt_perception.building.graph import onnx_slim
from trt_perception.building.graph.onnx_model import OnnxSource
from trt_perception.building.graph.onnx_model import check_model
from trt_perception.building.graph.onnx_model import load_onnx
from trt_perception.building.graph.onnx_model import unknown_operators
from trt_perception.building.graph.onnx_slim import random_inputs
from trt_perception.building.graph.quantise_check import is_quantised
from trt_perception.building.graph.query_decoder import QUERY_FAMILIES
from trt_perception.building.graph.query_decoder import QueryDecoder
from trt_perception.building.graph.query_decoder import find_query_decoder
from trt_perception.building.precision.calibration_images import ImageSet
from trt_perception.building.precision.prepare_precision import ConvertedModel
from trt_perception.building.precision.prepare_precision import make_precise
from trt_perception.building.prepare import check_readable
from trt_perception.building.prepare import outputs_at
from trt_perception.building.prepare import recognise_source
from trt_perception.building.prepare import run_shapes
from trt_perception.building.prepare import wanted_profiles
from trt_perception.building.report import Context
from trt_perception.model.model_file import read_model_file
from trt_perception.model.recognition.recognise import Recognised

__all__ = ['check', 'precision', 'queries', 'read', 'recognise', 'release', 'slim']


def read(context: Context) -> OnnxSource:
    """Read the ONNX file and its external weights."""
    with context.report.step('read', context.progress) as step:
        source = load_onnx(read_model_file(context.options.onnx))
        size = len(source.file.content)
        context.report.input_model = {
            'file': str(source.file.path),
            'size_bytes': size,
            'sha256': source.file.sha256,
            'external_files': list(source.external),
            'inputs': [dataclasses.asdict(tensor) for tensor in source.inputs],
            'outputs': [dataclasses.asdict(tensor) for tensor in source.outputs],
            'metadata': dict(source.metadata),
        }
        step.outcome = (
            f'{source.file.path.name}, {size / 2**20:.1f} MiB, '
            f'{len(source.model.graph.node)} nodes'
        )
        step.outcome = '\n'.join((step.outcome, *source.repairs))
        return source


def release(context: Context) -> TensorRt:
    """Choose the TensorRT that builds, and refuse what it cannot."""
    with context.report.step('release', context.progress) as step:
        tensorrt = find_tensorrt(context.options.runtime)
        gpu = tensorrt.gpu
        context.report.configuration |= {
            'tensorrt': {'flavour': tensorrt.flavour, 'version': tensorrt.version},
            'gpu': gpu
            and {'name': gpu.name, 'compute_capability': gpu.compute_capability, **gpu.cuda},
        }
        if tensorrt.unseen_gpu:
            context.report.warn(f'the GPU of this machine cannot be used: {tensorrt.unseen_gpu}')
        check_release(tensorrt, context.options)
        place = f'{gpu.name} ({gpu.compute_capability})' if gpu else 'no GPU here'
        step.outcome = f'{tensorrt.label}, {place}'
        return tensorrt


def check(context: Context, source: OnnxSource) -> None:
    """Hold the model to ONNX's rules."""
    with context.report.step('check', context.progress) as step:
        warnings = check_model(source)
        context.report.warn(*warnings)
        step.outcome = 'valid ONNX' if not warnings else 'has operators of others'


def recognise(
    context: Context, source: OnnxSource, validation: Sequence[Path]
) -> tuple[dict[str, tuple[int, ...]], Recognised]:
    """Find out the shapes to build for, and how the model is fed and read."""
    with context.report.step('recognise', context.progress) as step:
        profiles = wanted_profiles(source, context.options)
        shapes = run_shapes(source, profiles)
        shape = next(iter(shapes.values()))
        outputs = outputs_at(source, shapes)
        recognised = recognise_source(source, context.options, outputs, shape)
        inputs = [replace(t, shape=shapes.get(t.name, t.shape)) for t in source.inputs]
        check_readable(source, recognised, tuple(inputs), outputs)
        check_labels(validation, context.options.annotations, recognised.class_names)
        batch = min((profile.min[0] for profile in profiles), default=shape[0])
        if batch != 1:
            context.report.warn(
                f'the engine takes {batch} images at once or more; detector_node runs batch 1 only'
            )
        context.report.input_model |= {
            'decoder': recognised.decoder.as_dict(),
            'preprocessing': dataclasses.asdict(recognised.preprocessing),
            'classes': len(recognised.class_names),
            'evidence': list(recognised.evidence),
        }
        step.outcome = '\n'.join(
            (
                f'{recognised.decoder}, {len(recognised.class_names)} classes, '
                f'{"x".join(map(str, shape))}; {recognised.preprocessing.in_words()}',
                *recognised.evidence,
            )
        )
        return shapes, recognised


def slim(
    context: Context, model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]
) -> onnx.ModelProto:
    """Slim the graph where that changes nothing it computes."""
    with context.report.step('slim', context.progress) as step:
        count = len(model.graph.node)
        context.report.optimization |= {'nodes_before': count, 'nodes_after': count}
        if is_quantised(model):
            # Folding would put weights and their scales together again.
            step.skip('the model is quantised already')
            return model
        if unknown_operators(model):
            step.skip('ONNX Runtime cannot run it to compare')
            return model
        slimmed, warning = onnx_slim.slim(model, random_inputs(model, shapes))
        after = len(slimmed.graph.node)
        context.report.warn(warning)
        context.report.optimization['nodes_after'] = after
        step.outcome = warning or f'{count} nodes became {after}, same results'
        return slimmed


def precision(
    context: Context,
    model: onnx.ModelProto,
    images: ImageSet | None,
    recognised: Recognised,
    tensorrt: TensorRt,
    shapes: Mapping[str, tuple[int, ...]],
) -> ConvertedModel:
    """Calibrate and convert."""
    with context.report.step('precision', context.progress) as step:
        precise = make_precise(
            model,
            context.options,
            images,
            recognised.preprocessing,
            tensorrt,
            shapes,
            context.progress,
        )
        context.report.warn(*precise.warnings)
        context.report.optimization |= {
            'precision_asked': context.options.precision,
            **precise.details,
        }
        step.outcome = precise.summary
        return precise


def queries(
    context: Context,
    model: onnx.ModelProto,
    recognised: Recognised,
    shapes: Mapping[str, tuple[int, ...]],
) -> QueryDecoder | None:
    """Find the decoder that is known to lose accuracy in 16 bits, None where none is."""
    if context.options.precision in ('fp32', 'tf32'):
        return None
    if recognised.decoder.family not in QUERY_FAMILIES:
        return None
    found = find_query_decoder(model, shapes)
    context.report.optimization['query_decoder'] = found and found.as_dict()
    return found
