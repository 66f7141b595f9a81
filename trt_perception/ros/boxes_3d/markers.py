# SPDX-License-Identifier: Apache-2.0
"""The boxes as markers, which RViz and Foxglove draw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Point, Pose, Quaternion, Vector3
from rclpy.node import Node
from std_msgs.msg import ColorRGBA, Header
from visualization_msgs.msg import Marker, MarkerArray

from trt_perception.images.drawing import class_color, track_color
from trt_perception.model.tasks.task import LABEL_INFO
from trt_perception.ros.boxes_3d.inputs import DETECTIONS
from trt_perception.ros.boxes_3d.messages import LocatedObject
from trt_perception.ros.camera.messages import header_message
from trt_perception.wire.cdr import HeaderFields
from trt_perception.wire.detections import FoundObject

#: Namespaces of the markers, which viewers can show and hide.
BOXES: Final = 'boxes'
LABELS: Final = 'labels'
_BOX_ALPHA: Final = 0.4
# Markers of the last message vanish after this time.
_LIFETIME: Final = Duration(sec=2)
# Height of a label for each metre of its distance: about 3 % of the height of an image.
_LABEL_HEIGHT: Final = 0.03
# Ids of tracks have at most so many digits.
_MAX_ID_DIGITS: Final = 18


def label_info_topic(node: Node) -> str:
    """Return the topic of the class names, which is next to the detections unless remapped."""
    resolved = node.resolve_topic_name(LABEL_INFO.name)
    if resolved != node.resolve_topic_name(LABEL_INFO.name, only_expand=True):
        return LABEL_INFO.name  # ROS remaps it
    return f'{node.resolve_topic_name(DETECTIONS).rpartition("/")[0]}/{LABEL_INFO.name}'


def markers_message(
    header: Header | HeaderFields, objects: Sequence[LocatedObject], class_ids: Mapping[str, int]
) -> MarkerArray:
    """Return a box and a label for each object, after a marker that deletes all earlier markers.

    The label has id, class, score and the distance of the box's centre in metres. It stands above
    the box, against the y axis of the optical frame. The colours are those of the debug image. An
    object is light grey if its class is not in `class_ids`, or if only other objects have tracks.

    Args:
        header: header of the image: its stamp and optical frame.
        class_ids: class ids by name.
    """
    header = header_message(header)
    tracks = [_track_id(found) for found, _ in objects]
    boxes, labels = [], []
    for index, ((found, box), track) in enumerate(zip(objects, tracks, strict=True)):
        name, score = max(found.hypotheses, key=lambda each: each[1], default=('', 0.0))
        if any(tracks) or name not in class_ids:
            color = track_color(track)
        else:
            color = class_color(class_ids[name])
        x, y, z = box.center
        half = box.theta / 2
        turn = Quaternion(z=math.sin(half), w=math.cos(half))
        width, height, depth = box.size
        distance_m = math.hypot(x, y, z)
        label_height = _LABEL_HEIGHT * distance_m
        common = {'header': header, 'id': index, 'lifetime': _LIFETIME}
        boxes.append(
            Marker(
                ns=BOXES,
                type=Marker.CUBE,
                pose=Pose(position=Point(x=x, y=y, z=z), orientation=turn),
                scale=Vector3(x=width, y=height, z=depth),
                color=_color_message(color, _BOX_ALPHA),
                **common,
            )
        )
        number = f'#{found.id} ' if found.id else ''
        rise = (abs(width * math.sin(box.theta)) + abs(height * math.cos(box.theta))) / 2
        above = Point(x=x, y=y - rise - label_height, z=z)
        labels.append(
            Marker(
                ns=LABELS,
                type=Marker.TEXT_VIEW_FACING,
                pose=Pose(position=above),
                scale=Vector3(z=label_height),
                color=_color_message(color, 1.0),
                text=f'{number}{name} {score:.2f}, {distance_m:.2f} m',
                **common,
            )
        )
    return MarkerArray(markers=[Marker(header=header, action=Marker.DELETEALL), *boxes, *labels])


def _track_id(found: FoundObject) -> int:
    """Return the number of an object's track; 0 without a track."""
    is_number = found.id.isascii() and found.id.isdecimal() and len(found.id) <= _MAX_ID_DIGITS
    return int(found.id) if is_number else 0


def _color_message(bgr: tuple[int, int, int], alpha: float) -> ColorRGBA:
    blue, green, red = (value / 255 for value in bgr)
    return ColorRGBA(r=red, g=green, b=blue, a=alpha)
