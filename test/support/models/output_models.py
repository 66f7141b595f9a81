"""Write a model whose class depends on the image, to test detections of a class without a name."""


def write_label_model(path):
    """Write a model that finds one box. The class is 3 times the mean of the image, rounded.

    The decoder is end_to_end, and the image has values from 0 to 1. With three class names, only a
    bright image has a class without a name. The function needs the onnx package.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node('ReduceMean', ['images', 'axes'], ['mean'], keepdims=0),
            helper.make_node('Mul', ['mean', 'three'], ['level']),
            helper.make_node('Round', ['level'], ['rounded']),
            helper.make_node('Reshape', ['rounded', 'cell'], ['label']),
            helper.make_node('Concat', ['box', 'label'], ['output'], axis=2),
        ],
        'labels',
        [helper.make_tensor_value_info('images', TensorProto.FLOAT, (1, 3, 48, 64))],
        [helper.make_tensor_value_info('output', TensorProto.FLOAT, (1, 1, 6))],
        [
            numpy_helper.from_array(array, name)
            for name, array in (
                ('axes', np.array([1, 2, 3], np.int64)),
                ('three', np.array([3], np.float32)),
                ('cell', np.array([1, 1, 1], np.int64)),
                ('box', np.array([[[10, 10, 30, 30, 0.9]]], np.float32)),
            )
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path
