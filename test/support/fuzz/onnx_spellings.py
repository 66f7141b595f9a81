# SPDX-License-Identifier: Apache-2.0
"""Load models into ONNX Runtime whose protobuf encoding readers may interpret differently.

    python onnx_spellings.py SEED COUNT

The output is JSON. It has the numbers of models that the package's reader accepted, found
suspicious and refused, each with and without a file that ONNX Runtime opened. A list of the
accepted models for which ONNX Runtime opened a file follows.
inotify reports opened files, independent of ONNX Runtime's own result. Damaged models may crash
ONNX Runtime, so a few models at a time run in a separate process.
"""

import contextlib
import ctypes
import io
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from trt_perception.errors import EngineError
from trt_perception.model.files.onnx_external import find_external_weights

SIDE = 4
_BATCH_SIZE = 50
_IN_OPEN = 0x20


def varint(value, padding=0):
    """Return a varint with ``padding`` redundant bytes."""
    content = bytearray()
    while value >= 0x80:
        content.append(value & 0x7F | 0x80)
        value >>= 7
    content.append(value)
    if padding:
        content[-1] |= 0x80
        content += b'\x80' * (padding - 1) + b'\0'
    return bytes(content)


def field_tree(content, descriptor):
    """Return a message's fields as [number, wire type, value]. Nested messages are lists, too."""
    fields, at = [], 0
    while at < len(content):
        tag, at = _read_varint(content, at)
        known = descriptor.fields_by_number.get(tag >> 3)
        if tag & 7 == 0:
            value, at = _read_varint(content, at)
        else:
            size, at = _read_varint(content, at) if tag & 7 == 2 else ({1: 8, 5: 4}[tag & 7], at)
            value, at = content[at : at + size], at + size
            if tag & 7 == 2 and known.message_type is not None:
                value = field_tree(value, known.message_type)
        fields.append([tag >> 3, tag & 7, value])
    return fields


