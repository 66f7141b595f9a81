# SPDX-License-Identifier: Apache-2.0
"""Print how many objects of each class a bag of results has in each minute: an example of rosbags.

    python3 -m pip install rosbags
    python3 examples/bag_report/bag_report.py drive_found

It needs no ROS 2 and not trt_perception: the bag has the definitions of its messages. Minutes are
in UTC, by the log time of the image.
"""

import signal
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from rosbags.highlevel import AnyReader, AnyReaderError

DETECTIONS = 'vision_msgs/msg/Detection2DArray'
ROW = '{:<16}  {:<24}  {:<20}  {:>10}'


def count_detections(bag):
    """Return the number of detections by (minute since 1970, topic, class)."""
    counts = Counter()
    with AnyReader([bag]) as reader:
        connections = [each for each in reader.connections if each.msgtype == DETECTIONS]
        if not connections:
            topics = ', '.join(sorted(reader.topics)) or 'none'
            sys.exit(f'{bag}: expected a topic of type {DETECTIONS} (topics of the bag: {topics})')
        for connection, log_ns, data in reader.messages(connections):
            message = reader.deserialize(data, connection.msgtype)
            minute = log_ns // (60 * 10**9)
            for detection in message.detections:
                name = detection.results[0].hypothesis.class_id
                counts[minute, connection.topic, name] += 1
    return counts


if __name__ == '__main__':
    # End without an error if the reader of the output ends, as in `... | head`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument('bag', type=Path, help='the folder that detect_bag wrote')
    try:
        counted = count_detections(parser.parse_args().bag)
    except (AnyReaderError, OSError) as error:
        sys.exit(str(error))
    print(ROW.format('minute', 'topic', 'class', 'detections'))
    for (minute, topic, name), count in sorted(counted.items()):
        start = datetime.fromtimestamp(60 * minute, timezone.utc)
        print(ROW.format(f'{start:%Y-%m-%d %H:%M}', topic, name, count))
