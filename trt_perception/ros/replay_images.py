# SPDX-License-Identifier: Apache-2.0
"""Publishes images, a video or a bag like a camera: at a constant rate, in any encoding."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import TextIO

import cv2
import numpy as np
import numpy.typing as npt
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image
from std_msgs.msg import Header

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import counted
from trt_perception.images.bag_options import add_bag_options, read_bag_options
from trt_perception.images.encode import encode_bgr
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.images.image_source import ImageSource
from trt_perception.process.interruption import interrupted_for_s
from trt_perception.process.option_parser import OptionParser
from trt_perception.ros.runtime.arguments import number_between
from trt_perception.ros.runtime.command_line import parse_own_arguments
from trt_perception.ros.runtime.log import log_text
from trt_perception.ros.runtime.process import run_node
from trt_perception.ros.topics import requested_image_topic
from trt_perception.ros.wire.unlocked_publish import publish_unlocked
from trt_perception.wire.image_message import (
    compressed_message_start,
    image_message_start,
    serialize_with_room,
)

_COMPRESSED = ('jpeg', 'png')
_ARRIVAL_LIMIT_S = 5.0
_INTERRUPTED_ARRIVAL_LIMIT_S = 1.0

_HELP_END = """examples:
  replay_images ~/pictures                                   a folder, 10 images a second, once
  replay_images drive.mp4 --rate 30 --loop                   a video as a 30 Hz camera
  replay_images '~/pictures/*.png' --encoding nv12           as a camera that sends YUV
  replay_images drive_bag --topic /front/image_raw           the images of a bag, at --rate
  replay_images ~/pictures --reliability best_effort         with the QoS of most camera drivers
  replay_images ~/pictures --ros-args -r image:=/front/image_raw

exit codes: 0 all sent or interrupted, 1 an image could not be read (the others are sent),
            2 wrong usage, 128 + N ended by signal N, but a step did not return
