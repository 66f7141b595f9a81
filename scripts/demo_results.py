# SPDX-License-Identifier: Apache-2.0
"""Measure the demo's results against the truth; draw, write and print them."""

from __future__ import annotations

import json
import shlex
import sys

import cv2
import numpy as np
from demo_image_tasks import (
    IMAGE_FIGURE_NAMES,
    RESULT_TOPICS,
    enlarged_crop,
    image_accuracy,
    image_result,
)
from demo_tasks import TOPICS, keypoints_of, measure_of, task_of, with_task_message
from demo_tracks import TRACK_FIGURES, track_figures, write_trails

from trt_perception.files.plain_text import escape_controls, join_first_items
from trt_perception.images.detections import Detections
from trt_perception.images.trails import Trails
from trt_perception.offline.evaluation.coco.annotations import read_annotations
from trt_perception.offline.evaluation.coco.classes import match_classes
from trt_perception.offline.evaluation.coco.run_lengths import with_run_lengths
from trt_perception.offline.evaluation.dataset import read_shapes
from trt_perception.offline.evaluation.metrics.mistakes import count_mistakes, match_detections
from trt_perception.offline.tools.parts.detection_output import CocoResults
from trt_perception.offline.tools.parts.detection_sources import DETECTIONS_FILE


def report_results(options, cameras, sent):
    """Measure against the truth, write all files, print the table; return the exit code.

    Args:
        options: the command line's options.
        cameras: dict from a camera's name to its record; '' is the name of an only camera.
        sent: the sent images of each camera: a dict with name and stamp_ns per image.
    """
    command = {'command': shlex.join(['scripts/demo', *sys.argv[1:]])}
    first = next(iter(cameras))
    task = task_of(options.task, options.truth)
    results, summaries, stamps = {}, {}, {}
    for name, camera in cameras.items():
        stamps[name] = {one['name']: one['stamp_ns'] for one in sent[name]}
        results[name] = {n: result_of(options, camera, stamp) for n, stamp in stamps[name].items()}
        summaries[name] = measured_camera(options, camera, results[name])
    if options.cameras:
        print_cameras(summaries, options.task)
        summary = {'cameras': summaries}
    else:
        print_table(summaries[first], options.task)
        summary = summaries[first]
    forget_images(options)
    write_json(options.output / 'summary.json', {**command, **summary}, 2)
    (options.output / DETECTIONS_FILE).unlink(missing_ok=True)
    if options.task not in RESULT_TOPICS:
        written = CocoResults(cameras[first].classes, command, task)
        write_detections(options, written, results)
    for name, camera in cameras.items():
        write_images(options, task, name, camera.classes, results[name], stamps[name])
        if options.track:
            path = options.output / (f'trails_{name}.jpg' if name else 'trails.jpg')
            write_trails(path, options, task, camera.classes, results[name], stamps[name])
    print(f'images, results and summary: {options.output}/')
    if foreign := other_classes(options.truth, cameras[first].classes):
        print(f'note: {foreign}')
    return max(print_count_problems(name, summary) for name, summary in summaries.items())


def measured_camera(options, camera, results):
    """Return the figures of one camera."""
    counts = camera.counts()
    figures = dict.fromkeys(figure_names(options.task))
    if figures and not other_classes(options.truth, camera.classes):
        figures = accuracy(options, camera.classes, results)
    if options.track:
        figures |= track_figures(options, results)
    arrivals = sorted(camera.arrivals_ns.values())
    span = (arrivals[-1] - arrivals[0]) * 1e-9 if len(arrivals) > 1 else float('nan')
    latency = [(arrival - stamp) * 1e-6 for stamp, arrival in camera.arrivals_ns.items()]
    percentiles = np.percentile(latency or [float('nan')], (50, 99)).round(2).tolist()
    return {
        'sent': len(results),
        'with_result': sum(found is not None for found in results.values()),
        **{key: counts[key] for key in ('received', 'published', 'dropped', 'failed')},
        'not_delivered': counts['not_delivered'],
        'published_fps': round((len(arrivals) - 1) / span, 2),
        **figures,
        'latency_ms': dict(zip(('p50', 'p99'), percentiles, strict=True)),
    }


