# SPDX-License-Identifier: Apache-2.0
"""Writes a model into the model repository of a Triton server.

A model is a folder: config.pbtxt, labels.txt, and a folder for each version with the model's file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import ConfigError, EngineError
from trt_perception.files.atomic_files import make_folder, write_atomically
from trt_perception.files.plain_text import short_repr
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.onnx_external import find_external_weights
from trt_perception.model.files.plan_header import read_plan_header
from trt_perception.model.input_layout import (
    auxiliary_shapes,
    batch_size,
    split_inputs,
    with_fixed_size,
)
from trt_perception.model.manifest import Manifest, parse_manifest, serialise_manifest
from trt_perception.model.output_tensor import assign_outputs
from trt_perception.model.tensors import TensorSpec
from trt_perception.stages.triton.connection import MANIFEST_PARAMETER, import_model_config
from trt_perception.stages.triton.messages import TRITON_DTYPES

_TRITON_TYPES: Final = {dtype: f'TYPE_{name}' for name, dtype in TRITON_DTYPES.items()}
_CONFIG_FILE: Final = 'config.pbtxt'
_LABELS_FILE: Final = 'labels.txt'
#: Largest dimension and largest batch in a configuration.
_MAX_NUMBER: Final = 2**31 - 1
#: Largest batch of an ONNX model with an open batch, which states no limit itself.
_DEFAULT_MAX_BATCH: Final = 8


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How a server runs a model.

    Attributes:
        max_batch: largest batch of a model with an open batch; None for the default.
        queue_delay_ms: longest wait of a request for others, to make a batch.
        queue_timeout_ms: the server refuses a request that waited longer; 0 for no limit.
        instances: number of copies of the model, on each GPU.
        gpus: indices of the GPUs; empty for all GPUs, or the CPU without one.
        warm_up: whether the server runs the model before it is ready.
    """

    max_batch: int | None = None
    queue_delay_ms: int = 0
    queue_timeout_ms: int = 0
    instances: int = 1
    gpus: tuple[int, ...] = ()
    cuda_graphs: bool = False
    warm_up: bool = True


def check_servable(model: ModelFile) -> None:
    """Check that a Triton server has a backend for this file and can read its numbers.

    Raises:
        EngineError: the file is an engine of TensorRT-RTX, or not an engine, or the manifest has
            impossible shapes.
    """
    if model.manifest is not None:
        _check_shapes((*model.manifest.inputs, *model.manifest.outputs))
        _largest_profile_batch(model, model.manifest)
    if model.is_onnx or read_plan_header(model.content, str(model.path)).module == 'tensorrt':
        return
    manifest = model.manifest
    source = manifest.onnx.file if manifest and manifest.onnx else 'MODEL.onnx'
    raise EngineError(
        str(model.path),
        'is an engine of TensorRT-RTX, for which Triton has no backend',
        fix=f'export its ONNX file, {source}, or an engine that TensorRT built on the server',
    )


def check_output_paths(model: ModelFile, folder: Path, version: int) -> None:
    """Check that an export can make or replace its files and folders.

    Raises:
        ConfigError: a FIFO, a device, a broken link or another kind of file has a needed name.
    """
    version_folder = folder / str(version)
    files = (folder / _CONFIG_FILE, folder / _LABELS_FILE, version_folder / _model_name(model))
    for path in (folder, version_folder, *files):
        is_usable = path.is_file() if path in files else path.is_dir()
        if os.path.lexists(path) and not is_usable:
            raise ConfigError(
                str(path),
                'something else',
                expected='a file' if path in files else 'a folder',
                fix='remove it, or choose another --repository or --name',
            )


def _model_name(model: ModelFile) -> str:
    return 'model.onnx' if model.is_onnx else 'model.plan'


def _check_shapes(tensors: Sequence[TensorSpec]) -> None:
    """Check that a configuration can contain the shapes. Raises EngineError."""
    for tensor in tensors:
        if not all(side == -1 or 0 < side <= _MAX_NUMBER for side in tensor.shape):
            raise EngineError(
                f'tensor {tensor.name}',
                f'shape {short_repr(str(list(tensor.shape)))}',
                expected=f'dimensions of 1 to {_MAX_NUMBER}, or -1',
                fix='correct the manifest, or export the model again',
            )


