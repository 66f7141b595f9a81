"""Composes the command that writes a manifest for a model whose files do not describe it."""

from __future__ import annotations

from trt_perception.model.tasks.table import TASKS
from trt_perception.model.tensors import ModelInfo
from trt_perception.process.tool_command import tool_command

__all__ = ['manifest_command']


def manifest_command(model: ModelInfo, task: str, *further: str) -> str:
    """Return the command as one line for messages. The user must replace ``names.txt``.

    Args:
        model: the model. If its path is relative, so is the path in the command.
        task: name of the task.
        further: more options and their values, one word each.
    """
    kind = TASKS.get(task)
    names = () if kind and not kind.has_classes else ('--class-names-file', 'names.txt')
    words = (model.path or model.name, '--task', task, *names, *further)
    return tool_command('write_manifest', *words)
