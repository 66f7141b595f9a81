# SPDX-License-Identifier: Apache-2.0
"""Advises how to write a manifest for a model whose files do not describe it."""

from __future__ import annotations

from trt_perception.model.files.triton_address import parse_triton_address
from trt_perception.model.tasks.table import TASKS
from trt_perception.model.tensors import ModelInfo
from trt_perception.process.tool_command import tool_command


def manifest_advice(model: ModelInfo, task: str, *further: str) -> str:
    """Return one line with a command. The user must replace ``names.txt`` and capital letters.

    A server has the manifest in the configuration of the model. `export_triton` writes both.

    Args:
        model: the model. If its path is relative, so is the path in the command.
        further: more options and their values, one word each.
    """
    kind = TASKS.get(task)
    names = () if kind and not kind.has_classes else ('--class-names-file', 'names.txt')
    words = ('--task', task, *names, *further)
    if model.is_served:
        return f'export the model for the server again: {export_command(model.path, *words)}'
    return f'write a manifest: {tool_command("write_manifest", model.path or model.name, *words)}'


def export_command(address: str, *options: str) -> str:
    """Return the command that writes a model and its manifest for a server.

    Args:
        address: address of the model on the server.
        options: more options and their values, one word each.
    """
    name = parse_triton_address(address).model
    words = ('MODEL.onnx', '--repository', 'DIR', '--name', name, '--overwrite', *options)
    return tool_command('export_triton', *words)