def _read_varint(content, at):
    value = shift = 0
    while content[at] >= 0x80:
        value |= (content[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return value | content[at] << shift, at + 1


def encoded_unusually(fields, rng, share):
    """Encode a message. ``share`` is the probability that a field gets an unusual encoding."""
    return b''.join(_encoded_field(*field, rng, share) for field in fields)


def _encoded_field(field, wire, value, rng, share):
    kind = rng.randrange(13) if rng.random() < share else None
    tag = varint(
        {
            0: field << 3 | wire | rng.randrange(1, 8) << 32,
            1: field << 3 | wire | 1 << rng.randrange(20, 66),
            2: rng.randrange(30) << 3 | wire,
            3: field << 3 | rng.randrange(8),
        }.get(kind, field << 3 | wire),
        rng.randrange(1, 9) if kind == 4 else 0,
    )
    if isinstance(value, list):
        if kind == 5:  # encode the message in two parts, which readers merge
            at = rng.randrange(len(value) + 1)
            parts = [encoded_unusually(part, rng, share) for part in (value[:at], value[at:])]
            return b''.join(tag + varint(len(part)) + part for part in parts)
        value = encoded_unusually(value, rng, share)
        if kind == 6:
            return varint(field << 3 | 3) + value + varint(field << 3 | 4)
        value += b'\0' if kind == 7 else b'\x04' if kind == 8 else b''
    if isinstance(value, int):
        high = rng.randrange(16) << rng.choice((32, 40, 63)) if kind in (5, 6, 7) else 0
        item = tag + varint(value | high, rng.randrange(1, 9) if kind in (8, 9) else 0)
    elif wire == 2:
        high = 1 << rng.choice((31, 32, 35, 63)) if kind == 9 else 0
        wrong = rng.choice((-2, -1, 1, 2)) if kind == 10 else 0
        size = max(0, len(value) + wrong) | high
        item = tag + varint(size, rng.randrange(1, 9) if kind == 11 else 0) + value
    else:
        item = tag + value
    return item * 2 if kind == 12 else item


def models_with_external_tensor(location):
    """Return models with a tensor stored in the file ``location``, by the tensor's place."""
    tensor = TensorProto(name='w', data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key='location', value=location)
    flat = TensorProto(name='w', data_type=TensorProto.FLOAT, dims=[SIDE * SIDE])
    flat.MergeFrom(TensorProto(data_location=1, external_data=tensor.external_data))
    places = numpy_helper.from_array(np.arange(SIDE * SIDE))
    sparse = onnx.SparseTensorProto(values=flat, indices=places, dims=[SIDE, SIDE])
    inside = numpy_helper.from_array(np.ones(SIDE, np.float32))
    many = helper.make_node('Thing', [], ['z'], domain='mine', values=[inside, tensor])
    constant = helper.make_node('Constant', [], ['w'], value=tensor)
    opsets = [helper.make_opsetid('', 19)]
    return {
        'initializer': _model(initializer=[tensor]),
        'constant': _model([constant]),
        'sparse initializer': _model(sparse_initializer=[sparse]),
        'sparse constant': _model([helper.make_node('Constant', [], ['w'], sparse_value=sparse)]),
        'function': _model(
            [helper.make_node('F', [], ['w'], domain='mine')],
            [helper.make_function('mine', 'F', [], ['w'], [constant], opsets)],
        ),
        'attribute without a use': _model([many], initializer=[tensor]),
    }


def _model(nodes=(), functions=(), **more):
    shape = ['n', SIDE]
    graph = helper.make_graph(
        [*nodes, helper.make_node('MatMul', ['x', 'w'], ['y'])],
        'graph',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, shape)],
        **more,
    )
    opsets = [helper.make_opsetid('', 19), helper.make_opsetid('mine', 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


class FileOpenWatch:
    """Reports whether any process opened a file, with inotify."""

    def __init__(self, path):
        libc = ctypes.CDLL(None)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK)
        assert libc.inotify_add_watch(self._descriptor, os.fsencode(path), _IN_OPEN) > 0

    def was_opened(self):
        """Return whether the file was opened since the last call."""
        try:
            return bool(os.read(self._descriptor, 65536))
        except BlockingIOError:
            return False


def _give_to_onnx_runtime(content):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry('session.load_model_format', 'ONNX')
    try:
        onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
    except Exception:
        return


def _verdict(content):
    try:
        return 'found' if find_external_weights(content) else 'accepted'
    except EngineError:
        return 'refused'


def _load_in_child_process(contents, watch):
    """Load models with ONNX Runtime in a child process; yield whether each opened the file."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        for content in contents:
            with contextlib.redirect_stdout(
                io.StringIO()
            ):  # ONNX Runtime prints load errors there
                _give_to_onnx_runtime(content)
            os.write(write, b'%d' % watch.was_opened())
        os._exit(0)
    os.close(write)
    with open(read, 'rb') as pipe:
        opened = [digit == ord('1') for digit in pipe.read()]
    os.waitpid(child, 0)
    watch.was_opened()
    # The child process did not load the models after a crash, so they have no result.
    yield from zip(contents, opened, strict=False)


def main(seed, count):
    """Test ``count`` models and print the results."""
    os.chdir(tempfile.mkdtemp())
    Path('w.bin').write_bytes(np.ones((SIDE, SIDE), np.float32).tobytes())
    watch = FileOpenWatch('w.bin')
    watch.was_opened()
    descriptor = onnx.ModelProto.DESCRIPTOR
    trees = [
        field_tree(m.SerializeToString(), descriptor)
        for m in models_with_external_tensor('w.bin').values()
    ]
    rng = random.Random(seed)
    counts, holes = Counter(), []
    while counts.total() < count:
        contents = [encoded_unusually(rng.choice(trees), rng, rng.choice((0, 0.01, 0.03, 0.1)))]
        contents += [
            encoded_unusually(rng.choice(trees), rng, 0.03) for _ in range(_BATCH_SIZE - 1)
        ]
        for content, opened in _load_in_child_process(contents, watch):
            verdict = _verdict(content)
            counts[f'{verdict}, {"opened" if opened else "not opened"}'] += 1
            if opened and verdict == 'accepted':
                holes.append(content.hex())
    print(json.dumps({'counts': counts, 'holes': holes[:3]}))


if __name__ == '__main__':
    main(int(sys.argv[1]), int(sys.argv[2]))
