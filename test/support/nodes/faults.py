# SPDX-License-Identifier: Apache-2.0
"""List all injected faults: how a test causes each fault, and the resulting state of the node.

docs/errors.md describes the faults by the same names in the same order. test_faults.py injects
them. nodes/fault_node.py implements faults in the node's process, by the same names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.gpu.fake_tensorrt import PLAN
from support.models.tiny_model import write_tiny_model
from support.models.written_manifest import write_manifest
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.decoders.anchors import Dense

#: Parameters that replace the manifest of a TensorRT engine.
GPU_PARAMETERS = {
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
    'model.decoder': 'dense',
    'model.class_names': ['red', 'green', 'blue'],
}


def tiny(folder: Path) -> Path:
    return write_tiny_model(folder / 'tiny.onnx')


def engine(folder: Path) -> Path:
    """Write a plan for the stand-in. With a GPU, test_faults uses a real plan instead."""
    path = folder / 'tiny.engine'
    path.write_bytes(PLAN)
    return path


def _missing_file(folder):
    return folder / 'missing.onnx'


def _unreadable(folder):
    path = tiny(folder)
    path.chmod(0)
    return path


def _truncated(folder):
    path = tiny(folder)
    path.write_bytes(path.read_bytes()[:-100])
    return path


def _truncated_engine(folder):
    path = folder / 'tiny.engine'
    path.write_bytes(PLAN[:40])
    return path


def _world_writable(folder):
    path = tiny(folder)
    path.chmod(0o666)
    return path


def _no_manifest(folder):
    return write_tiny_model(folder / 'tiny.onnx', manifest=False)


def _with_manifest(change) -> Callable[[Path], Path]:
    def make(folder):
        path = tiny(folder)
        manifest = path.with_name(path.name + '.json')
        content = json.loads(manifest.read_text())
        manifest.write_text(change(content) or json.dumps(content))
        return path

    return make


def _hash(folder):
    path = tiny(folder)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path


def _without_plugin_library(folder):
    path = engine(folder)
    size, image, output = (64, 48), ('images', (1, 3, 48, 64)), ('output', (1, 7, 4))
    names = tuple(GPU_PARAMETERS['model.class_names'])
    library = FileIdentity('libfancy.so', 'ab' * 32, 16536)
    write_manifest(
        path, size, (*image, 'float32'), (*output, 'float32'), Dense(), names, [library]
    )
    return path


def _other_flavour(folder):
    """Write a plan of the TensorRT flavour that is not installed."""
    path = folder / 'tiny.engine'
    path.write_bytes(b'vtrt' + PLAN[4:])
    return path


def _replace(path: Path) -> None:
    other = path.with_suffix('.new')
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


@dataclass(frozen=True)
class Fault:
    """Describes how a test causes a fault, and what the node must do and report.

    Attributes:
        name: the name in docs/errors.md and fault_node.
        phase: ``configure``, ``activate``, ``active`` or ``start``.
        state: the resulting state of the node: a lifecycle state, or ``exit N``.
        model: function that writes the model, damaged if the fault is in the model.
        parameters: parameters that are set before configure; for ``start``, the arguments.
        level: level of the diagnostic.
        says: a name or value that the diagnostic must contain; the golden file has its text.
        varies: whether times, hashes or ROS 2 releases change the text. Such a text is not
            compared.
        strike: function that changes the model's file while the node is active.
        on_gpu: whether the fault needs a GPU: the stand-in or a real GPU.
        real: whether a real GPU can show the fault; otherwise only the stand-in can.
        mended_by: parameters that remove the fault.
    """

    name: str
    phase: str
    state: str = 'unconfigured'
    model: Callable[[Path], Path] = tiny
    parameters: dict | tuple = field(default_factory=dict)
    level: str = 'ERROR'
    says: str = ''
    varies: bool = False
    strike: Callable[[Path], None] | None = None
    on_gpu: bool = False
    real: bool = True
    mended_by: dict = field(default_factory=dict)


def _gpu_fault(name, phase, **rest):
    return Fault(name, phase, **{'model': engine, 'on_gpu': True, **rest})


def _start_fault(name, *arguments, **rest):
    return Fault(name, 'start', 'exit 2', parameters=arguments, **rest)


FAULTS = (
    Fault('file missing', 'configure', model=_missing_file),
    Fault('file unreadable', 'configure', model=_unreadable),
    Fault('file truncated', 'configure', model=_truncated, says='SHA-256', varies=True),
    _gpu_fault('engine truncated', 'configure', model=_truncated_engine, says='TensorRT'),
    Fault('file world-writable', 'configure', model=_world_writable),
    Fault('manifest missing', 'configure', model=_no_manifest),
    Fault(
        'manifest malformed',
        'configure',
        model=_with_manifest(lambda content: '{"schema": 1,'),
    ),
    Fault('hash mismatch', 'configure', model=_hash, says='SHA-256', varies=True),
    _gpu_fault(
        'wrong flavour',
        'configure',
        model=_other_flavour,
        real=False,
        says='tensorrt_rtx',
    ),
    _gpu_fault('wrong version', 'configure', real=False, says='build_engine'),
    _gpu_fault(
        'plugin library missing',
        'configure',
        model=_without_plugin_library,
        real=False,
        says='libfancy.so',
    ),
    Fault(
        'unknown decoder',
        'configure',
        model=_with_manifest(lambda content: content['decoder'].update(family='nonsense')),
    ),
    Fault(
        'wrong tensor dtype',
        'configure',
        model=_with_manifest(lambda content: content['inputs'][0].update(dtype='float16')),
    ),
    _gpu_fault(
        'device id out of range',
        'configure',
        says="'device_ids'",
        parameters={'device_ids': [63]},
        mended_by={'device_ids': [0]},
    ),
    _gpu_fault('no driver', 'configure', says='CUDA'),
    _gpu_fault('no NVRTC', 'configure', says='NVRTC'),
    _gpu_fault('kernel fails to compile', 'configure'),
    _gpu_fault('out of device memory', 'configure', says="'pipeline_depth'"),
    _gpu_fault('out of pinned memory', 'configure', says="'pipeline_depth'"),
    Fault('warm-up raises', 'configure'),
    _gpu_fault(
        'cache folder full',
        'configure',
        state='inactive',
        level='WARN',
        says='No space left',
        varies=True,
    ),
    _gpu_fault(
        'cache folder unwritable',
        'configure',
        state='inactive',
        level='WARN',
        says='/dev/null',
    ),
    Fault('no thread left', 'activate', state='inactive'),
    Fault('no subscription', 'activate', state='inactive'),
    _gpu_fault('copy raises', 'active', says='cudaMemcpyAsync'),
    _gpu_fault(
        'enqueue returns False',
        'active',
        says='execute_async_v3',
        parameters={'use_cuda_graph': False},
        mended_by={'use_cuda_graph': True},
    ),
    _gpu_fault('collect raises', 'active', says='cudaEventSynchronize'),
    Fault('decoder raises', 'active'),
    Fault(
        'output invalid',
        'active',
        state='active',
        level='WARN',
        says='bad_output',
        varies=True,
    ),
    Fault('publish raises', 'active'),
    Fault('detections refused', 'active', state='active', says='not_published', varies=True),
    Fault('worker thread dies', 'active'),
    Fault('ONNX Runtime raises', 'active'),
    _gpu_fault('poisoned GPU context', 'active', state='exit 1', says='cudaErrorIllegalAddress'),
    Fault('subscription lost', 'active', state='active'),
    Fault('engine file replaced on disk', 'active', state='active', level='WARN', strike=_replace),
    _start_fault('parameter of wrong type', '-p', 'confidence_threshold:=high'),
    _start_fault('parameter out of range', '-p', 'confidence_threshold:=2.0'),
    _start_fault('unknown parameter', '-p', 'confidence_treshold:=0.5'),
    _start_fault(
        'parameter of an unknown camera',
        *('-p', 'cameras:=[front, rear]', '-p', 'camera.raer.enabled:=false'),
    ),
    _start_fault('two cameras of one name', '-p', 'cameras:=[front, front]'),
    _start_fault(
        'YAML that does not parse',
        *('--params-file', 'broken.yaml'),
        says='broken.yaml',
        varies=True,
    ),
)
