# SPDX-License-Identifier: Apache-2.0
"""Check in a soak that an invalid output of the model drops its own image only.

Each camera sends images at random. The brightness of an image chooses the model's output.
"""

import contextlib
import math
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from support.models.output_models import write_label_model
from support.models.tiny_model import CLASS_NAMES
from support.nodes.camera_of_many import NAMES, CameraOfMany
from support.nodes.graph import Detector, found_in, picture_of
from support.soak.soaks import Figure, balanced
from support.waiting import WaitTimeoutError

#: Score and class that the model outputs for each brightness. The first row must be valid, because
#: CameraOfMany.connect sends black images.
LABELS = ((0.9, 0), (0.9, 1), (0.9, 2), (0.9, 3), (1.3, 0), (math.nan, 0))
VALID = range(3)
BRIGHTNESS_STEP = 255 // (len(LABELS) - 1)
PARAMETERS = {
    'cameras': list(NAMES),
    'autostart': True,
    'model.decoder': 'end_to_end',
    'model.class_names': list(CLASS_NAMES),
    'model.resize': 'letterbox',
    'model.color_order': 'rgb',
    'model.scale': 1 / 255,
}


def bad_outputs(client, *, seconds=60.0, seed=0, intake='auto'):
    """Publish images of three cameras. A third of the images give an invalid output."""
    rng = random.Random(seed)
    sent = {name: Counter() for name in NAMES}
    wrong = unbalanced = 0
    with tempfile.TemporaryDirectory() as folder:
        model = write_label_model(Path(folder, 'labels.onnx'), LABELS)
        parameters = {**PARAMETERS, 'engine_path': str(model), 'image_intake': intake}
        detector = Detector(client, parameters, camera_qos=None)
        cameras = [CameraOfMany(detector, name) for name in NAMES]
        try:
            for camera in cameras:
                camera.connect()
            before = {camera.name: camera.counts()['published'] for camera in cameras}
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                wrong += publish_of_each(client, cameras, rng, sent)
                unbalanced += sum(not balanced(values) for values in detector.take_statuses())
            counts = {camera.name: camera.counts() for camera in cameras}
            alive = detector.program.alive and 'Traceback' not in detector.program.output
        finally:
            for camera in cameras:
                camera.destroy_publisher()
            detector.close()
    print(sent, counts)
    valid = {name: sum(sent[name][label] for label in VALID) for name in NAMES}
    bad = {name: counts[name]['dropped'].get('bad_output', 0) for name in NAMES}
    total = sum(each.total() for each in sent.values())
    other_drops = sum(
        count
        for name in NAMES
        for reason, count in counts[name]['dropped'].items()
        # The next image may replace an invalid one that still waits.
        if reason not in ('bad_output', 'replaced')
    )
    return [
        Figure(f'of {total} images, those with a wrong answer or without one', 0, wrong),
        Figure(
            'published images beyond the valid ones',
            0,
            sum(counts[name]['published'] - before[name] - valid[name] for name in NAMES),
        ),
        Figure(
            'kinds of invalid outputs never sent', 0, len(LABELS) - min(map(len, sent.values()))
        ),
        Figure('cameras without a dropped image', 0, sum(not count for count in bad.values())),
        Figure(
            f'beside {sum(bad.values())} bad outputs, images neither published nor replaced',
            0,
            other_drops,
        ),
        Figure('statuses whose counts do not add up', 0, unbalanced),
        Figure('nodes lost, or with a traceback', 0, 0 if alive else 1),
    ]


def publish_of_each(client, cameras, rng, sent):
    """Publish a random image of each camera; return the number of wrong or missing answers."""
    labels = {}
    for camera in cameras:
        camera.detections.clear()
        label = rng.choice((*VALID, *range(len(LABELS))))
        labels[camera] = label
        sent[camera.name][label] += 1
        camera.publisher.publish(picture_of((label * BRIGHTNESS_STEP,) * 3))
    expected = {
        camera: [CLASS_NAMES[label]] if label in VALID else [] for camera, label in labels.items()
    }

    def answered():
        return all(len(camera.answers()) >= len(expected[camera]) for camera in cameras)

    with contextlib.suppress(WaitTimeoutError):
        client.spin_until(answered, 'answers to the valid images', seconds=10)
    client.spin_for(0.02)
    return sum(
        [name for answer in camera.answers() for name, _, _ in found_in(answer)]
        != expected[camera]
        for camera in cameras
    )
