# SPDX-License-Identifier: Apache-2.0
"""Builds the messages on /diagnostics from what is known of the node and its cameras."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.time import Time

from trt_perception.files.plain_text import escape_controls
from trt_perception.model.tasks.task import Task
from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.percentiles import percentiles
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.monitoring.status_summary import Level, StatusSummary

# The node's status quotes the problems of at most this many cameras, and names the others.
_MAX_DETAILED_CAMERAS: Final = 4
# Number of ages in the node's percentiles, shared equally by its cameras.
_AGE_WINDOW: Final = 512


@dataclass
class CameraDiagnostics:
    """Counts, rates and summary of one camera.

    Attributes:
        name: name of the camera; empty if the node has only one camera.
        statistics: counts and stage times since the last activation.
        published_hz: rate of published frames over the same time.
        received_hz: rate of received frames over the last second, or since the last message.
        not_delivered: number of images that were sent but never arrived; None if unknown.
        result_images_skipped: number of published images without a mask image, map or debug image
            that a subscriber expects: its thread was busy, it is too large, or the GPU has not
            made it.
        decoder_warnings: number of published images with a report about the file: a defect of
            a JPEG, or grey pixels of 16 bits.
        candidates_limited: number of published images with boxes above the threshold that did
            not enter NMS.
        track_counts: number of live confirmed tracks, and of ids so far; None without a tracker.
        ages_ms: milliseconds from stamp to publication of the last images; empty if the stamps
            do not show the age.
        reliability: requested QoS reliability; empty while inactive.
        summary: None while inactive, unless the model has a problem.
    """

    name: str = ''
    statistics: FrameStatistics = field(default_factory=FrameStatistics)
    received_hz: float = 0.0
    published_hz: float = 0.0
    not_delivered: int | None = 0
    result_images_skipped: int = 0
    decoder_warnings: int = 0
    candidates_limited: int = 0
    track_counts: tuple[int, int] | None = None
    ages_ms: Sequence[float] = ()
    reliability: str = ''
    summary: StatusSummary | None = None


@dataclass
class NodeDiagnostics:
    """The content of one message on /diagnostics: the node and its cameras.

    Attributes:
        state: label of the lifecycle state.
        error: the first error since the last transition; empty if there was none.
        engine: path of the model; empty before configure.
        task: task of the model; None before configure.
        cameras: one camera without a name, or named cameras.
        summary: summary of the node with named cameras; None while inactive.
        gpus: statistics of the pipeline of each GPU, by device index; empty before activate.
        batches: number of batches that the pipelines have run.
        runtime_values: keys and values about the model's runtime; empty before configure.
    """

    state: str
    error: str = ''
    engine: str = ''
    task: Task | None = None
    cameras: Sequence[CameraDiagnostics] = (CameraDiagnostics(),)
    summary: StatusSummary | None = None
    gpus: Mapping[int, PipelineStatistics] = field(default_factory=dict)
    batches: int = 0
    runtime_values: tuple[tuple[str, str], ...] = ()


def diagnostics_message(name: str, now: Time, node: NodeDiagnostics) -> DiagnosticArray:
    """Return a message with a status of the node, and of each camera and GPU if there are several.

    The level of each status is ERROR after a fault, otherwise the level of its summary.
    """
    [first, *others] = node.cameras
    if not others and not first.name:
        statuses = [_single_camera_status(name, node, first)]
    else:
        statuses = [_node_status(name, node)]
        statuses += [_camera_status(name, node, camera) for camera in node.cameras]
    if len(node.gpus) > 1:
        statuses += [_gpu_status(name, node, *gpu) for gpu in node.gpus.items()]
    message = DiagnosticArray(status=statuses)
    message.header.stamp = now.to_msg()
    return message


def summarise_problems(
    cameras: Sequence[CameraDiagnostics], own: StatusSummary | None
) -> StatusSummary | None:
    """Return the summary of the node, with the problem and name of each camera.

    Returns:
        A summary with the worst level and the messages of all problems; `own` if no camera
        has a problem.
    """
    found = [(camera.name, camera.summary) for camera in cameras if camera.summary is not None]
    if not found:
        return own
    bad = [(name, summary) for name, summary in found if summary.level != Level.OK]
    sentences = [own.message] if own is not None and own.kind else []
    sentences += camera_sentences(
        [(name, summary.level, summary.message) for name, summary in bad]
    )
    if not sentences:
        return own
    summaries = [*([own] if own is not None else []), *(summary for _, summary in bad)]
    level = max(summary.level for summary in summaries)
    kind = next(summary.kind for summary in summaries if summary.kind)
    return StatusSummary(level, kind, '; '.join(sentences))


def camera_sentences(problems: Sequence[tuple[str, int, str]]) -> list[str]:
    """Return the sentences about cameras in the message of the node, worst first.

    Args:
        problems: name, level and message of each camera with a problem.
    """
    bad = sorted(problems, key=lambda each: -each[1])
    sentences = [f'{name}: {message}' for name, _, message in bad[:_MAX_DETAILED_CAMERAS]]
    if rest := [name for name, _, _ in bad[_MAX_DETAILED_CAMERAS:]]:
        sentences.append(f'and {", ".join(rest)}')
    return sentences


def sum_not_delivered(cameras: Sequence[CameraDiagnostics]) -> int | None:
    """Return the number of undelivered images of all cameras; None if unknown for any camera."""
    lost = [camera.not_delivered for camera in cameras]
    known = [count for count in lost if count is not None]
    return sum(known) if len(known) == len(lost) else None


def _sum_track_counts(cameras: Sequence[CameraDiagnostics]) -> tuple[int, int] | None:
    """Return the sums over all cameras; None if no camera has a tracker."""
    counts = [camera.track_counts for camera in cameras if camera.track_counts is not None]
    return (sum(live for live, _ in counts), sum(ids for _, ids in counts)) if counts else None


def _single_camera_status(
    name: str, node: NodeDiagnostics, camera: CameraDiagnostics
) -> DiagnosticStatus:
    values = {
        'state': node.state,
        'engine': node.engine,
        **dict(node.runtime_values),
        **_task_values(node.task),
        'image reliability': camera.reliability,
        **_count_values(camera),
        **_stage_values(camera.statistics),
        **_age_values(camera.ages_ms),
    }
    return _status(f'{name}: detector', node, camera.summary, values)


def _node_status(name: str, node: NodeDiagnostics) -> DiagnosticStatus:
    """Return the status of the node: the sums over all cameras, and the worst level."""
    cameras = node.cameras
    counts = FrameStatistics.merge([camera.statistics for camera in cameras])
    all_of_them = CameraDiagnostics(
        statistics=counts,
        received_hz=sum(camera.received_hz for camera in cameras),
        published_hz=sum(camera.published_hz for camera in cameras),
        not_delivered=sum_not_delivered(cameras),
        result_images_skipped=sum(camera.result_images_skipped for camera in cameras),
        decoder_warnings=sum(camera.decoder_warnings for camera in cameras),
        candidates_limited=sum(camera.candidates_limited for camera in cameras),
        track_counts=_sum_track_counts(cameras),
    )
    values = {
        'state': node.state,
        'engine': node.engine,
        **dict(node.runtime_values),
        **_task_values(node.task),
        'cameras': ', '.join(camera.name for camera in cameras),
        **_count_values(all_of_them),
        'batches': str(node.batches),
        **_stage_values(counts),
        **_age_values(
            [age for camera in cameras for age in camera.ages_ms[-_AGE_WINDOW // len(cameras) :]]
        ),
    }
    return _status(f'{name}: detector', node, summarise_problems(cameras, node.summary), values)


def _camera_status(
    name: str, node: NodeDiagnostics, camera: CameraDiagnostics
) -> DiagnosticStatus:
    total = percentiles(1e3 * times.total for times in camera.statistics.times)
    values = {
        'state': node.state,
        'image reliability': camera.reliability,
        **_count_values(camera),
        **(
            {}
            if total is None
            else {'total p50 / p99 (ms)': f'{total.p50_ms:.3f} / {total.p99_ms:.3f}'}
        ),
        **_age_values(camera.ages_ms),
    }
    return _status(f'{name}: {camera.name}', node, camera.summary, values)


def _gpu_status(
    name: str, node: NodeDiagnostics, number: int, statistics: PipelineStatistics
) -> DiagnosticStatus:
    values = {
        'state': node.state,
        'frames': str(statistics.frames),
        'batches': str(statistics.batches),
    }
    if statistics.compute is not None:
        p50_ms, p99_ms = statistics.compute.p50_ms, statistics.compute.p99_ms
        values['compute p50 / p99 (ms)'] = f'{p50_ms:.3f} / {p99_ms:.3f}'
    return _status(f'{name}: GPU {number}', node, None, values)


def _task_values(task: Task | None) -> dict[str, str]:
    return {'task': ''} if task is None else {'task': task.name, **task.diagnostic_values()}


def _count_values(camera: CameraDiagnostics) -> dict[str, str]:
    counts = camera.statistics
    values = {
        'received (Hz)': f'{camera.received_hz:.2f}',
        'published (Hz)': f'{camera.published_hz:.2f}',
        'received': str(counts.received),
        'published': str(counts.published),
        'failed': str(counts.failed),
        'in flight': str(counts.in_flight),
        'not delivered': 'unknown: several publishers'
        if camera.not_delivered is None
        else str(camera.not_delivered),
    }
    for reason, count in sorted(counts.dropped.items()):
        values[f'dropped: {reason}'] = str(count)
    if camera.result_images_skipped:
        values['result_images_skipped'] = str(camera.result_images_skipped)
        # The old name, for one release.
        values['masks_skipped'] = values['result_images_skipped']
    if camera.decoder_warnings:
        values['decoder_warnings'] = str(camera.decoder_warnings)
    if camera.candidates_limited:
        values['candidates_limited'] = str(camera.candidates_limited)
    if camera.track_counts is not None:
        live, ids = camera.track_counts
        values |= {'tracks': str(live), 'track_ids': str(ids)}
    if camera.summary is not None and camera.summary.late_stage:
        values['late stage'] = camera.summary.late_stage
    return values


def _stage_values(counts: FrameStatistics) -> dict[str, str]:
    return {
        f'{stage} p50 / p99 (ms)': f'{times.p50_ms:.3f} / {times.p99_ms:.3f}'
        for stage, times in counts.latency.items()
    }


def _age_values(ages_ms: Sequence[float]) -> dict[str, str]:
    both = percentiles(ages_ms)
    if both is None:
        return {}
    return {'age of output p50 / p99 (ms)': f'{both.p50_ms:.1f} / {both.p99_ms:.1f}'}


def _status(
    name: str, node: NodeDiagnostics, summary: StatusSummary | None, values: Mapping[str, str]
) -> DiagnosticStatus:
    if node.error:
        level, message = Level.ERROR, node.error
    elif summary is None:
        level, message = Level.OK, node.state
    else:
        level, message = summary.level, summary.message
    return DiagnosticStatus(
        level=bytes([level]),
        name=name,
        message=escape_controls(message),
        hardware_id=escape_controls(node.engine),
        values=[KeyValue(key=key, value=escape_controls(value)) for key, value in values.items()],
    )
