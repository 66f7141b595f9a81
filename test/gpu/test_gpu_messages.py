# SPDX-License-Identifier: Apache-2.0
"""Serialised images are uploaded directly from the message buffer, on a real GPU."""

import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image

from support.gpu.gpu_support import needs_tensorrt
from support.gpu.patch_pipeline import expected_tensor, noise_frame, tensor_from_pipeline
from support.oracles.reference_images import ENCODINGS
from trt_perception.ros.camera.messages import frame_from_image
from trt_perception.ros.intake.buffers import MessageBuffers
from trt_perception.ros.intake.intake import SerializedMessage

pytest_plugins = ['support.gpu.patch_pipeline_fixtures']
pytestmark = [needs_tensorrt, pytest.mark.ros]


@pytest.mark.parametrize('integrated', [False, True])
def test_serialised_image_is_uploaded_from_the_message_buffer(open_patch_pipeline, integrated):
    pipeline = open_patch_pipeline(integrated=integrated)
    buffers = MessageBuffers(pipeline.allocate)
    for seed, encoding in enumerate(sorted({*ENCODINGS.values()})):
        expected = noise_frame(seed, encoding)
        message = Image(
            width=expected.width, height=expected.height, step=expected.step, encoding=encoding
        )
        message.header.frame_id = 'f' * seed
        message.data = expected.data.tobytes()
        content = np.frombuffer(serialize_message(message), np.uint8)
        lease = buffers.lend(content.size)
        data = lease.array()[: content.size]
        data[:] = content
        frame = frame_from_image(SerializedMessage(data, content.size, lease))
        assert frame.memory is lease.memory
        np.testing.assert_array_equal(
            tensor_from_pipeline(pipeline, frame), expected_tensor(pipeline, expected)
        )
        assert pipeline.slots[0].places[0]._staging_buffer is None
    del lease, data, frame
    buffers.close()
    assert buffers.count == 0
