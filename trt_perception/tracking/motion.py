# SPDX-License-Identifier: Apache-2.0
"""A Kalman filter for boxes that move with constant velocity, in real time.

A predicted box moves with its center and keeps its size. With a velocity for each side, the noise
and the steps of people grow or shrink the box of a covered object until it is not found again.
Size and center have equal noise, so that they share one covariance of position and velocity. Only
its ratio to the measurement noise has an effect. The noise is therefore counted in measurement
noise, and depends on no size of a box.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# In units of the measurement noise's variance. The acceleration is constant within a step, and
# random from step to step (discrete white noise). With noise that grows in proportion to time,
# HOTA was 0.7 to 1.4 lower when random images were missing.
_ACCELERATION_VARIANCE: Final = 60_000.0  # per s⁴
_FIRST_VARIANCES: Final = (1.0, 0.0, 9000.0)
#: A step of the center times this matrix is the step of all sides.
_BOTH_SIDES: Final = np.array([[1.0, 0, 1, 0], [0, 1, 0, 1]])
#: A box times this matrix is its center.
_CENTER: Final = _BOTH_SIDES.T / 2


def first_variances(count: int) -> Floats:
    """Return the variances of boxes that were detected once: float64 (count, 3)."""
    return np.tile(_FIRST_VARIANCES, (count, 1))


def predict(boxes: Floats, velocities: Floats, variances: Floats, elapsed_s: float) -> None:
    """Move boxes to a later time, in place.

    Args:
        boxes: (n, 4), pixels.
        velocities: (n, 2), of the center, pixels per second.
        variances: (n, 3): variance of the position, covariance, variance of the velocity.
        elapsed_s: seconds since the last step.
    """
    boxes += (velocities * elapsed_s) @ _BOTH_SIDES
    position, both, velocity = variances.T
    position += (
        2 * elapsed_s * both + elapsed_s**2 * velocity + _ACCELERATION_VARIANCE * elapsed_s**4 / 4
    )
    both += elapsed_s * velocity + _ACCELERATION_VARIANCE * elapsed_s**3 / 2
    velocity += _ACCELERATION_VARIANCE * elapsed_s**2


def correct(
    boxes: Floats,
    velocities: Floats,
    variances: Floats,
    which: npt.NDArray[np.int64],
    detected: npt.NDArray[Any],
) -> None:
    """Correct some boxes by their detections, in place.

    Args:
        boxes, velocities, variances: as for ``predict``.
        which: (m,), indices of the detected boxes, each at most once.
        detected: (m, 4), the detections, in pixels.
    """
    updated = variances[which]
    position, both, velocity = updated.T
    total = position + 1
    gain = position / total
    velocity_gain = both / total
    difference = detected - boxes[which]
    boxes[which] += gain[:, None] * difference
    velocities[which] += velocity_gain[:, None] * (difference @ _CENTER)
    velocity -= velocity_gain * both
    position[:], both[:] = gain, velocity_gain
    variances[which] = updated