def _largest_profile_batch(model: ModelFile, manifest: Manifest) -> int | None:
    """Return the largest batch of an engine's profiles; None if the manifest has no profiles.

    Raises:
        EngineError: the manifest states an impossible batch.
    """
    profiles = manifest.build.profiles if manifest.build else ()
    image, _ = split_inputs(str(model.path), manifest.inputs)
    shapes = [profile[image.name].max for profile in profiles if image.name in profile]
    if not shapes:
        return None
    largest = max((shape[0] for shape in shapes if shape), default=0)
    if not 0 < largest <= _MAX_NUMBER:
        raise EngineError(
            str(model.path),
            f'the manifest states a largest batch of {short_repr(str(largest))}',
            expected=f'1 to {_MAX_NUMBER}',
            fix='correct the manifest, or build the engine again',
        )
    return largest


def largest_batch(model: ModelFile, manifest: Manifest, wanted: int | None) -> int:
    """Return the largest batch that a server may make; 0 if each request is one whole batch.

    Args:
        wanted: the user's limit; None for the largest batch of an engine, or 8 for an ONNX file.

    Raises:
        EngineError: the model cannot run such a batch, or its largest batch is unknown.
    """
    if not _has_open_batch(model, manifest):
        if wanted is not None:
            raise EngineError(
                str(model.path),
                'each request is one batch, because not all inputs and outputs have an open batch',
                fix='leave out --max-batch, or export the model with an open batch',
            )
        return 0
    limit = _largest_profile_batch(model, manifest)
    if limit is not None and (wanted or 0) > limit:
        raise EngineError(
            f'--max-batch {wanted}',
            f'the engine {model.path} runs at most {limit} images in a batch',
            fix='give a smaller number, or build the engine for larger batches',
        )
    if wanted is None and limit is None and not model.is_onnx:
        raise EngineError(
            str(model.path),
            'its manifest does not state the largest batch',
            fix='give --max-batch',
        )
    return wanted or limit or _DEFAULT_MAX_BATCH


def _has_open_batch(model: ModelFile, manifest: Manifest) -> bool:
    """Return whether the first dimension of each tensor is the open batch."""
    image, _ = split_inputs(str(model.path), manifest.inputs)
    outputs = manifest.outputs
    wanted = manifest.decoder.outputs(len(manifest.class_names), manifest.task)
    # Triton has no scalars, so each image needs a dimension in each tensor.
    tensors = (*manifest.inputs, *outputs)
    return (
        batch_size(image) < 0
        and assign_outputs(wanted, outputs) is not None
        and all(output.shape[0] == 'B' for output in wanted)
        and all(len(tensor.shape) > 1 and tensor.shape[0] < 0 for tensor in tensors)
    )


def write_served_model(
    model: ModelFile,
    manifest: Manifest,
    folder: Path,
    version: int,
    options: ServerOptions,
    *,
    uint8: bool,
) -> Manifest:
    """Write a model for a server. Files of an earlier export are replaced, all or none.

    Args:
        folder: folder of the model in the repository. Its name becomes the model's name.
        uint8: give an ONNX model an input of bytes.

    Returns:
        The manifest of the written model, which the configuration contains.

    Raises:
        EngineError: the model cannot be served, or tritonclient or onnx is not installed.
        ConfigError: the folder cannot be made.
        WriteError: a file cannot be written.
    """
    content = model.content
    max_batch = largest_batch(model, manifest, options.max_batch)
    if uint8 or (model.is_onnx and find_external_weights(content, str(model.path))):
        content, manifest = _written_again(model, manifest, uint8=uint8)
    file_name = _model_name(model)
    identity = FileIdentity(file_name, hashlib.sha256(content).hexdigest(), len(content))
    if model.is_onnx:
        manifest = replace(manifest, onnx=identity)
    else:
        manifest = replace(manifest, engine=identity)
    text = serialise_manifest(manifest)
    parse_manifest(text, str(model.path))  # run the checks that a client runs
    config = _configuration(folder.name, manifest, max_batch, options, is_onnx=model.is_onnx)
    config.parameters[MANIFEST_PARAMETER].string_value = text.decode()
    config.version_policy.specific.versions.append(version)  # others may need another manifest
    labels = ''.join(f'{name}\n' for name in manifest.class_names)
    _write(
        {
            folder / _LABELS_FILE: labels.encode(),
            folder / _CONFIG_FILE: _text(config),
            folder / str(version) / file_name: content,
        }
    )
    return manifest


