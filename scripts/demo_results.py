"""What the demo found: measured against the truth, drawn, written and printed."""

from __future__ import annotations

import json
import shlex
import sys

import cv2
import numpy as np

from trt_perception.detections import Detections
from trt_perception.evaluation.classes import match_classes
from trt_perception.evaluation.coco import read_annotations
from trt_perception.evaluation.mistakes import match_detections
from trt_perception.evaluation.mistakes import sum_up
from trt_perception.images.drawing import draw_detections
from trt_perception.plain_text import listed
from trt_perception.plain_text import plain


def report(options, recorder, sent):
    """Measure against the truth, write everything, print the table; return the exit code."""
    messages = {entry['name']: recorder.detections.get(entry['stamp_ns']) for entry in sent}
    results = {name: detections_of(m, recorder.classes) for name, m in messages.items()}
    counts = recorder.counts()
    foreign = other_classes(options.truth, recorder.classes)
    precision, recall = None, None
    if not foreign:
        precision, recall = precision_recall(options.truth, recorder.classes, results)
    arrivals = sorted(recorder.arrivals_ns.values())
    span = (arrivals[-1] - arrivals[0]) * 1e-9 if len(arrivals) > 1 else float('nan')
    latency = [(arrival - stamp) * 1e-6 for stamp, arrival in recorder.arrivals_ns.items()]
    percentiles = np.percentile(latency or [float('nan')], (50, 99)).round(2).tolist()
    summary = {
        'command': shlex.join(['scripts/demo', *sys.argv[1:]]),
        'sent': len(sent),
        **{key: counts[key] for key in ('received', 'published', 'dropped', 'failed')},
        'not_delivered': counts['not_delivered'],
        'published_fps': round((len(arrivals) - 1) / span, 2),
        'precision': precision,
        'recall': recall,
        'latency_ms': dict(zip(('p50', 'p99'), percentiles, strict=True)),
    }
    write_json(options.output / 'summary.json', summary, 2)
    write_json(options.output / 'detections.json', rows(messages, results, recorder.classes), 1)
    write_images(options, recorder.classes, results)
    print_table(summary)
    print(f'images, detections and summary: {options.output}/')
    if foreign:
        print(f'note: {foreign}')
    if counts['not_delivered'] is None:
        print('note: another camera publishes on this topic; use another ROS_DOMAIN_ID')
    ended = counts['published'] + sum(counts['dropped'].values()) + counts['failed']
    if counts['received'] != ended:
        print('error: received is not published + dropped + failed', file=sys.stderr)
    return 0 if counts['received'] == ended and counts['published'] else 1


def other_classes(truth_file, classes):
    """Return what is wrong where the model has none of the classes of the truth, else ''."""
    wanted = list(read_annotations(truth_file).categories.values())
    if set(wanted) & set(classes):
        return ''
    scenes, model = (listed([plain(name) for name in names], 10) for names in (wanted, classes))
    return (
        f'the scenes show {scenes}, and the model has none of these classes but {model}: '
        'precision and recall are not measured'
    )


def detections_of(message, names):
    """Return a message's detections, none where there is no message."""
    found = message.detections if message else []
    boxes = [(d.bbox.center.position.x, d.bbox.center.position.y) for d in found]
    centres = np.array(boxes, np.float64).reshape(-1, 2)
    halves = np.array([(d.bbox.size_x / 2, d.bbox.size_y / 2) for d in found]).reshape(-1, 2)
    best = [detection.results[0].hypothesis for detection in found]
    return Detections(
        np.concatenate([centres - halves, centres + halves], axis=1).astype(np.float32),
        np.array([hypothesis.score for hypothesis in best], np.float32),
        np.array([names.index(hypothesis.class_id) for hypothesis in best], np.int32),
    )


def precision_recall(truth_file, classes, results):
    """Return precision and recall at IoU 0.5 over every scene that was sent."""
    truth = read_annotations(truth_file)
    matched = match_classes(classes, truth, allow_subset=True)
    objects = {image.file_name: truth.boxes.get(image.id, ()) for image in truth.images}
    matched_images = [
        (match_detections(found, objects[name], matched), found, objects[name])
        for name, found in results.items()
    ]
    mistakes = sum_up(matched_images, matched)
    return round(mistakes.precision or 0.0, 4), round(mistakes.recall or 0.0, 4)


def rows(messages, results, names):
    """Return the class, score and box (x, y, width, height) of what each scene showed.

    None for a scene that the detector did not process.
    """
    return {
        name: messages[name]
        and [
            {
                'class': names[class_id],
                'score': round(float(score), 4),
                'bbox': [round(float(side), 2) for side in (*box[:2], *(box[2:] - box[:2]))],
            }
            for box, score, class_id in zip(found.xyxy, found.scores, found.class_ids, strict=True)
        ]
        for name, found in results.items()
    }


def write_json(path, content, indent):
    path.write_text(json.dumps(content, indent=indent) + '\n', encoding='utf-8')


def write_images(options, names, results):
    """Draw each scene's detections, and an overview of the first twelve."""
    folder = options.output / 'pictures'
    folder.mkdir(exist_ok=True)
    tiles = []
    for name, found in results.items():
        image = cv2.imread(str(options.scenes / name))
        draw_detections(image, found, names)
        cv2.imwrite(str(folder / name), image)
        if len(tiles) < 12 and image.shape[1] > image.shape[0]:
            scale = 300 / image.shape[0]
            small = cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
            small = small[:, :400]
            border = 400 - small.shape[1]
            tiles.append(cv2.copyMakeBorder(small, 0, 0, 0, border, cv2.BORDER_CONSTANT))
    if tiles:
        tiles += [np.zeros_like(tiles[0])] * (-len(tiles) % 3)
        overview = np.vstack([np.hstack(tiles[i : i + 3]) for i in range(0, len(tiles), 3)])
        cv2.imwrite(str(options.output / 'overview.jpg'), overview)


def print_table(summary):
    """Print the figures, one a line."""
    dropped = ', '.join(f'{count} {reason}' for reason, count in summary['dropped'].items()) or '0'
    latency = ', '.join(f'{name} {value} ms' for name, value in summary['latency_ms'].items())
    lines = [
        ('sent', summary['sent']),
        ('received', summary['received']),
        ('published', summary['published']),
        ('dropped', dropped),
        ('failed', summary['failed']),
        ('not delivered', summary['not_delivered']),
        ('published per second', summary['published_fps']),
        ('precision at IoU 0.5', measured(summary['precision'])),
        ('recall at IoU 0.5', measured(summary['recall'])),
        ('latency, stamp to detections', latency),
    ]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f'  {name:<{width}}  {value}')


def measured(share):
    return 'not measured' if share is None else share
