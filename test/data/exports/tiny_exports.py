# SPDX-License-Identifier: Apache-2.0
"""Share code of all recordings: the image, heads with varied outputs, and exported files."""

from __future__ import annotations

import random
import warnings

import numpy as np
import torch

HEIGHT, WIDTH = 64, 96
NAMES = ['N/A', 'cat', 'dog', 'N/A', 'fox']  # class lists of COCO also have placeholders


def picture():
    """Return uint8 (HEIGHT, WIDTH, 3), RGB, in the input size of the network."""
    rng = np.random.default_rng(5)
    small = rng.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    return np.kron(small, np.ones((8, 8, 1), np.uint8))


def blocks(width, height):
    """Return an image of 12 x 8 random blocks, uint8 (height, width, 3).

    Python guarantees that its generator gives the same values in all releases.
    """
    colours = np.frombuffer(random.Random(7).randbytes(8 * 12 * 3), np.uint8).reshape(8, 12, 3)
    return colours[np.arange(height) * 8 // height][:, np.arange(width) * 12 // width]


def spread_outputs(model, parts, factor):
    """Make a random head's outputs differ, so that only some boxes pass the threshold."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in parts):
                parameter.mul_(factor)
                if name.endswith('bias'):
                    parameter.zero_()
            if any(part in name for part in ('detection_tokens', 'position_embeddings')):
                parameter.normal_()  # they start as zeros, so all queries are equal


def export(model, inputs, path, names, outputs, dynamo):
    """Write an ONNX file with torch's newer exporter (``dynamo``) or its older exporter."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        torch.onnx.export(
            model,
            inputs,
            str(path),
            input_names=names,
            output_names=outputs,
            opset_version=18 if dynamo else 17,
            dynamo=dynamo,
            external_data=False,
        )
    shorten(path)


def shorten(path):
    """Give inner tensors short names. Long names are half of a tiny model's bytes."""
    import onnx

    model = onnx.load(path)
    kept = {entry.name for entry in (*model.graph.input, *model.graph.output)}
    shorten_graph(model.graph, {'': ''}, kept)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def shorten_graph(graph, names, kept):
    def short(name):
        return name if name in kept else names.setdefault(name, f't{len(names)}')

    for tensor in (*graph.initializer, *graph.input, *graph.output):
        tensor.name = short(tensor.name)
    for node in graph.node:
        node.name = node.doc_string = ''
        del node.metadata_props[:]
        for side in (node.input, node.output):
            side[:] = [short(name) for name in side]
        for attribute in node.attribute:
            if attribute.HasField('g'):
                shorten_graph(attribute.g, names, kept)
    del graph.value_info[:]


def save(folder, **arrays):
    np.savez_compressed(folder / 'expected.npz', **arrays)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f'{folder.name}: {len(arrays["scores"])} detections, {size / 1024:.0f} KiB')
