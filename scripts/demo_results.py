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


def report(options, cameras, sent):
    """Measure against the truth, write everything, print the table; return the exit code.

    Args:
        options: of the command line.
        cameras: what was heard of each camera, by name; '' is the only one.
        sent: what each camera sent, a dict with name and stamp_ns for each image.
    """
    messages, results, summaries = {}, {}, {}
    for name, camera in cameras.items():
        found = {one['name']: camera.detections.get(one['stamp_ns']) for one in sent[name]}
        messages[name] = found
        results[name] = {n: detections_of(m, camera.classes) for n, m in found.items()}
        summaries[name] = measured_camera(options, camera, results[name])
    command = {'command': shlex.join(['scripts/demo', *sys.argv[1:]])}
    tables = {
        name: rows(messages[name], results[name], camera.classes)
        for name, camera in cameras.items()
    }
    first = next(iter(cameras))
    if options.cameras:
        print_cameras(summaries)
        summary, table = {'cameras': summaries}, tables
    else:
        print_table(summaries[first])
        summary, table = summaries[first], tables[first]
    write_json(options.output / 'summary.json', {**command, **summary}, 2)
    write_json(options.output / 'detections.json', table, 1)
    for name, camera in cameras.items():
        write_images(options, name, camera.classes, results[name])
    print(f'images, detections and summary: {options.output}/')
    if foreign := other_classes(options.truth, cameras[first].classes):
        print(f'note: {foreign}')
    return max(told(name, summary) for name, summary in summaries.items())


def measured_camera(options, camera, results):
    """Return the figures of one camera."""
    counts = camera.counts()
    precision, recall = None, None
    if not other_classes(options.truth, camera.classes):
        precision, recall = precision_recall(options.truth, camera.classes, results)
    arrivals = sorted(camera.arrivals_ns.values())
    span = (arrivals[-1] - arrivals[0]) * 1e-9 if len(arrivals) > 1 else float('nan')
    latency = [(arrival - stamp) * 1e-6 for stamp, arrival in camera.arrivals_ns.items()]
    percentiles = np.percentile(latency or [float('nan')], (50, 99)).round(2).tolist()
    return {
        'sent': len(results),
        **{key: counts[key] for key in ('received', 'published', 'dropped', 'failed')},
        'not_delivered': counts['not_delivered'],
        'published_fps': round((len(arrivals) - 1) / span, 2),
        'precision': precision,
        'recall': recall,
        'latency_ms': dict(zip(('p50', 'p99'), percentiles, strict=True)),
    }


def told(name, summary):
    """Say what is wrong with a camera's counts; return the exit code."""
    where = f'{name}: ' if name else ''
    if summary['not_delivered'] is None:
        print(f'note: {where}another camera publishes on this topic; use another ROS_DOMAIN_ID')
    ended = summary['published'] + sum(summary['dropped'].values()) + summary['failed']
    if summary['received'] != ended:
        print(f'error: {where}received is not published + dropped + failed', file=sys.stderr)
    return 0 if summary['received'] == ended and summary['published'] else 1


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


def write_images(options, camera, names, results):
    """Draw each scene's detections, and an overview of the first twelve."""
    folder = options.output / 'pictures' / camera
    folder.mkdir(exist_ok=True, parents=True)
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
        name = f'overview_{camera}.jpg' if camera else 'overview.jpg'
        cv2.imwrite(str(options.output / name), overview)


def dropped(summary):
    return ', '.join(f'{count} {reason}' for reason, count in summary['dropped'].items()) or '0'


def print_cameras(summaries):
    """Print the figures of several cameras, a line for each."""
    titles = ['camera', 'sent', 'received', 'published', 'not delivered', 'per second']
    titles += ['precision', 'recall', 'p50 ms', 'p99 ms', 'dropped']
    lines = [titles]
    for name, summary in summaries.items():
        keys = ('sent', 'received', 'published', 'not_delivered', 'published_fps')
        cells = [summary[key] for key in keys]
        cells += [measured(summary[key]) for key in ('precision', 'recall')]
        cells += [*summary['latency_ms'].values(), dropped(summary)]
        lines.append([name, *map(str, cells)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [f'{cell:>{width}}' for cell, width in zip(others, widths[1:], strict=True)]
        print(f'  {first:<{widths[0]}}  {"  ".join(cells)}')


def print_table(summary):
    """Print the figures of the only camera, one a line."""
    latency = ', '.join(f'{name} {value} ms' for name, value in summary['latency_ms'].items())
    lines = [
        ('sent', summary['sent']),
        ('received', summary['received']),
        ('published', summary['published']),
        ('dropped', dropped(summary)),
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
