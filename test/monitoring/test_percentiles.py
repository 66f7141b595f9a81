# SPDX-License-Identifier: Apache-2.0
"""Tests of median and 99th percentile against NumPy."""

import numpy as np
import pytest

from trt_perception.monitoring.percentiles import percentiles


def test_percentiles_of_no_values_are_none():
    assert percentiles([]) is None
    assert percentiles(iter(())) is None


@pytest.mark.parametrize('count', [1, 2, 3, 99, 100, 101, 512])
def test_percentiles_equal_numpy(count):
    values = np.random.default_rng(count).lognormal(2.0, 1.5, count)
    expected = np.percentile(values, (50, 99))
    found = percentiles(values.tolist())
    assert (found.p50_ms, found.p99_ms) == pytest.approx(tuple(expected), rel=1e-12)


def test_percentiles_of_equal_values_are_that_value():
    assert percentiles(0.1 for _ in range(77)) == (0.1, 0.1)
