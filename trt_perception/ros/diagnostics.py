"""What the node says of itself on /diagnostics."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field

from diagnostic_msgs.msg import DiagnosticArray
from diagnostic_msgs.msg import DiagnosticStatus
from diagnostic_msgs.msg import KeyValue
from rclpy.time import Time

from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.problem import Level
from trt_perception.monitoring.problem import Problem
from trt_perception.plain_text import plain

__all__ = ['Health', 'diagnostics_message']


@dataclass
class Health:
    """The facts of one diagnostic message.

    Attributes:
        state: label of the lifecycle state.
        error: what went wrong last, empty where nothing did.
        engine: path of the model, empty before it is configured.
        statistics: counts and stage times since activation; while inactive, of the last one.
        received_hz: frames received in the last second, or since the message before.
        published_hz: frames published meanwhile.
        not_delivered: images that never arrived, None where that is unknown.
        age_ms: p50 and p99 of image stamp to published, None where the stamps do not show it.
        reliability: what is asked of the camera; empty while inactive.
        finding: of the watch; None while inactive.
    """

    state: str
    error: str = ''
    engine: str = ''
    statistics: FrameStatistics = field(default_factory=FrameStatistics)
    received_hz: float = 0.0
    published_hz: float = 0.0
    not_delivered: int | None = 0
    age_ms: tuple[float, float] | None = None
    reliability: str = ''
    finding: Problem | None = None


def diagnostics_message(name: str, now: Time, health: Health) -> DiagnosticArray:
    """Make the message: one status; ERROR after a fault, else what the watch found."""
    level, summary = _level_and_summary(health)
    counts = health.statistics
    values = {
        'state': health.state,
        'engine': health.engine,
        'image reliability': health.reliability,
        'received (Hz)': f'{health.received_hz:.2f}',
        'published (Hz)': f'{health.published_hz:.2f}',
        'received': str(counts.received),
        'published': str(counts.published),
        'failed': str(counts.failed),
        'in flight': str(counts.in_flight),
        'not delivered': 'unknown: several publishers'
        if health.not_delivered is None
        else str(health.not_delivered),
    }
    for reason, count in sorted(counts.dropped.items()):
        values[f'dropped: {reason}'] = str(count)
    for stage, times in counts.latency.items():
        values[f'{stage} p50 / p99 (ms)'] = f'{times.p50_ms:.3f} / {times.p99_ms:.3f}'
    if health.age_ms is not None:
        values['age of output p50 / p99 (ms)'] = f'{health.age_ms[0]:.1f} / {health.age_ms[1]:.1f}'
    status = DiagnosticStatus(
        level=bytes([level]),
        name=f'{name}: detector',
        message=plain(summary),
        hardware_id=plain(health.engine),
        values=[KeyValue(key=key, value=plain(value)) for key, value in values.items()],
    )
    message = DiagnosticArray(status=[status])
    message.header.stamp = now.to_msg()
    return message


def _level_and_summary(health: Health) -> tuple[Level, str]:
    if health.error:
        return Level.ERROR, health.error
    if health.finding is None:
        return Level.OK, health.state
    return health.finding.level, health.finding.message
