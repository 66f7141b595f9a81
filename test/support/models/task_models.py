# SPDX-License-Identifier: Apache-2.0
"""Make the digits model with more task outputs, which are computed from the box, not learned.

Oriented boxes have the angle 0, keypoints are the corners of the box, and masks fill the box. So
the expected figures follow from the truth alone.
"""

import numpy as np

from support.models.digits import DIGITS

CORNERS = ('top_left', 'top_right', 'bottom_right', 'bottom_left')


def write_task_model(path, task):
    """Write the model with Ultralytics' metadata, without a manifest."""
    import onnx
    from onnx import helper, numpy_helper

    model = onnx.load(DIGITS)
    graph = model.graph
    found = graph.output[0]
    anchors = found.type.tensor_type.shape.dim[2].dim_value
    for node in graph.node:
        for index, name in enumerate(node.output):
            if name == found.name:
                node.output[index] = 'detections'

    def constant(name, values, kind=np.float32):
        graph.initializer.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    carried, rows = 'carried', 1
    if task == 'pose':
        rows = 2 * len(CORNERS)
        shares = [(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)]
        both = [row for x, y in shares for row in ((1, 0, x, 0), (0, 1, 0, y))]
        ends = [constant(f'end{value}', [value], np.int64) for value in (0, 4, 1)]
        graph.node.append(helper.make_node('Slice', ['detections', *ends], ['boxes']))
        constant('shares', [both])
        graph.node.append(helper.make_node('MatMul', ['shares', 'boxes'], [carried]))
    else:
        constant(carried, np.full((1, 1, anchors), 1.0 if task == 'segment' else 0.0))
    graph.node.append(helper.make_node('Concat', ['detections', carried], [found.name], axis=1))
    found.type.tensor_type.shape.dim[1].dim_value += rows
    said = {entry.key: entry.value for entry in model.metadata_props}
    said |= {'task': task, 'author': 'Ultralytics'}
    if task == 'segment':
        constant('ones', np.ones((1, 1, 120, 160)))
        graph.node.append(helper.make_node('Identity', ['ones'], ['prototypes']))
        graph.output.append(
            helper.make_tensor_value_info('prototypes', onnx.TensorProto.FLOAT, (1, 1, 120, 160))
        )
    if task == 'pose':
        said |= {
            'kpt_shape': str([len(CORNERS), 2]),
            'kpt_names': str({digit: list(CORNERS) for digit in range(10)}),
        }
    helper.set_model_props(model, said)
    onnx.save(model, path)
    return path
