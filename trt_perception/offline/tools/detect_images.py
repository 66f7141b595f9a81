# SPDX-License-Identifier: Apache-2.0
"""Runs a model on images and videos without ROS, and writes the results."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trt_perception.errors import ConfigError
from trt_perception.files.atomic_files import make_folder, write_json
from trt_perception.files.plain_text import counted, escape_controls, join_first_items
from trt_perception.images.bag_images import bag_losses, parse_bag_image
from trt_perception.images.bag_options import add_bag_options, read_bag_options
from trt_perception.images.frame import frame_from_bgr
from trt_perception.images.image_source import ImageSource, skipped_image_folders
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.model.model_spec import ModelSpec
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.task import TaskResult
from trt_perception.model.thresholds import Thresholds
from trt_perception.offline.evaluation.offline_detection import (
    Latency,
    detect_batch,
    read_ahead,
)
from trt_perception.offline.tools.parts.arguments import (
    check_output_folder,
    parse_path,
    positive_number,
)
from trt_perception.offline.tools.parts.command_line import (
    ResultSaver,
    print_message,
    progress_bar,
    run_tool,
)
from trt_perception.offline.tools.parts.detection_output import (
    CocoResults,
    VideoOutput,
    write_image,
)
from trt_perception.offline.tools.parts.detection_sources import (
    DEFAULT_FPS,
    SUMMARY_FILE,
    DetectionPlan,
    VideoFile,
    make_plan,
    plan_map_files,
)
from trt_perception.offline.tools.parts.image_task_output import ImageTaskResults
from trt_perception.offline.tools.parts.model_arguments import (
    add_model_arguments,
    check_object_options,
    suggest_tool_assignment,
    values_from_options,
)
from trt_perception.offline.tools.parts.sequence_tracks import SequenceTracks
from trt_perception.parameters.values import ParameterValues
from trt_perception.pipelines.open_pipeline import open_offline_pipeline
from trt_perception.pipelines.pipeline import Pipeline, split_into_batches
from trt_perception.pipelines.warm_up import warm_up
from trt_perception.process.foreign_names import foreign_names
from trt_perception.process.option_parser import OptionParser

_HELP_END: Final = """\
examples:
  detect_images yolo.engine --source ~/pictures --output found
  detect_images yolo.onnx --source drive.mp4 --output found --confidence 0.5
  detect_images yolo.onnx --source '~/pictures/**/*.jpg' a.png --output found \\
      --classes person car --no-pictures
  detect_images yolo.onnx --source drive.mp4 --output found --track
  detect_images yolo.onnx --source drive_bag --topic /front/image_raw --output found

The output folder receives:
  each image, with its results drawn, under its own name
  each video, with its results drawn, as MP4
  each image of a bag, with its results drawn, as BAG#TOPIC@TIME.png (docs/bags.md)
  detections.json: images, categories and detections as a COCO data set. evaluate_engine reads
    this file as annotations. The frames of a video have names like drive.mp4#000012.
  results.json: the same detections in COCO's results format
  summary.json: counts, latency and problems
Masks are in "segmentation", keypoints in "keypoints", oriented boxes in "oriented_bbox".
With --track, "track_id" is the number of the object's track, and null without a confirmed track.
Each video, topic and folder of images is a sequence with its own tracks. img2 comes before img10
in a folder or pattern; separate files stay in the given order. --param tracker.NAME=VALUE changes
the settings (docs/tracks.md).
For models that describe the whole image, detections.json is missing, and results.json has for
each image:
  classify: the five best classes with their scores
  semantic: the share of each class, and a "map": a PNG below maps/ with a class id in each pixel
  depth: the lowest and highest depth, and a "map": a PNG below maps/ with 16 bits for each pixel.
    Metric depth is in millimetres, at most 65535. Relative depth is scaled from 1 ("low", far) to
    65535 ("high", near). 0 is unknown.
Subfolders of a source are not read. A pattern with ** includes them: '~/pictures/**'.
The tool skips an image that cannot be read, prints its name, and ends with exit code 1. After
Ctrl-C it saves the results of the finished images, and summary.json has "partial": true.

exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
"""

_Image = npt.NDArray[np.uint8]


@dataclass
class _DetectionRun:
    """State of one run: model, sources, results and times.

    Attributes:
        progress: called with the numbers of finished images and of all images.
        seconds: detection time per image, one entry for each batch.
        tracks: gives the objects of a sequence their ids; None without --track.
        fps: images per second of folders, and of videos instead of their own rate; 0 if not given.
        problems: messages about images and videos that could not be read completely.
        partial: whether the user interrupted the run. Later images are missing then.
    """

    pipeline: Pipeline
    thresholds: Thresholds
    plan: DetectionPlan
    results: CocoResults | ImageTaskResults
    progress: Callable[[int, int | None], None]
    tracks: SequenceTracks | None = None
    fps: float = 0.0
    seconds: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    drawn: list[str] = field(default_factory=list)
    partial: bool = False
    _done: int = 0

    def process_sources(self) -> None:
        """Process all images and videos. Ctrl-C ends this method, with the results so far.

        Raises:
            KeyboardInterrupt: the user pressed Ctrl-C before an image was finished.
        """
        try:
            self.process_images()
            for name, video in self.plan.videos:
                self.process_video(name, video)
        except KeyboardInterrupt:
            if not len(self.results):
                raise
            self.partial = True

    def process_images(self) -> None:
        """Run the model on all images, and write the annotated images."""
        spec = self.pipeline.spec
        files = [(path, None) for _, path in self.plan.images]
        decoded = read_ahead(files, self._skip_unreadable)
        named = (
            (self.plan.images[index][0], bgr, self._image_stamp_s(index)) for index, bgr in decoded
        )
        for name, bgr, found in self._detect(named):
            if name in self.plan.targets:
                target = self.plan.targets[name]
                write_image(target, bgr, found, spec.class_names, spec.task)
                self.drawn.append(name)

    def _image_stamp_s(self, index: int) -> float:
        """Return the stamp of an image for the tracker: in a bag, its log time."""
        in_bag = None if self.fps else parse_bag_image(self.plan.images[index][1])
        return index / (self.fps or DEFAULT_FPS) if in_bag is None else in_bag.log_ns * 1e-9

    def process_video(self, name: str, video: VideoFile) -> None:
        """Run the model on the frames of a video, and write the annotated video."""
        before = len(self.results)
        target = self.plan.targets.get(name)
        spec = self.pipeline.spec
        opened = VideoOutput(target, video.fps, spec.class_names, spec.task) if target else None
        frames = (bgr for _, bgr in ImageSource(str(video.path)))
        fps = self.fps or video.fps
        named = ((f'{name}#{number:06d}', bgr, number / fps) for number, bgr in enumerate(frames))
        if self.tracks is not None:
            self.tracks.start_sequence()
        with opened or contextlib.nullcontext():
            for _, bgr, found in self._detect(named):
                if opened is not None:
                    opened.add(bgr, found)
        self.drawn += [name] if opened else []
        count = len(self.results) - before
        # Some containers only estimate the number of frames, with an error of less than 10 %.
        if count < 0.9 * video.frames:
            self._report_problem(
                f'{video.path}: only {count} of {video.frames} frames could be decoded: the file '
                'is damaged or truncated'
            )

    def _detect(
        self, images: Iterable[tuple[str, _Image, float]]
    ) -> Iterator[tuple[str, _Image, TaskResult]]:
        """Run the model on images with name and stamp (s) in batches, and collect the results.

        With a tracker, the results have ids, and the images have trails.
        """
        for chunk in split_into_batches(images, self.pipeline.batch):
            frames = [frame_from_bgr(bgr) for _, bgr, _ in chunk]
            started = time.perf_counter()
            run = detect_batch(self.pipeline, frames, self.thresholds)
            self.seconds.append((time.perf_counter() - started) / len(chunk))
            for (name, bgr, stamp_s), detected in zip(chunk, run, strict=True):
                found = detected
                if self.tracks is not None:
                    found = self.tracks.update(name, bgr, stamp_s, detected)
                self.results.add(name, (bgr.shape[1], bgr.shape[0]), found)
                yield name, bgr, found
                self._count_image()

    def _skip_unreadable(self, message: str) -> None:
        self._report_problem(message)
        self._count_image()

    def _count_image(self) -> None:
        self._done += 1
        self.progress(self._done, self.plan.total_images or None)

    def report_losses(self, sources: Sequence[str]) -> None:
        """Report the parts of bags that could not be read."""
        for loss in (loss for source in sources for loss in bag_losses(source)):
            self._report_problem(loss)

    def _report_problem(self, message: str) -> None:
        self.problems.append(message)
        print_message('detect_images', message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    interrupted = 'interrupted before all results were saved'
    return run_tool(_parser(), arguments, _prepare, _run, interrupted)


def _prepare(options: argparse.Namespace) -> tuple[ModelFile, ParameterValues, DetectionPlan]:
    parameters = values_from_options(options, options.model)
    parameters = parameters.with_values({'class_filter': options.classes})
    if options.fps and not options.track:
        raise ConfigError('--fps', 'has no effect without --track', fix='leave it out')
    model = read_model_file(options.model, accepts_server=True)
    plan = make_plan(
        options.source,
        options.output,
        draw=not options.no_pictures,
        overwrite=options.overwrite,
        selection=read_bag_options(options, options.source),
    )
    for source in options.source:
        with contextlib.suppress(OSError):
            if left_out := skipped_image_folders(source):
                found = f'{source}: its subfolders were not read: {join_first_items(left_out)}'
                print_message('detect_images', f"{found}; '{source.rstrip('/')}/**' includes them")
    return model, parameters, plan


def _run(
    job: tuple[ModelFile, ParameterValues, DetectionPlan], options: argparse.Namespace
) -> int:
    """Process all sources, write the results, print a summary, and return the exit code."""
    model, parameters, plan = job
    with contextlib.closing(
        open_offline_pipeline(model, parameters.pipeline_options())
    ) as pipeline:
        names, task = pipeline.spec.class_names, pipeline.spec.task
        check_object_options(parameters, task)
        thresholds = parameters.thresholds(names)
        settings = parameters.tracker_settings(parameters.confidence_threshold)
        tracks = None if settings is None else SequenceTracks(settings, draws=bool(plan.targets))
        facts = _facts(model, pipeline.spec, parameters)
        results: CocoResults | ImageTaskResults
        if task.finds_objects:
            results = CocoResults(names, facts, task)
        else:
            has_maps = not isinstance(task, Classify)
            maps = plan_map_files(plan, overwrite=options.overwrite) if has_maps else {}
            results = ImageTaskResults(names, plan.folder, maps)
        for sentence in pipeline.spec.evidence:
            print(escape_controls(sentence), file=sys.stderr)
        warm_up(pipeline)
        make_folder(plan.folder)
        check_output_folder(plan.folder)
        with progress_bar(unit='img', total=plan.total_images or None) as progress:
            fps = options.fps or 0.0
            work = _DetectionRun(pipeline, thresholds, plan, results, progress, tracks, fps)
            work.process_sources()
            work.report_losses(options.source)
    latency = Latency.of_seconds(work.seconds).as_dict() if work.seconds else None
    summary: dict[str, Any] = {
        'command': options.command,
        **facts,
        **results.summary(),
        **({} if tracks is None else {'tracks': tracks.count}),
        'latency_ms': latency,
        'problems': work.problems,
        'partial': work.partial,
    }
    headline = results.headline()
    if tracks is not None:
        headline += f' or in a track; {counted(tracks.count, "track")}'
    print(escape_controls(_summary_text(headline, summary), None), flush=True)
    if work.drawn:
        videos = sum(name in dict(plan.videos) for name in work.drawn)
        counts = {'images': len(work.drawn) - videos, 'videos': videos}
        drawn = ' and '.join(
            f'{count} annotated {kind}' for kind, count in counts.items() if count
        )
        print(escape_controls(f'saved {drawn} in {plan.folder}'))
    saver = ResultSaver('detect_images')
    for name, content in results.files().items():
        saver.save(plan.folder / name, write_json, content)
    saver.save(plan.folder / SUMMARY_FILE, write_json, summary, 2)
    if work.partial:
        count = f'{len(results)} of {plan.total_images or "an unknown number of"} images'
        print_message('detect_images', f'interrupted; the results are partial: {count}')
        return 130
    return 1 if work.problems or saver.failed else 0


def _facts(model: ModelFile, spec: ModelSpec, config: ParameterValues) -> dict[str, Any]:
    """Return the model and the settings for the written files."""
    used: dict[str, Any] = {
        'confidence_threshold': config.confidence_threshold,
        'iou_threshold': config.iou_threshold,
    }
    if settings := config.tracker_settings(config.confidence_threshold):
        used['tracker'] = {'type': config.tracker_type, **asdict(settings)}
    return {
        'model': model.path.name,
        'model_sha256': model.sha256,
        **(used if spec.task.finds_objects else {}),
        'task': spec.task.name,
        'decoder': spec.decoder.as_dict(),
        'preprocessing': asdict(spec.preprocessing),
        'recognised': list(spec.evidence),
    }


def _summary_text(headline: str, summary: dict[str, Any]) -> str:
    lines = [headline]
    width = max(map(len, summary['classes']), default=0)
    for name, amount in summary['classes'].items():
        text = f'{amount:.2%}' if isinstance(amount, float) else str(amount)
        lines.append(f'  {name:<{width}}  {text:>6}')
    if summary['latency_ms']:
        times = ', '.join(f'{key} {value:.2f}' for key, value in summary['latency_ms'].items())
        lines.append(f'latency, ms: {times}')
    return '\n'.join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        'detect_images',
        __doc__,
        _HELP_END,
        assignment=suggest_tool_assignment,
        before='--param',
        other_name=foreign_names,
    )
    parser.add_model('engine or ONNX file')
    add = parser.add_argument
    add(
        '--source',
        nargs='+',
        required=True,
        metavar='SOURCE',
        help='folders, glob patterns, image files, video files or bags of ROS 2',
    )
    add_bag_options(parser)
    add('--output', type=parse_path, required=True, metavar='DIR', help='folder for the results')
    add('--overwrite', action='store_true', help='replace the results of an earlier run')
    add('--no-pictures', action='store_true', help='do not write annotated images and videos')
    add('--classes', nargs='+', default=[], metavar='NAME', help='report only these classes')
    add(
        '--track',
        action='store_true',
        help='give objects ids that stay the same in the images of a video or folder',
    )
    add(
        '--fps',
        type=positive_number,
        metavar='X',
        help='images per second, with --track (default: the rate of the video; '
        f'{DEFAULT_FPS:g} for folders; log times for bags)',
    )
    add_model_arguments(parser)
    return parser


if __name__ == '__main__':
    sys.exit(main())
