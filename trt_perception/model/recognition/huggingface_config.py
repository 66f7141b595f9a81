"""Reads the config.json and preprocessor_config.json of a Hugging Face model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trt_perception.files.plain_text import name_mistake
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import fields_text
from trt_perception.model.recognition.exporter_info import ExporterInfo, read_class_names
from trt_perception.model.recognition.image_processor import read_image_processor
from trt_perception.model.recognition.image_tasks import task_of_preset
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tasks.task import Task

__all__ = ['read_huggingface_config']

#: Decoder for each "model_type" in the config.json of a Hugging Face model.
_HUGGINGFACE_DECODERS: Final[Mapping[str, str]] = {
    model_type: preset.name for preset in PRESETS.values() for model_type in preset.transformers
}
#: Task and decoder for the end of a class name in "architectures".
_TASKS_BY_ARCHITECTURE: Final[Mapping[str, tuple[Task, str]]] = {
    'ForImageClassification': (Classify(), 'class_logits'),
    'ForSemanticSegmentation': (Semantic(), 'pixel_logits'),
}


def read_huggingface_config(config: Mapping[str, Any]) -> ExporterInfo:
    """Return the information about a model in config.json and preprocessor_config.json.

    Args:
        config: content of config.json, with the content of preprocessor_config.json under the key
            `preprocessor_config`.
    """
    model_type = config.get('model_type')
    model_type = model_type if isinstance(model_type, str) and not name_mistake(model_type) else ''
    evidence = [f'config.json "model_type" {model_type!r}'] if model_type else []
    task: Task = DETECT
    decoder = _HUGGINGFACE_DECODERS.get(model_type, '')
    if found := _task_of_architecture(config):
        task, decoder, sentence = found
        evidence.append(sentence)
    elif depth := task_of_preset(decoder):
        task = depth
        # The networks of relative and metric depth differ only in their last layer.
        if decoder == 'relative_depth' and config.get('depth_estimation_type') == 'metric':
            decoder = 'metric_depth'
        evidence.append(f'config.json -> {decoder}, task {task}')
    elif model_type and not decoder:
        # The file may belong to another network, so its classes and preprocessing are not used.
        sentence = f'config.json "model_type" {model_type!r} is unsupported -> file ignored'
        return ExporterInfo(evidence=(sentence,))
    class_names, sentence = read_class_names('config.json "id2label"', config.get('id2label'))
    if not task.has_classes:
        class_names = ()
    elif 'id2label' in config:
        evidence.append(sentence)
    processor = config.get('preprocessor_config')
    processor = processor if isinstance(processor, Mapping) else {}
    preprocessing, input_size, filter_problem = read_image_processor(processor, model_type)
    if preprocessing:
        evidence.append(f'preprocessor_config.json -> {fields_text(preprocessing)}')
    return ExporterInfo(
        class_names=class_names,
        input_size=input_size,
        preprocessing=preprocessing,
        exporter='huggingface',
        decoder_candidates=((decoder,),) if decoder else (),
        task=task,
        filter_problem=filter_problem,
        evidence=tuple(evidence),
    )


def _task_of_architecture(config: Mapping[str, Any]) -> tuple[Task, str, str] | None:
    """Return task, decoder and evidence; None if the class has no task for the whole image.

    A classifier with several labels per image needs a sigmoid, which no decoder has.
    """
    classes = config.get('architectures')
    name = classes[0] if isinstance(classes, list) and len(classes) == 1 else ''
    if not isinstance(name, str) or name_mistake(name):
        return None
    if config.get('problem_type') == 'multi_label_classification':
        return None
    for end, (task, decoder) in _TASKS_BY_ARCHITECTURE.items():
        if name.endswith(end):
            return task, decoder, f'config.json "architectures" {name} -> task {task}'
    return None