def print_count_problems(name, summary):
    """Print the problems of a camera's counts; return the exit code."""
    where = f'{name}: ' if name else ''
    if summary['not_delivered'] is None:
        print(f'note: {where}another camera publishes on this topic; use another ROS_DOMAIN_ID')
    else:
        lost = summary['sent'] - summary['received'] - summary['not_delivered']
        if lost > 0:
            print(f'note: {where}{lost} images were sent before the detector found its camera')
    if missed := summary['sent'] - summary['with_result']:
        print(
            f'note: {where}{missed} of {summary["sent"]} images have no result: they have no '
            'picture, and do not count for the accuracy'
        )
    ended = summary['published'] + sum(summary['dropped'].values()) + summary['failed']
    if summary['received'] != ended:
        print(f'error: {where}received differs from published + dropped + failed', file=sys.stderr)
    return 0 if summary['received'] == ended and summary['published'] else 1


def other_classes(truth_file, classes):
    """Return a note if the model has none of the truth's classes, else ''."""
    wanted = list(read_annotations(truth_file).categories.values())
    if not classes or set(wanted) & set(classes):  # models of depth have no classes
        return ''
    scenes, model = (
        join_first_items([escape_controls(name) for name in names], 10)
        for names in (wanted, classes)
    )
    return (
        f'the scenes show {scenes}, but the model has only these classes: {model}; '
        'the accuracy is not measured'
    )


def has_arrived(task, camera, stamp):
    """Return whether all messages of an image arrived: result and additional topic of the task."""
    return stamp in camera.results and (task not in TOPICS or stamp in camera.task_messages)


def result_of(options, camera, stamp):
    """Return the result of one image; None if one of its messages is missing."""
    if options.task in RESULT_TOPICS:
        return image_result(options.task, camera.results.get(stamp), camera.classes)
    return detections_of(options, camera, stamp)


def detections_of(options, camera, stamp):
    """Return the detections of one image; None if one of its messages is missing."""
    task = options.task
    if not has_arrived(task, camera, stamp):
        return None
    message, task_message = camera.results[stamp], camera.task_messages.get(stamp)
    found = message.detections
    boxes = [(d.bbox.center.position.x, d.bbox.center.position.y) for d in found]
    centres = np.array(boxes, np.float64).reshape(-1, 2)
    halves = np.array([(d.bbox.size_x / 2, d.bbox.size_y / 2) for d in found]).reshape(-1, 2)
    best = [detection.results[0].hypothesis for detection in found]
    names = camera.classes
    detections = Detections(
        np.concatenate([centres - halves, centres + halves], axis=1).astype(np.float32),
        np.array([hypothesis.score for hypothesis in best], np.float32),
        np.array([names.index(hypothesis.class_id) for hypothesis in best], np.int32),
    )
    if options.track:
        ids = [int(detection.id or -1) for detection in found]
        detections = detections.with_ids(np.array(ids, np.int64))
    keypoints = len(keypoints_of(options.truth)[0]) if task == 'pose' else 0
    return with_task_message(task, detections, message, task_message, keypoints)


def accuracy(options, classes, results):
    """Return the accuracy figures of the task.

    For objects: precision and recall at IoU 0.5 over all scenes with a result. Keypoints use OKS
    instead of IoU. Oriented boxes also get the error of their angles.
    """
    if options.task in RESULT_TOPICS:
        return image_accuracy(options.task, options.truth, classes, results)
    truth = read_annotations(options.truth)
    matched = match_classes(classes, truth, allow_subset=True)
    measure = measure_of(options.task, options.truth)
    truth = read_shapes(truth, measure, matched.categories)
    objects = {image.file_name: truth.objects.get(image.id, ()) for image in truth.images}
    matched_images = []
    for name, found in results.items():
        if found is None:
            continue
        compared = with_run_lengths(found)
        errors = match_detections(compared, objects[name], matched, measure)
        matched_images.append((errors, compared, objects[name]))
    mistakes = count_mistakes(matched_images, matched)
    figures = {
        'precision': round(mistakes.precision or 0.0, 4),
        'recall': round(mistakes.recall or 0.0, 4),
    }
    if options.task == 'obb' and mistakes.angle_error:
        figures['angle_error_deg'] = round(mistakes.angle_error.median, 2)
    return figures


