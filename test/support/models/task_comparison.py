# SPDX-License-Identifier: Apache-2.0
"""Compare a task model without metadata with the model that has them."""

import numpy as np
import onnx


def write_without_metadata(path, name='stripped.onnx'):
    """Write the model without its metadata, like a stripped file or an engine of trtexec.

    Args:
        path: the model.
        name: name of the new file, in the same folder.

    Returns:
        Path of the new file.
    """
    model = onnx.load(path)
    model.metadata_props.clear()
    onnx.save(model, path.with_name(name))
    return path.with_name(name)


def assert_equal_detections(found, expected):
    """Check that two results have the same objects, in the same order and with equal values."""
    assert len(found) == len(expected) > 0
    for name in ('xyxy', 'scores', 'class_ids', 'keypoints', 'oriented'):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    if expected.masks is not None:
        np.testing.assert_array_equal(found.masks.whole(), expected.masks.whole())
