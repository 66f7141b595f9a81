"""The command that writes the manifest of a model which does not describe itself."""

from __future__ import annotations

import shlex

from trt_perception.model.tensors import ModelInfo

__all__ = ['manifest_command']


def manifest_command(model: ModelInfo, task: str, *further: str) -> str:
    """Return the command for messages. The user replaces the names of files.

    Args:
        model: the model. The command works in the folder that its path is relative to.
        task: name of the task.
        further: further options.
    """
    words = ['ros2', 'run', 'trt_perception', 'write_manifest', model.path or model.name]
    return shlex.join([*words, '--task', task, '--class-names-file', 'names.txt', *further])
