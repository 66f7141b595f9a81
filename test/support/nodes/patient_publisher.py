# SPDX-License-Identifier: Apache-2.0
"""Publish although the middleware refuses messages for a while.

Fast DDS waits at most 100 ms until a reliable publisher can write, and then refuses the message.
A busy machine can keep another thread of the middleware from running for that long.
"""

import time

from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rclpy.publisher import Publisher

from support.programs import DEADLINE_S


def until_accepted(publish):
    """Call `publish` until the middleware accepts the message, which is then sent once."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            return publish()
        except rclpy_implementation.RCLError:  # noqa: PERF203
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


class PatientPublisher(Publisher):
    def publish(self, msg):
        until_accepted(lambda: super(PatientPublisher, self).publish(msg))


class PatientNode(Node):
    """A node whose publishers try again when the middleware refuses a message."""

    def create_publisher(self, *args, publisher_class=PatientPublisher, **options):
        return super().create_publisher(*args, publisher_class=publisher_class, **options)
