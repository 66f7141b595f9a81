"""Every fault that is injected: how it is made, where the node ends, and what it says.

docs/errors.md describes them under the same names, in the same order; test_faults.py injects them.
What happens in the node's process is in nodes/fault_node.py, by the same names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.gpu.fake_tensorrt import PLAN
from support.models.tiny_model import write_tiny_model

#: What a TensorRT engine needs to be told without a manifest.
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
    """Write a plan for the stand-in; on a GPU a real one takes its place (test_faults)."""
    path = folder / 'tiny.engine'
    path.write_bytes(PLAN)
    return path


def _missing(folder):
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


def _other_flavour(folder):
    """Write a plan of the TensorRT that the machine has not."""
    path = folder / 'tiny.engine'
    path.write_bytes(b'vtrt' + PLAN[4:])
    return path


def _replace(path: Path) -> None:
    other = path.with_suffix('.new')
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


@dataclass(frozen=True)
class Fault:
    """One row.

    Attributes:
        name: as in docs/errors.md, and as fault_node knows it.
        phase: ``configure``, ``activate``, ``active`` or ``start``.
        says: words of the diagnostic, or of the error line at the start.
        state: where the node ends: a lifecycle state, or ``exit N``.
        model: makes the model and whatever is wrong with it.
        parameters: to set before configure; at the start, the arguments.
        level: of the diagnostic.
        strike: done by the test to the model's file, once the node is active.
        on_gpu: the stand-in GPU is needed, or a real one.
        real: whether a real GPU can show it; otherwise only the stand-in can.
        mended_by: parameters to set afterwards.
    """

    name: str
    phase: str
    says: tuple[str, ...]
    state: str = 'unconfigured'
    model: Callable[[Path], Path] = tiny
    parameters: dict | tuple = field(default_factory=dict)
    level: str = 'ERROR'
    strike: Callable[[Path], None] | None = None
    on_gpu: bool = False
    real: bool = True
    mended_by: dict = field(default_factory=dict)


def _gpu(name, phase, says, **rest):
    return Fault(name, phase, says, **{'model': engine, 'on_gpu': True, **rest})


FAULTS = (
    Fault('file missing', 'configure', ('cannot be opened',), model=_missing),
    Fault('file unreadable', 'configure', ('cannot be opened',), model=_unreadable),
    Fault('file truncated', 'configure', ('is not the file that',), model=_truncated),
    _gpu('engine truncated', 'configure', ('no TensorRT plan',), model=_truncated_engine),
    Fault(
        'file world-writable',
        'configure',
        ('must not be writable by everybody', 'chmod o-w'),
        model=_world_writable,
    ),
    Fault('manifest missing', 'configure', ('model.',), model=_no_manifest),
    Fault(
        'manifest malformed',
        'configure',
        ('tiny.onnx.json',),
        model=_with_manifest(lambda content: '{"schema": 1,'),
    ),
    Fault('hash mismatch', 'configure', ('SHA-256', 'is not the file that'), model=_hash),
    _gpu('wrong flavour', 'configure', ('tensorrt_rtx',), model=_other_flavour, real=False),
    _gpu(
        'wrong version',
        'configure',
        ('built by tensorrt', 'cannot load it', 'build_engine'),
        real=False,
    ),
    Fault(
        'unknown decoder',
        'configure',
        ('family', 'nonsense'),
        model=_with_manifest(lambda content: content['decoder'].update(family='nonsense')),
    ),
    Fault(
        'wrong tensor dtype',
        'configure',
        ('float16', 'float32'),
        model=_with_manifest(lambda content: content['inputs'][0].update(dtype='float16')),
    ),
    _gpu(
        'device id out of range',
        'configure',
        ("'device_ids'", '(got 63)'),
        parameters={'device_ids': [63]},
        mended_by={'device_ids': [0]},
    ),
    _gpu('no driver', 'configure', ('no CUDA driver',)),
    _gpu('no NVRTC', 'configure', ('NVRTC is missing',)),
    _gpu('kernel fails to compile', 'configure', ('cannot compile the kernels',)),
    _gpu('out of device memory', 'configure', ('GPU memory', "'pipeline_depth'")),
    _gpu('out of pinned memory', 'configure', ('page-locked host memory', "'pipeline_depth'")),
    Fault('warm-up raises', 'configure', ('the model broke',)),
    _gpu('cache folder full', 'configure', ('No space left',), state='inactive', level='WARN'),
    _gpu(
        'cache folder unwritable',
        'configure',
        ('cannot be written',),
        state='inactive',
        level='WARN',
    ),
    Fault('no thread left', 'activate', ("can't start new thread",), state='inactive'),
    Fault('no subscription', 'activate', ('failed to create subscription',), state='inactive'),
    _gpu('copy raises', 'active', ('cudaMemcpyAsync failed',)),
    _gpu(
        'enqueue returns False',
        'active',
        ('execute_async_v3 failed',),
        parameters={'use_cuda_graph': False},
        mended_by={'use_cuda_graph': True},
    ),
    _gpu('collect raises', 'active', ('cudaEventSynchronize failed',)),
    Fault('decoder raises', 'active', ('the decoder broke',)),
    Fault('publish raises', 'active', ('publishing broke',)),
    Fault(
        'detections refused',
        'active',
        ('1 x not_published', 'cannot publish data'),
        state='active',
    ),
    Fault('worker thread dies', 'active', ('the worker thread has died',)),
    Fault('ONNX Runtime raises', 'active', ('the model broke',)),
    _gpu('poisoned GPU context', 'active', ('cudaErrorIllegalAddress',), state='exit 1'),
    Fault('subscription lost', 'active', ('was lost; subscribed again',), state='active'),
    Fault(
        'engine file replaced on disk',
        'active',
        ('was replaced on disk',),
        state='active',
        level='WARN',
        strike=_replace,
    ),
    Fault(
        'parameter of wrong type',
        'start',
        ("'confidence_threshold'", 'a double'),
        state='exit 2',
        parameters=('-p', 'confidence_threshold:=high'),
    ),
    Fault(
        'parameter out of range',
        'start',
        ("'confidence_threshold'", 'from 0 to 1'),
        state='exit 2',
        parameters=('-p', 'confidence_threshold:=2.0'),
    ),
    Fault(
        'unknown parameter',
        'start',
        ("'confidence_treshold'", 'did you mean'),
        state='exit 2',
        parameters=('-p', 'confidence_treshold:=0.5'),
    ),
    Fault(
        'parameter of an unknown camera',
        'start',
        ("no camera 'raer'", "did you mean 'camera.rear.enabled'?", 'cameras are front, rear'),
        state='exit 2',
        parameters=('-p', 'cameras:=[front, rear]', '-p', 'camera.raer.enabled:=false'),
    ),
    Fault(
        'two cameras of one name',
        'start',
        ("'cameras'", "different names (got 'front' twice)"),
        state='exit 2',
        parameters=('-p', 'cameras:=[front, front]'),
    ),
    Fault(
        'YAML that does not parse',
        'start',
        ('broken.yaml',),
        state='exit 2',
        parameters=('--params-file', 'broken.yaml'),
    ),
)