def _written_again(model: ModelFile, manifest: Manifest, *, uint8: bool) -> tuple[bytes, Manifest]:
    """Return an ONNX file that contains its weights, and its manifest. Raises EngineError."""
    try:
        from trt_perception.offline.building.graph.onnx_model import load_onnx
        from trt_perception.offline.building.triton.uint8_input import with_uint8_input
    except ImportError as error:
        raise EngineError(
            str(model.path),
            f'the package onnx, which writes the model again, is missing ({error})',
            fix='python3 -m pip install onnx',
        ) from error
    graph = load_onnx(model).model
    if uint8:
        graph, manifest = with_uint8_input(graph, manifest, str(model.path))
    return graph.SerializeToString(), manifest


def _write(files: dict[Path, bytes]) -> None:
    """Write files and their folders. After an error, no new folder is left."""
    folders = {folder for path in files for folder in path.parents}
    made = sorted(folder for folder in folders if not folder.exists())
    try:
        for folder in made:
            make_folder(folder)
        # The model's file is last: a server that watches the folder then has the configuration.
        write_atomically(files)
    except BaseException:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _text(config: Any) -> bytes:
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config)
    return text.encode()


def _configuration(
    name: str, manifest: Manifest, max_batch: int, options: ServerOptions, *, is_onnx: bool
) -> Any:
    """Return the configuration of a model, a message of tritonclient."""
    messages = import_model_config(name)
    config = messages.ModelConfig(
        name=name,
        backend='onnxruntime' if is_onnx else 'tensorrt',
        max_batch_size=max_batch,
        optimization={'cuda': {'graphs': True}} if options.cuda_graphs else None,
    )
    _add_tensors(config.input, manifest.inputs, max_batch, messages)
    _add_tensors(config.output, manifest.outputs, max_batch, messages)
    config.output[0].label_filename = _LABELS_FILE
    batching = config.dynamic_batching
    batching.max_queue_delay_microseconds = options.queue_delay_ms * 1000
    if options.queue_timeout_ms:
        policy = batching.default_queue_policy
        policy.timeout_action = messages.ModelQueuePolicy.REJECT
        policy.default_timeout_microseconds = options.queue_timeout_ms * 1000
    # A request uses the profiles that its instance names; by default only the first.
    profiles = len(manifest.build.profiles) if manifest.build and not is_onnx else 0
    if options.instances > 1 or options.gpus or profiles > 1:
        group = config.instance_group.add(count=options.instances, gpus=options.gpus)
        group.kind = messages.ModelInstanceGroup.KIND_GPU if options.gpus else group.KIND_AUTO
        group.profile.extend(map(str, range(profiles if profiles > 1 else 0)))
    if options.warm_up:
        for batch in sorted({1, max_batch or 1}):
            _add_warm_up(config, manifest, batch, is_batched=max_batch > 0)
    return config


def _add_tensors(
    entries: Any, tensors: Sequence[TensorSpec], max_batch: int, messages: Any
) -> None:
    _check_shapes(tensors)
    for tensor in tensors:
        if tensor.dtype not in _TRITON_TYPES:
            raise EngineError(
                f'tensor {tensor.name}',
                tensor.dtype,
                expected=f'one of {", ".join(_TRITON_TYPES)}',
                fix='export the model with float32 inputs and outputs',
            )
        entries.add(
            name=tensor.name,
            data_type=messages.DataType.Value(_TRITON_TYPES[tensor.dtype]),
            dims=tensor.shape[1:] if max_batch else tensor.shape,
        )


def _add_warm_up(config: Any, manifest: Manifest, batch: int, *, is_batched: bool) -> None:
    """Let the server run the model on zeros before it reports the model as ready."""
    image, auxiliary = split_inputs(config.name, manifest.inputs)
    fixed = with_fixed_size(image, manifest.preprocessing.input_size)
    shapes = {fixed.name: fixed.shape, **auxiliary_shapes(fixed, auxiliary)}
    warm_up = config.model_warmup.add(name=f'batch of {batch}', batch_size=batch)
    for entry in config.input:
        shape = shapes[entry.name]
        tensor = warm_up.inputs[entry.name]
        tensor.data_type, tensor.zero_data = entry.data_type, True
        tensor.dims.extend(shape[1:] if is_batched else shape)
