# SPDX-License-Identifier: Apache-2.0
"""Simulate an activation with the node's watchdog, on the test's own clock."""

from trt_perception.monitoring.frame_statistics import FrameStatistics
from trt_perception.monitoring.pipeline_statistics import PipelineStatistics
from trt_perception.monitoring.silence import TopicState
from trt_perception.monitoring.status_summary import Level
from trt_perception.monitoring.watchdog import PERIOD_S, CameraWatchdog


def cure(on_this_machine):
    return {None: 'the cure', True: 'the local cure', False: 'the remote cure'}[on_this_machine]


class SimulatedActivation:
    """Simulates an activation whose counts the test sets.

    The watchdog checks the activation twice per simulated second. The object is also the
    watchdog's WatchedCamera.
    """

    camera_name = ''
    topic = '/image'

    def __init__(
        self,
        start_s=100.0,
        frame_time_s=0.02,
        topic_state=None,
        batches_per_turn=1,
        answer_limit_s=0.0,
    ):
        self.time_s = start_s
        self.state = topic_state or TopicState(publishers=1)
        self.received = self.published = self.in_flight = self.not_delivered = 0
        self.dropped = {}
        self.refusal = 'the reason'
        self.enabled = True
        self.message_bytes = 6_000_000
        self.transport_ns = self.intake_ns = 0
        self.pipeline = PipelineStatistics()
        # Each call of `step` adds these mean delays of its images, and these shares of its time
        # in which the worker and the model are busy.
        self.transport_s = self.intake_s = self.worker_share = self.model_share = 0.0
        self.times = ()
        self.received_s = self.published_s = 0.0
        self.health_states = []
        self.watchdog = CameraWatchdog(
            self,
            start_s=start_s,
            frame_time_s=frame_time_s,
            batches_per_turn=batches_per_turn,
            answer_limit_s=answer_limit_s,
            loss_fix=cure,
        )

    def topic_state(self):
        return self.state

    def step(self, received=0, *, published=None, lost=0, seconds=PERIOD_S, **dropped):
        """Advance the clock by one period, in which ``received`` images arrived."""
        self.time_s += seconds
        before = self.published
        self.received += received
        self.published += received - sum(dropped.values()) if published is None else published
        self.received_s = self.time_s if received else self.received_s
        self.published_s = self.time_s if self.published > before else self.published_s
        for reason, count in dropped.items():
            self.dropped[reason] = self.dropped.get(reason, 0) + count
        if self.not_delivered is not None:
            self.not_delivered += lost
        self.transport_ns += round(1e9 * self.transport_s * received)
        self.intake_ns += round(1e9 * self.intake_s * received)
        self.pipeline.worker_s += self.worker_share * seconds
        self.pipeline.model_s += self.model_share * seconds
        counts = FrameStatistics(
            self.received,
            self.published,
            dict(self.dropped),
            0,
            self.in_flight,
            self.times,
            self.received_s,
            self.published_s,
        )
        if not self.enabled:
            self.watchdog.skip(self.time_s, counts, self.pipeline)
            return None
        self.health_states.append(
            self.watchdog.check(self.time_s, counts, self.pipeline, self.refusal)
        )
        return self.health_states[-1]

    def run(self, seconds, *args, **kwargs):
        for _ in range(round(seconds / PERIOD_S)):
            state = self.step(*args, **kwargs)
        return state

    def seconds_until(self, kind, *args, **kwargs):
        """Step until the watchdog reports ``kind``; return the seconds since this call."""
        for periods in range(1, 100):
            if self.step(*args, **kwargs).kind == kind:
                return periods * PERIOD_S
        raise AssertionError(f'{kind} never found; found: {self.health_states[-1]}')


def healthy(rate_hz=30, **options):
    activation = SimulatedActivation(**options)
    activation.run(5, round(rate_hz * PERIOD_S))
    found = activation.health_states[-1]
    assert (found.level, found.kind) == (Level.OK, '')
    assert f'{rate_hz:.1f} Hz' in found.message
    return activation
