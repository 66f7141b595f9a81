# SPDX-License-Identifier: Apache-2.0
"""Provide a camera and a fault handler that call functions of the test."""

from trt_perception.scheduling.camera import Camera


def camera_of(name, read, publish, refused, thresholds, *, pipeline=0, **settings):
    return Camera(
        name,
        read,
        publish,
        lambda _, error: refused(error),
        thresholds,
        pipeline_index=pipeline,
        **settings,
    )


class FaultCallback:
    """Reports each fault to a function of the test.

    Args:
        on_fault: called with the exception that ended the worker.
    """

    def __init__(self, on_fault):
        self.on_fault = on_fault
