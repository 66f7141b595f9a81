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
