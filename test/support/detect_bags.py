# SPDX-License-Identifier: Apache-2.0
"""Write bags of images with rosbags, run detect_bag on them, and read the results with rosbags."""

import sys

import cv2
import numpy as np
from rosbags.rosbag2 import Reader, StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from support.docs_pages import ROOT
from trt_perception.offline.tools import detect_bag

START_NS = 1_700_000_000 * 10**9
IMAGE, COMPRESSED = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'
STORE = get_typestore(Stores.ROS2_JAZZY)
TYPES = STORE.types
#: Images are logged this long after their stamp.
DELAY_NS = 2_000_000


def _register_overlay():
    for path in sorted((ROOT / 'overlay/vision_msgs/msg').glob('*.msg')):
        STORE.register(get_types_from_msg(path.read_text(), f'vision_msgs/msg/{path.stem}'))


_register_overlay()


def run_detect_bag(*arguments):
    """Return the exit code, including argparse's exit codes."""
    try:
        return detect_bag.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


#: Runs detect_bag. After the given number of parts, the run waits until a file exists.
HELD = """
import os, sys, time
from trt_perception import commands
from trt_perception.offline.bags.workers import Finished
from trt_perception.offline.tools import detect_bag

name, count, gate = sys.argv.pop(1), int(sys.argv.pop(1)), sys.argv.pop(1)
run_parts = getattr(detect_bag, name)

def held(*arguments):
    finished, events = 0, run_parts(*arguments)
    try:
        for event in events:
            yield event
            finished += isinstance(event, Finished)
            while finished == count and not os.path.exists(gate):
                time.sleep(0.01)
    finally:
        events.close()

setattr(detect_bag, name, held)
sys.exit(commands.detect_bag())
"""


def held_detect_bag(gate, parts, *arguments, function='run_parts'):
    """Return a command that runs detect_bag, and waits after some parts.

    A test that must act before the run ends does not depend on its own speed then.

    Args:
        gate: path of a file. The run goes on when the file exists.
        parts: the number of finished parts after which the run waits.
        arguments: of detect_bag.
        function: the function of detect_bag that runs the parts.
    """
    return [sys.executable, '-c', HELD, function, *map(str, (parts, gate, *arguments))]


def header(stamp_ns, frame_id='camera'):
    time = TYPES['builtin_interfaces/msg/Time'](sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    return TYPES['std_msgs/msg/Header'](stamp=time, frame_id=frame_id)


def raw_image(bgr, stamp_ns, frame_id='camera', encoding='bgr8'):
    """Return (type, message) of an image: (height, width) or (height, width, 3)."""
    step = bgr.strides[0]
    return IMAGE, TYPES[IMAGE](
        header=header(stamp_ns, frame_id),
        height=bgr.shape[0],
        width=bgr.shape[1],
        encoding=encoding,
        is_bigendian=0,
        step=step,
        data=np.frombuffer(bgr.tobytes(), np.uint8),
    )


def file_image(content, stamp_ns, frame_id='camera'):
    """Return (type, message) of a JPEG or PNG file."""
    data = np.frombuffer(content, np.uint8)
    message = TYPES[COMPRESSED](header=header(stamp_ns, frame_id), format='jpeg', data=data)
    return COMPRESSED, message


def png_image(bgr, stamp_ns, frame_id='camera'):
    return file_image(cv2.imencode('.png', bgr)[1].tobytes(), stamp_ns, frame_id)


def camera_info(stamp_ns, size_wh, focal_length):
    """Return (type, message) of a calibration without distortion."""
    width, height = size_wh
    k = np.array([focal_length, 0, width / 2, 0, focal_length, height / 2, 0, 0, 1.0])
    name = 'sensor_msgs/msg/CameraInfo'
    roi = TYPES['sensor_msgs/msg/RegionOfInterest'](0, 0, 0, 0, False)
    return name, TYPES[name](
        header=header(stamp_ns),
        height=height,
        width=width,
        distortion_model='plumb_bob',
        d=np.zeros(5),
        k=k,
        r=np.eye(3).ravel(),
        p=np.insert(k, [3, 6, 9], 0.0),
        binning_x=0,
        binning_y=0,
        roi=roi,
    )


def write_bag(folder, rows, storage='MCAP'):
    """Write a bag of rosbag2.

    Args:
        rows: (topic, log time in ns, (type, message)); the message may be bytes.
    """
    connections = {}
    with Writer(folder, version=9, storage_plugin=StoragePlugin[storage]) as writer:
        for topic, log_ns, (kind, message) in rows:
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=STORE)
            is_bytes = isinstance(message, bytes)
            data = message if is_bytes else STORE.serialize_cdr(message, kind)
            writer.write(connections[topic], log_ns, data)
    return folder


def camera_rows(topic, pictures, hz=10, start_ns=START_NS, make=raw_image):
    """Return rows of `write_bag` with pictures of one camera at a rate."""
    stamps = [start_ns + number * 10**9 // hz for number in range(len(pictures))]
    return [
        (topic, stamp + DELAY_NS, make(picture, stamp))
        for picture, stamp in zip(pictures, stamps, strict=True)
    ]


def read_rows(folder):
    """Return (topic, log time, message) of a bag, as rosbags reads it."""
    with Reader(folder) as reader:
        return [
            (connection.topic, log_ns, STORE.deserialize_cdr(data, connection.msgtype))
            for connection, log_ns, data in reader.messages()
        ]


def messages_of(folder, topic):
    """Return the messages of one topic, sorted by log time."""
    return [message for name, _, message in read_rows(folder) if name == topic]


def stamp_ns_of(message):
    stamp = message.header.stamp
    return stamp.sec * 10**9 + stamp.nanosec


def boxes_of(message):
    """Return (class, score, id, centre x, centre y, width, height) of each detection."""
    rows = []
    for each in message.detections:
        (result,) = each.results
        centre = each.bbox.center.position
        rows.append(
            (
                result.hypothesis.class_id,
                result.hypothesis.score,
                each.id,
                centre.x,
                centre.y,
                each.bbox.size_x,
                each.bbox.size_y,
            )
        )
    return rows


def files_of(folder):
    """Return the content of all files of a bag by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
