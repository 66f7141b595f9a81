"""Publishes pictures or a video as a camera would: stamped, at a steady rate, in any encoding."""

from __future__ import annotations

import argparse
import array
import contextlib
import json
import sys
import time
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import TextIO

import cv2
import numpy as np
import numpy.typing as npt
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.qos import ReliabilityPolicy
from rclpy.utilities import remove_ros_args
from sensor_msgs.msg import CompressedImage
from sensor_msgs.msg import Image

from trt_perception.errors import ConfigError
from trt_perception.images.encode import encode_bgr
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.images.image_source import ImageSource
from trt_perception.ros.log import log_text
from trt_perception.ros.process import run_node
from trt_perception.ros.process import wrong_usage

__all__ = ['main']

_COMPRESSED = ('jpeg', 'png')

_EXAMPLES = """examples:
  replay_images ~/pictures                                   a folder, 10 pictures a second, once
  replay_images drive.mp4 --rate 30 --loop                   a video as a 30 Hz camera
  replay_images '~/pictures/*.png' --encoding nv12           as a camera that sends YUV
  replay_images ~/pictures --reliability best_effort         with the QoS of most camera drivers
  replay_images ~/pictures --ros-args -r image:=/front/image_raw

exit codes: 0 all sent or interrupted, 1 a picture could not be read (the others are sent),
            2 wrong usage
"""


def main(args: list[str] | None = None) -> int:
    """Publish until the source ends or a signal comes; return the exit code."""
    command_line = sys.argv if args is None else ['replay_images', *args]
    try:
        own = remove_ros_args(command_line)[1:]
    except Exception as error:  # rclpy has several for arguments and YAML that it cannot read
        return wrong_usage(str(error))
    options = _parser().parse_args(own)
    return run_node(
        lambda: ReplayImages(options),
        ReplayImages.close,
        command_line,
        finished=ReplayImages.finished,
    )