def write_detections(options, written, results):
    """Write the detections of all images that have detections.

    Args:
        options: the command line's options.
        written: an empty CocoResults.
        results: for each camera, a dict from the name of an image to its detections, or to None.
    """
    sizes = {image.file_name: image.size_wh for image in read_annotations(options.truth).images}
    for name, found_by_scene in results.items():
        for scene, found in found_by_scene.items():
            if found is not None:
                # The path of the scene's picture below pictures/.
                picture = f'{name}/{scene}' if name else scene
                written.add(picture, sizes[scene], found)
    write_json(options.output / DETECTIONS_FILE, written.dataset())


def write_json(path, content, indent=None):
    path.write_text(json.dumps(content, indent=indent) + '\n', encoding='utf-8')


def forget_images(options):
    """Remove the pictures of an earlier run, which may have had other cameras."""
    scenes = {path.name for path in options.scenes.iterdir()}
    for picture in options.output.glob('pictures/**/*'):
        if picture.name in scenes:
            picture.unlink()
    for folder in options.output.glob('pictures/*/'):
        if not any(folder.iterdir()):
            folder.rmdir()
    for pattern in ('overview*.jpg', 'trails*.jpg'):
        for picture in options.output.glob(pattern):
            picture.unlink()


def write_images(options, task, camera, names, results, stamps):
    """Draw the result of each image that has one, and an overview of the first twelve."""
    folder = options.output / 'pictures' / camera
    folder.mkdir(exist_ok=True, parents=True)
    tiles, trails = [], Trails()
    for name, found in results.items():
        if found is None:
            continue
        image = cv2.imread(str(options.scenes / name))
        if options.task == 'classify':
            image = enlarged_crop(image)
        if options.track:
            trails.draw(image, found, stamps[name] * 1e-9)
        task.draw(image, found, names)
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


def figure_names(task):
    """Return a dict from the key of each accuracy figure in the summary to its printed name."""
    if task in IMAGE_FIGURE_NAMES:
        return IMAGE_FIGURE_NAMES[task]
    overlap = {'segment': 'mask IoU', 'obb': 'oriented IoU', 'pose': 'OKS'}.get(task, 'IoU')
    return {key: f'{key} at {overlap} 0.5' for key in ('precision', 'recall')}


def print_cameras(summaries, task):
    """Print the figures of several cameras, one line per camera."""
    titles = ['camera', 'sent', 'received', 'published', 'not delivered', 'per second']
    titles += [key.replace('_', ' ') for key in figure_names(task)]
    tracks = [key for key in TRACK_FIGURES if any(key in one for one in summaries.values())]
    titles += [key.replace('_', ' ') for key in tracks]
    angles = any('angle_error_deg' in summary for summary in summaries.values())
    titles += [*['angle error'] * angles, 'p50 ms', 'p99 ms', 'dropped']
    lines = [titles]
    for name, summary in summaries.items():
        keys = ('sent', 'received', 'published', 'not_delivered', 'published_fps')
        cells = [summary[key] for key in keys]
        cells += [measured(summary[key]) for key in figure_names(task)]
        cells += [summary[key] for key in tracks]
        if angles:
            error = summary.get('angle_error_deg')
            cells.append('not measured' if error is None else f'{error}°')
        cells += [*summary['latency_ms'].values(), dropped(summary)]
        lines.append([name, *map(str, cells)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [f'{cell:>{width}}' for cell, width in zip(others, widths[1:], strict=True)]
        print(f'  {first:<{widths[0]}}  {"  ".join(cells)}')


def print_table(summary, task):
    """Print the figures of the only camera, one line per figure."""
    latency = ', '.join(f'{name} {value} ms' for name, value in summary['latency_ms'].items())
    lines = [
        ('sent', summary['sent']),
        ('received', summary['received']),
        ('published', summary['published']),
        ('dropped', dropped(summary)),
        ('failed', summary['failed']),
        ('not delivered', summary['not_delivered']),
        ('published per second', summary['published_fps']),
        *((name, measured(summary[key])) for key, name in figure_names(task).items()),
        (f'latency, stamp to {RESULT_TOPICS.get(task, ("detections",))[0]}', latency),
    ]
    lines += [(key.replace('_', ' '), summary[key]) for key in TRACK_FIGURES if key in summary]
    if 'angle_error_deg' in summary:
        lines.insert(-1, ('median error of the angle', f'{summary["angle_error_deg"]}°'))
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        print(f'  {name:<{width}}  {value}')


def measured(share):
    return 'not measured' if share is None else share
