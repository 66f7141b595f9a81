# SPDX-License-Identifier: Apache-2.0
"""Write a model whose output depends on the image, to test invalid outputs."""

#: Score and class of the box. With three class names, the last class has no name.
LABELS = ((0.9, 0), (0.9, 1), (0.9, 2), (0.9, 3))


def write_label_model(path, labels=LABELS):
    """Write a model that finds one box. The brightness of the image chooses score and class.

    A black image gets the first of ``labels``, a white image the last. The decoder is end_to_end,
    and the image has values from 0 to 1. The function needs the onnx package.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node('ReduceMean', ['images', 'axes'], ['mean'], keepdims=0),
            helper.make_node('Mul', ['mean', 'last'], ['level']),
            helper.make_node('Round', ['level'], ['rounded']),
            helper.make_node('Cast', ['rounded'], ['index'], to=TensorProto.INT64),
            helper.make_node('Gather', ['labels', 'index'], ['label']),
            helper.make_node('Reshape', ['label', 'row'], ['values']),
            helper.make_node('Concat', ['box', 'values'], ['output'], axis=2),
        ],
        'labels',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, (1, 3, 48, 64))],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, (1, 1, 6))],
        [
            numpy_helper.from_array(array, name)
            for name, array in (
                ('axes', np.array([1, 2, 3], np.int64)),
                ('last', np.array([len(labels) - 1], np.float32)),
                ('labels', np.array(labels, np.float32)),
                ('row', np.array([1, 1, 2], np.int64)),
                ('box', np.array([[[10, 10, 30, 30]]], np.float32)),
            )
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


#: Outputs of `write_shape_model` for an image: shape and values, without the batch axis.
_USUAL_SHAPES = {'num_dets': (1,), 'det_boxes': (5, 4), 'det_scores': (5,), 'det_classes': (5,)}
_VALUES = {'num_dets': 5, 'det_boxes': 0, 'det_scores': 0.9, 'det_classes': 1}


def write_shape_model(path, changes, batch=1):
    """Write a model with open dimensions, whose shapes depend on the brightest pixel of a batch.

    The decoder is efficient_nms, and the image has values from 0 to 1. The function needs the onnx
    package.

    Args:
        path: path of the file.
        changes: for each level of brightness, maps the name of an output to the change of each
            axis. A black batch gets the first, a white batch the last.
        batch: size of a batch, or a name for an open size.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    constants = {
        'last': np.array([len(changes) - 1], np.float32),
        'first': np.array([0], np.int64),
        'second': np.array([1], np.int64),
    }
    nodes = [
        helper.make_node('ReduceMax', ['images'], ['brightest'], keepdims=0),
        helper.make_node('Mul', ['brightest', 'last'], ['level']),
        helper.make_node('Round', ['level'], ['rounded']),
        helper.make_node('Cast', ['rounded'], ['index'], to=TensorProto.INT64),
        helper.make_node('Shape', ['images'], ['sides']),
        helper.make_node('Slice', ['sides', 'first', 'second'], ['batch']),
    ]
    infos = []
    for name, shape in _USUAL_SHAPES.items():
        is_float = name in ('det_boxes', 'det_scores')
        kind = TensorProto.FLOAT if is_float else TensorProto.INT32
        values = np.full((16, *(4 * side for side in shape)), _VALUES[name])
        values = values.astype(np.float32 if is_float else np.int32)
        if name == 'det_boxes':
            values[:, :, 2:] = 30
        axes = np.arange(len(shape) + 1)
        none = (0,) * len(axes)
        constants |= {
            f'{name} all': values,
            f'{name} changes': np.array([each.get(name, none) for each in changes], np.int64),
            f'{name} sides': np.array(shape, np.int64),
            f'{name} starts': np.zeros(len(axes), np.int64),
        }
        nodes += [
            helper.make_node('Concat', ['batch', f'{name} sides'], [f'{name} usual'], axis=0),
            helper.make_node('Gather', [f'{name} changes', 'index'], [f'{name} one']),
            helper.make_node('Reshape', [f'{name} one', f'{name} rank'], [f'{name} change']),
            helper.make_node('Add', [f'{name} usual', f'{name} change'], [f'{name} ends']),
            helper.make_node('Slice', [f'{name} all', f'{name} starts', f'{name} ends'], [name]),
        ]
        constants[f'{name} rank'] = np.array([len(axes)], np.int64)
        open_axes = [f'{name} axis {axis}' for axis in axes]
        infos.append(helper.make_tensor_value_info(name, kind, open_axes))
    graph = helper.make_graph(
        nodes,
        'shapes',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, (batch, 3, 48, 64))],
        infos,
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path
