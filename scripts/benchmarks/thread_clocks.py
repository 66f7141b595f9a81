"""What threads spend of the processor, without what passes in the middleware.

That is about how long they need the interpreter's lock.
"""

from __future__ import annotations

import threading
import time

from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy

from trt_perception.ros.wire import rcl


class ThreadClocks:
    """CPU clocks of this process's threads, less their wait and take without the lock.

    These calls are replaced to measure them: there can be one only.
    """

    def __init__(self):
        self._away_s = {}
        self._adding = threading.Lock()
        _rclpy.WaitSet.wait = self._left_out(_rclpy.WaitSet.wait)
        slow = rcl.load().slow
        for name in ('rcl_wait', 'rcl_take_serialized_message'):
            setattr(slow, name, self._left_out(getattr(slow, name)))

    def _left_out(self, call):
        """Return the call, with the CPU time that its thread spends in it noted."""

        def timed(*args):
            begun = time.thread_time()
            try:
                return call(*args)
            finally:
                name, away_s = threading.current_thread().name, time.thread_time() - begun
                with self._adding:  # several threads may have one name
                    self._away_s[name] = self._away_s.get(name, 0.0) + away_s

        return timed

    def spent_s(self):
        """Return the seconds that threads of Python have spent, by their name."""
        spent_s = {name: -away_s for name, away_s in self._away_s.items()}
        for thread in threading.enumerate():
            clock_s = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            spent_s[thread.name] = spent_s.get(thread.name, 0.0) + clock_s
        return spent_s
