# SPDX-License-Identifier: Apache-2.0
"""Compare the filter with a Kalman filter in matrices, and the overlaps with a plain loop."""

import numpy as np

from trt_perception.tracking import motion
from trt_perception.tracking.assignment import overlaps


def test_filter_of_the_center_equals_the_kalman_filter_of_the_textbook():
    """One axis of a center: state (position, velocity), with the noise of an acceleration."""
    random = np.random.default_rng(3)
    boxes = random.uniform(0, 100, (3, 4))
    velocities, variances = np.zeros((3, 2)), motion.first_variances(3)
    state = np.stack([(boxes[1, :2] + boxes[1, 2:]) / 2, velocities[1]], axis=1)
    size = boxes[1, 2:] - boxes[1, :2]
    covariance = np.diag(variances[1, [0, 2]])
    detected_box = np.array([1])
    for elapsed_s in (0.03, 0.5, 0.0, 0.1, 0.03):
        motion.predict(boxes, velocities, variances, elapsed_s)
        detected = random.uniform(0, 100, (1, 4))
        motion.correct(boxes, velocities, variances, detected_box, detected)

        step = np.array([[1, elapsed_s], [0, 1]])
        push = np.array([[elapsed_s**2 / 2], [elapsed_s]])
        state = state @ step.T
        covariance = step @ covariance @ step.T + 60_000 * push @ push.T
        gain = covariance @ [1, 0] / (covariance[0, 0] + 1)
        left_top, right_bottom = detected[0, :2], detected[0, 2:]
        state += ((left_top + right_bottom) / 2 - state[:, 0])[:, None] * gain
        size += (right_bottom - left_top - size) * gain[0]
        covariance = covariance - np.outer(gain, covariance[0])
        center = state[:, 0]
        expected = np.concatenate([center - size / 2, center + size / 2])
        np.testing.assert_allclose(boxes[1], expected)
        np.testing.assert_allclose(velocities[1], state[:, 1], atol=1e-9)
        np.testing.assert_allclose(variances[1], covariance[[0, 0, 1], [0, 1, 1]], rtol=1e-6)
    assert (velocities[[0, 2]] == 0).all()


def test_predicted_box_keeps_its_size():
    boxes = np.array([[0, 0, 40, 80.0]])
    velocities, variances = np.zeros((1, 2)), motion.first_variances(1)
    first = np.array([0])
    # The box moves to the right, and its right side moves faster.
    for left in (10.0, 20.0, 30.0):
        motion.predict(boxes, velocities, variances, 0.1)
        detected = np.array([[left, 0, 40 + 1.5 * left, 80]])
        motion.correct(boxes, velocities, variances, first, detected)
    size = boxes[0, 2:] - boxes[0, :2]
    before = boxes.copy()
    motion.predict(boxes, velocities, variances, 0.5)
    np.testing.assert_allclose(boxes[0, 2:] - boxes[0, :2], size)
    assert boxes[0, 0] > before[0, 0] + 10


def test_overlaps_equal_those_of_pixel_sets():
    random = np.random.default_rng(4)
    corners = random.integers(0, 12, (2, 20, 2))
    boxes = np.concatenate([corners, corners + random.integers(0, 9, (2, 20, 2))], axis=2)
    boxes[0, 0, 2:] = boxes[0, 0, :2] - 3  # a predicted box may be turned inside out

    def pixels(box):
        left, top, right, bottom = box.tolist()
        return {(x, y) for x in range(left, right) for y in range(top, bottom)}

    expected = [
        [len(pixels(a) & pixels(b)) / max(1, len(pixels(a) | pixels(b))) for b in boxes[1]]
        for a in boxes[0]
    ]
    np.testing.assert_allclose(overlaps(boxes[0], boxes[1]), expected)
    assert np.count_nonzero(expected) > 50