class ReplayImages(Node):
    """A camera made of pictures.

    Args:
        options: what the command line says.

    Raises:
        ConfigError: there are no pictures, or the log cannot be written.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__('replay_images')
        self._options = options
        self._source = ImageSource(options.source, unreadable=self._on_unreadable)
        self._pictures = self._all_pictures()
        self._log = _opened(options.log) if options.log else None
        self.exit_code = 0
        self._done = False
        self._sent = 0
        self._unreadable: set[str] = set()
        self._started = 0.0
        self._last_notice = time.monotonic()
        compressed = options.encoding in _COMPRESSED
        reliability = ReliabilityPolicy[options.reliability.upper()]
        self._publisher = self.create_publisher(
            CompressedImage if compressed else Image,
            self.resolve_topic_name('image') + ('/compressed' if compressed else ''),
            QoSProfile(depth=options.depth, reliability=reliability),
        )
        self.create_timer(1 / options.rate, self._on_timer)

    def finished(self) -> bool:
        """Return whether all pictures were sent."""
        return self._done

    def close(self) -> int:
        """Say what was sent and free everything; return the exit code."""
        if self._sent and self._options.reliability == 'reliable':
            self._publisher.wait_for_all_acked(Duration(seconds=5))
        seconds = time.monotonic() - self._started if self._started else 0.0
        self.get_logger().info(f'sent {self._sent} images in {seconds:.1f} s')
        if self._unreadable:
            self.get_logger().error(f'{len(self._unreadable)} pictures could not be read')
        self._write_log('')
        self.destroy_node()
        return self.exit_code

    def _all_pictures(self) -> Iterator[tuple[str, npt.NDArray[np.uint8]]]:
        readable = True
        while readable:  # a loop over nothing but broken files would never end
            readable = False
            for picture in self._source:
                readable = self._options.loop
                yield picture

    def _on_unreadable(self, reason: str) -> None:
        self.exit_code = 1
        if reason not in self._unreadable:  # once, however often it comes round
            self._unreadable.add(reason)
            self.get_logger().error(log_text(reason))

    def _on_timer(self) -> None:
        if self._done or not self._subscribers_are_there():
            return
        try:
            self._publish_next()
        except Exception:  # which the executor logs: a camera would go on, a program ends
            self._fail()
            raise

    def _fail(self) -> None:
        self.exit_code = 1
        self._done = True

    def _publish_next(self) -> None:
        try:
            name, bgr = next(self._pictures)
        except StopIteration:
            self._done = True
            return
        except ConfigError as error:
            self.get_logger().error(log_text(error))
            self._fail()
            return
        message = self._message(bgr)
        self._started = self._started or time.monotonic()
        self._publisher.publish(message)
        self._sent += 1
        stamp = message.header.stamp
        self._write_log(
            json.dumps({'name': name, 'stamp_ns': stamp.sec * 10**9 + stamp.nanosec}) + '\n'
        )

    def _write_log(self, line: str) -> None:
        """Write a line of --log; an empty one closes it."""
        if self._log is None:
            return
        try:
            if line:
                self._log.write(line)
            else:
                self._log.close()
        except OSError as error:
            self._fail()
            self._log = None
            place = f'--log {self._options.log}'
            self.get_logger().error(log_text(f'{place}: cannot be written: {error.strerror}'))

    def _subscribers_are_there(self) -> bool:
        wanted = self._options.wait_for_subscribers
        count = self._publisher.get_subscription_count()
        if self._sent or count >= wanted:
            return True
        if time.monotonic() - self._last_notice > 5:
            self._last_notice = time.monotonic()
            topic = self._publisher.topic_name
            self.get_logger().info(
                f'waiting for {wanted} subscribers of {topic} (there are {count})'
            )
        return False

    def _message(self, bgr: npt.NDArray[np.uint8]) -> Any:
        if self._options.encoding in _COMPRESSED:
            suffix = '.jpg' if self._options.encoding == 'jpeg' else '.png'
            message: Any = CompressedImage(format=self._options.encoding)
            message.data = array.array('B', cv2.imencode(suffix, bgr)[1].tobytes())
        else:
            encoding = self._options.encoding
            rows = encode_bgr(bgr, encoding)
            pixel_format = PIXEL_FORMATS[encoding]
            message = Image(encoding=encoding, step=rows.shape[1])
            message.width = rows.shape[1] // pixel_format.bytes_per_pixel
            message.height = rows.shape[0] * 2 // 3 if pixel_format.chroma_rows else rows.shape[0]
            message.data = array.array('B', rows.tobytes())  # bytes would take rclpy's slow path
        message.header.frame_id = self._options.frame_id
        message.header.stamp = self.get_clock().now().to_msg()
        return message


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='replay_images',
        description='Publish pictures or a video on the topic "image", as a camera would.',
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('source', help='folder, glob pattern, picture file or video file')
    parser.add_argument(
        '--rate', type=_rate, default=10.0, metavar='HZ', help='images a second (default 10)'
    )
    parser.add_argument('--loop', action='store_true', help='start again at the end')
    parser.add_argument(
        '--encoding',
        choices=[*PIXEL_FORMATS, *_COMPRESSED],
        default='bgr8',
        metavar='NAME',
        help=f'{", ".join(PIXEL_FORMATS)}; jpeg and png publish image/compressed (default bgr8)',
    )
    parser.add_argument(
        '--reliability',
        choices=['reliable', 'best_effort'],
        default='reliable',
        help='default reliable',
    )
    parser.add_argument('--depth', type=_at_least(1), default=5, help='QoS depth (default 5)')
    parser.add_argument(
        '--frame-id',
        default='camera',
        metavar='ID',
        help='frame_id of the headers (default camera)',
    )
    parser.add_argument(
        '--wait-for-subscribers',
        type=_at_least(0),
        default=0,
        metavar='N',
        help='send nothing before N subscribers are there',
    )
    parser.add_argument(
        '--log', metavar='FILE', help='write name and stamp of each image sent, one JSON line each'
    )
    return parser


def _rate(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0.001 <= float(text) <= 1000:
            return float(text)
    raise argparse.ArgumentTypeError(f'must be a number from 0.001 to 1000 (got {text!r})')


def _at_least(lowest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        with contextlib.suppress(ValueError):
            if lowest <= int(text) <= 10_000:
                return int(text)
        raise argparse.ArgumentTypeError(
            f'must be a whole number from {lowest} to 10000 (got {text!r})'
        )

    return parse


def _opened(path: str) -> TextIO:
    try:
        return open(path, 'w', encoding='utf-8')
    except OSError as error:
        raise ConfigError(f'--log {path}', f'cannot be written: {error.strerror}') from error
