# SPDX-License-Identifier: Apache-2.0
"""Reads the config.json and preprocessor_config.json of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from trt_perception.files.plain_text import name_mistake
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import fields_text
from trt_perception.model.recognition.exporter_info import ExporterInfo, read_class_names
from trt_perception.model.recognition.image_processor import read_image_processor
from trt_perception.model.recognition.image_tasks import task_of_preset
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import FLOAT_DTYPES, TensorSpec, tensors_text

#: Decoder for each "model_type" in the config.json of a Hugging Face model.
_HUGGINGFACE_DECODERS: Final[Mapping[str, str]] = {
    model_type: preset.name for preset in PRESETS.values() for model_type in preset.transformers
}
#: Tasks by a part of a class name in "architectures".
_TASKS_BY_ARCHITECTURE: Final[Mapping[str, Task]] = {
    'ForImageClassification': Classify(),
    'ForSemanticSegmentation': Semantic(),
}

#: Parts of class names in "architectures" whose outputs a decoder may read, whatever the type is.
_READ_BY_SHAPE: Final = ('ForObjectDetection', 'RfDetrForInstanceSegmentation')


def read_huggingface_config(
    config: Mapping[str, Any], outputs: Sequence[TensorSpec]
) -> ExporterInfo:
    """Return the information about a model in config.json and preprocessor_config.json.

    Args:
        config: content of config.json, with the content of preprocessor_config.json under the key
            `preprocessor_config`.
    """
    model_type = config.get('model_type')
    model_type = model_type if isinstance(model_type, str) and not name_mistake(model_type) else ''
    evidence = [f'config.json "model_type" {model_type!r}'] if model_type else []
    architecture = _architecture(config)
    class_names, sentence = read_class_names('config.json "id2label"', config.get('id2label'))
    task: Task = DETECT
    decoder, unsupported = _HUGGINGFACE_DECODERS.get(model_type, ''), ''
    decoders: tuple[str, ...] = ()  # if the file does not decide between several
    if found := _task_of_whole_image(config, outputs, len(class_names)):
        task, reason = found
        decoder = 'pixel_logits'
        if task == Classify():
            decoder, why = classifier_decoder(config, outputs, len(class_names))
            reason += f' with {why}'
            unsupported = '' if decoder else f'config.json {why}, so the output is no score'
        evidence.append(f'{reason} -> task {task}{f", {decoder}" if decoder else ""}')
    elif depth := task_of_preset(decoder):
        task = depth
        # The networks of relative and metric depth differ only in their last layer.
        if decoder == 'relative_depth' and config.get('depth_estimation_type') == 'metric':
            decoder = 'metric_depth'
        elif _has_unknown_unit(config):
            decoders = ('relative_depth', 'metric_depth')
        evidence.append(
            f'config.json -> {decoder if not decoders else "unknown unit"}, task {task}'
        )
    elif model_type and not decoder and 'ForDepthEstimation' in architecture:
        task, decoders = Depth(), ('relative_depth', 'metric_depth')
        evidence.append(f'config.json "architectures" {architecture} -> unknown unit')
    elif model_type and not decoder:
        # The file may belong to another network, so its classes and preprocessing are not used.
        reason = 'is unsupported'
        if not config.get('architectures'):
            reason = f'without "architectures", with {len(class_names)} labels, fits no output'
        ignored = f'config.json "model_type" {model_type!r} {reason} -> file ignored'
        return ExporterInfo(evidence=(ignored,), other_model=_other_model(architecture))
    if not task.has_classes:
        class_names = ()
    elif 'id2label' in config:
        evidence.append(sentence)
    processor = config.get('preprocessor_config')
    processor = processor if isinstance(processor, Mapping) else {}
    preprocessing, input_size, problems = read_image_processor(processor, model_type)
    if preprocessing:
        evidence.append(f'preprocessor_config.json -> {fields_text(preprocessing)}')
    return ExporterInfo(
        class_names=class_names,
        input_size=input_size,
        preprocessing=preprocessing,
        exporter='huggingface',
        decoder_candidates=(decoders or (decoder,),) if decoders or decoder else (),
        task=task,
        problems=problems,
        unsupported=unsupported,
        evidence=tuple(evidence),
    )


def _task_of_whole_image(
    config: Mapping[str, Any], outputs: Sequence[TensorSpec], label_count: int
) -> tuple[Task, str] | None:
    """Return the task for the whole image, and the finding; None if the task is another.

    Programs that save only the configuration write no "architectures". Then the only output
    decides, if the number of its classes is the number of labels.
    """
    name = _architecture(config)
    for part, task in _TASKS_BY_ARCHITECTURE.items():
        if part in name:
            return task, f'config.json "architectures" {name}'
    if config.get('architectures') or len(outputs) != 1 or outputs[0].dtype not in FLOAT_DTYPES:
        return None
    shape = outputs[0].shape
    # A configuration without "id2label" has two labels.
    if len(shape) not in (2, 4) or shape[1] not in (-1, label_count or 2):
        return None
    task = Classify() if len(shape) == 2 else Semantic()
    return task, f'config.json without "architectures", and {tensors_text(outputs)}'


def _architecture(config: Mapping[str, Any]) -> str:
    """Return the only class name in "architectures"; empty if there is none."""
    classes = config.get('architectures')
    name = classes[0] if isinstance(classes, list) and len(classes) == 1 else ''
    return name if isinstance(name, str) and name and not name_mistake(name) else ''


def _other_model(architecture: str) -> str:
    """Return what a model of an unsupported type is; empty if a decoder may read it."""
    if not architecture or any(part in architecture for part in _READ_BY_SHAPE):
        return ''
    return f'config.json "architectures" {architecture}, a model that no decoder reads'


def _has_unknown_unit(config: Mapping[str, Any]) -> bool:
    """Return whether a depth model may output metres, and its configuration does not say so.

    DPT with MiDaS' backbones is relative. With DINOv2's, the published models output metres.
    """
    backbone = config.get('backbone_config')
    name = backbone.get('model_type') if isinstance(backbone, Mapping) else None
    return config.get('model_type') == 'dpt' and isinstance(name, str) and 'dino' in name


def classifier_decoder(
    config: Mapping[str, Any], outputs: Sequence[TensorSpec], label_count: int
) -> tuple[str, str]:
    """Return the decoder of a classifier, and the reason; empty if the output is no score.

    Source: ``ImageClassificationPipeline.postprocess`` of transformers 5.24.
    """
    problem = config.get('problem_type')
    if problem == 'regression':
        return '', '"problem_type" regression'
    if problem == 'multi_label_classification':
        return 'class_sigmoid', '"problem_type" multi_label_classification'
    counts = {tensor.shape[1] for tensor in outputs if len(tensor.shape) == 2} - {-1}
    if (counts or {label_count}) == {1}:
        return 'class_sigmoid', 'one label'
    return 'class_logits', 'one label for each image'
