# SPDX-License-Identifier: Apache-2.0
"""Edit the graph of a model of batch 1, so that the model accepts several images at once."""

import json

from support.models.digits import DIGITS
from trt_perception.model.files.model_file import read_model_file


def with_open_batch(model):
    """Open the batch: change inputs, outputs, and reshapes with the constant 1."""
    import onnx
    from onnx import numpy_helper

    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = 'n'
    shapes = {node.input[1] for node in model.graph.node if node.op_type == 'Reshape'}
    tensors = [(t.name, t) for t in model.graph.initializer]
    tensors += [
        (n.output[0], n.attribute[0].t) for n in model.graph.node if n.op_type == 'Constant'
    ]
    for name, tensor in tensors:
        if name in shapes:
            sides = numpy_helper.to_array(tensor).copy()
            sides[0] = 0 if sides[0] == 1 else sides[0]
            tensor.CopyFrom(numpy_helper.from_array(sides, tensor.name))
    onnx.checker.check_model(model, full_check=True)
    return model


def with_batch(model, batch):
    """Return the model with the fixed batch size ``batch``."""
    model = with_open_batch(model)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
        value.type.tensor_type.shape.dim[0].dim_value = batch
    return model


def write_digits_twin(path, batch):
    """Write the digits model and manifest for ``batch`` images; 0 opens the batch."""
    import onnx

    model = onnx.load_model(DIGITS)
    onnx.save_model(with_batch(model, batch) if batch else with_open_batch(model), path)
    manifest = json.loads(DIGITS.with_name('digits.onnx.json').read_text())
    file = read_model_file(path)
    manifest['onnx'] = {'file': path.name, 'sha256': file.sha256, 'size_bytes': len(file.content)}
    for tensor in (*manifest['inputs'], *manifest['outputs']):
        tensor['shape'][0] = batch or -1
    path.with_name(f'{path.name}.json').write_text(json.dumps(manifest))
    return path
