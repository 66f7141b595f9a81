# SPDX-License-Identifier: Apache-2.0
"""Publish images as a camera whose middleware is Eclipse Cyclone DDS.

usage: cyclone_camera.py TOPIC raw|jpeg reliable|best_effort WIDTHxHEIGHT COUNT COLOR...

Waits for a subscription, then publishes COUNT images in turn of each COLOR (RRGGBB), with the
stamps 1 s, 2 s and so on. Prints the number of each image. Repeats all images
until a signal ends the program, because a best-effort subscription may lose some.

The types below are the IDL of sensor_msgs, as rmw implementations map messages to DDS. The program
uses no part of ROS 2.
"""

import os
import sys
import time
from dataclasses import dataclass

import cv2
import numpy as np
from cyclonedds.core import Policy, Qos
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import int32, sequence, uint8, uint32
from cyclonedds.pub import DataWriter
from cyclonedds.topic import Topic
from cyclonedds.util import duration

PERIOD_S = 0.05
# ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST, as rmw_cyclonedds_cpp sets it.
LOCALHOST = """<CycloneDDS><Domain>
<General><Interfaces><NetworkInterface address="127.0.0.1"/></Interfaces>
<AllowMulticast>false</AllowMulticast></General>
<Discovery><ParticipantIndex>auto</ParticipantIndex>
<MaxAutoParticipantIndex>32</MaxAutoParticipantIndex>
<Peers><Peer address="127.0.0.1"/></Peers></Discovery>
</Domain></CycloneDDS>"""


@dataclass
class Time(IdlStruct, typename='builtin_interfaces.msg.dds_.Time_'):
    sec: int32
    nanosec: uint32


@dataclass
class Header(IdlStruct, typename='std_msgs.msg.dds_.Header_'):
    stamp: Time
    frame_id: str


@dataclass
class Image(IdlStruct, typename='sensor_msgs.msg.dds_.Image_'):
    header: Header
    height: uint32
    width: uint32
    encoding: str
    is_bigendian: uint8
    step: uint32
    data: sequence[uint8]


@dataclass
class CompressedImage(IdlStruct, typename='sensor_msgs.msg.dds_.CompressedImage_'):
    header: Header
    format: str
    data: sequence[uint8]


def message_of(kind, size_wh, color, number):
    """Return an image of one colour, RRGGBB, with a stamp of ``number`` seconds."""
    header = Header(Time(number, 0), 'cyclone')
    width, height = size_wh
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[...] = list(bytes.fromhex(color))[::-1]
    if kind == 'raw':
        return Image(header, height, width, 'bgr8', 0, 3 * width, pixels.tobytes())
    encoded = cv2.imencode('.jpg', pixels, [cv2.IMWRITE_JPEG_QUALITY, 100])[1]
    return CompressedImage(header, 'bgr8; jpeg compressed bgr8', encoded.tobytes())


def main():
    topic, kind, reliability, size, count, *colors = sys.argv[1:]
    size_wh = tuple(map(int, size.split('x')))
    number = int(os.environ.get('ROS_DOMAIN_ID', 0))
    only_here = os.environ.get('ROS_AUTOMATIC_DISCOVERY_RANGE') == 'LOCALHOST'
    domain = Domain(number, LOCALHOST) if only_here else None  # noqa: F841 - keeps the settings
    participant = DomainParticipant(number)
    if reliability == 'reliable':
        # A write waits for acknowledgements, so that no image is replaced before it arrives.
        delivery = Policy.Reliability.Reliable(duration(seconds=60)), Policy.History.KeepAll
    else:
        delivery = Policy.Reliability.BestEffort, Policy.History.KeepLast(10)
    qos = Qos(
        *delivery,
        Policy.Durability.Volatile,
        Policy.DataRepresentation(use_cdrv0_representation=True),
    )
    message_type = Image if kind == 'raw' else CompressedImage
    writer = DataWriter(participant, Topic(participant, f'rt{topic}', message_type), qos=qos)
    while not writer.get_matched_subscriptions():
        time.sleep(0.01)
    while True:
        for index in range(int(count)):
            writer.write(message_of(kind, size_wh, colors[index % len(colors)], index + 1))
            print(f'sent {index + 1}', flush=True)
            time.sleep(PERIOD_S)


if __name__ == '__main__':
    main()