"""


def main(args: list[str] | None = None) -> int:
    """Publish until the source or a signal ends the program. Return the exit code."""
    command_line = sys.argv if args is None else ['replay_images', *args]
    options = parse_own_arguments(_parser(), command_line)
    return run_node(
        lambda: ReplayImages(options),
        ReplayImages.close,
        command_line,
        finished=lambda node: node.done,
    )


class ReplayImages(Node):
    """A node that publishes images like a camera.

    Raises:
        ConfigError: the source has no images, or the log cannot be written.

    Attributes:
        done: whether all images were sent, or an error ended the sending.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__('replay_images')
        self._options = options
        self._source = ImageSource(
            options.source, self._on_unreadable, read_bag_options(options, [options.source])
        )
        self._images = self._all_images()
        self._memory: npt.NDArray[np.uint8] | None = None
        self._log: TextIO | None = None
        if options.log:
            with self._log_errors():
                # Line buffering reports a write error at once, not when the file is closed.
                self._log = open(options.log, 'w', encoding='utf-8', buffering=1)  # noqa: SIM115
        self._exit_code = 0
        self.done = False
        self._sent = 0
        self._unreadable: set[str] = set()
        self._started = 0.0
        compressed = options.encoding in _COMPRESSED
        reliability = ReliabilityPolicy[options.reliability.upper()]
        self._publisher = self.create_publisher(
            CompressedImage if compressed else Image,
            requested_image_topic(self, '', 'compressed' if compressed else 'raw'),
            QoSProfile(depth=options.depth, reliability=reliability),
        )
        self.get_logger().info(f'publishing on {self._publisher.topic_name}')
        self.create_timer(1 / options.rate, self._on_timer)

    def close(self) -> int:
        """Log the number of images sent, and free everything. Return the exit code."""
        if self._sent and self._options.reliability == 'reliable':
            self._wait_for_acknowledgements()
        seconds = time.monotonic() - self._started if self._started else 0.0
        self.get_logger().info(f'sent {self._sent} images in {seconds:.1f} s')
        if self._unreadable:
            # An error may be a damaged range of a bag, with any number of images.
            errors = counted(len(self._unreadable), 'error')
            self.get_logger().error(f'images could not be read: {errors} above')
        if self._log is not None:
            with contextlib.suppress(OSError):  # the write has already reported the error
                self._log.close()
        self.destroy_node()
        return self._exit_code

    def _wait_for_acknowledgements(self) -> None:
        """Wait until all images have arrived, after a signal only for a short time."""
        end_s = time.monotonic() + _ARRIVAL_LIMIT_S
        while time.monotonic() < end_s and interrupted_for_s() < _INTERRUPTED_ARRIVAL_LIMIT_S:
            if self._publisher.wait_for_all_acked(Duration(seconds=0.1)):
                return

    def _all_images(self) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
        readable = True
        while readable:  # ends a loop in which no file is readable
            readable = False
            for image in self._source:
                readable = self._options.loop
                yield image

    def _on_unreadable(self, reason: str) -> None:
        self._exit_code = 1
        if reason not in self._unreadable:  # --loop reads the same file again
            self._unreadable.add(reason)
            self.get_logger().error(log_text(reason))

    def _on_timer(self) -> None:
        wanted, count = (
            self._options.wait_for_subscribers,
            self._publisher.get_subscription_count(),
        )
        if count < wanted and not self._sent:
            self.get_logger().info(
                f'waiting for {wanted} subscribers of {self._publisher.topic_name} '
                f'(found {count})',
                throttle_duration_sec=5.0,
            )
            return
        try:
            self._publish_next()
        except StopIteration:
            self.done = True
        except Exception as error:
            self._exit_code = 1
            self.done = True
            if not isinstance(error, ConfigError):
                raise  # the executor logs the error
            self.get_logger().error(log_text(error))

    def _publish_next(self) -> None:
        name, bgr = next(self._images)
        stamp = self.get_clock().now().to_msg()
        start, encoded = self._encoded(bgr, Header(stamp=stamp, frame_id=self._options.frame_id))
        # Publish serialized bytes: rclpy would convert a message to Python objects first.
        self._memory, data = serialize_with_room(start, self._memory)
        data[:] = encoded
        self._started = self._started or time.monotonic()
        publish_unlocked(self._publisher, self._memory)
        self._sent += 1
        if self._log is not None:
            entry = {'name': name, 'stamp_ns': stamp.sec * 10**9 + stamp.nanosec}
            with self._log_errors():
                self._log.write(json.dumps(entry) + '\n')

    @contextlib.contextmanager
    def _log_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f'--log {self._options.log}', f'cannot be written: {error.strerror}'
            ) from error

    def _encoded(
        self, bgr: npt.NDArray[np.uint8], header: Header
    ) -> tuple[bytes, npt.NDArray[np.uint8]]:
        """Return the start of an image's message, and its data, uint8, one-dimensional."""
        encoding = self._options.encoding
        if encoding in _COMPRESSED:
            file = cv2.imencode('.jpg' if encoding == 'jpeg' else '.png', bgr)[1].reshape(-1)
            return compressed_message_start(header, encoding, file.size), file
        rows, pixel_format = encode_bgr(bgr, encoding), PIXEL_FORMATS[encoding]
        pixel_bytes, count = pixel_format.bytes_per_pixel, rows.shape[0]
        size_wh = rows.shape[1] // pixel_bytes, pixel_format.image_height(count)
        return image_message_start(header, size_wh, encoding, pixel_bytes, count), rows.reshape(-1)


def _parser() -> OptionParser:
    what = 'Publishes images, a video or a bag on the topic "image", as a camera would.'
    parser = OptionParser('replay_images', what, _HELP_END)
    parser.add_argument('source', help='folder, glob pattern, image file, video file or bag')
    add_bag_options(parser)
    parser.add_argument(
        '--rate',
        type=number_between(0.001, 1000.0),
        default=10.0,
        metavar='HZ',
        help='images a second (default: 10)',
    )
    parser.add_argument('--loop', action='store_true', help='start again after the last image')
    parser.add_argument(
        '--encoding',
        choices=[*PIXEL_FORMATS, *_COMPRESSED],
        default='bgr8',
        metavar='NAME',
        help=f'{", ".join(PIXEL_FORMATS)}; jpeg and png publish image/compressed (default: bgr8)',
    )
    parser.add_argument(
        '--reliability',
        choices=['reliable', 'best_effort'],
        default='reliable',
        help='QoS reliability (default: reliable)',
    )
    parser.add_argument(
        '--depth', type=number_between(1, 10_000), default=5, help='QoS depth (default: 5)'
    )
    parser.add_argument(
        '--frame-id',
        default='camera',
        metavar='ID',
        help='frame_id of the headers (default: camera)',
    )
    parser.add_argument(
        '--wait-for-subscribers',
        type=number_between(0, 10_000),
        default=0,
        metavar='N',
        help='wait for N subscribers before the first image',
    )
    parser.add_argument(
        '--log', metavar='FILE', help='write a JSON line with name and stamp of each sent image'
    )
    return parser
