# SPDX-License-Identifier: Apache-2.0
"""Tests of ranges from histograms, with NumPy and ONNX Runtime's calibrators as references."""

import numpy as np
import pytest
from hypothesis.extra import numpy as arrays

from support.properties import given, settings, st
from trt_perception.offline.building.calibration.ranges import PERCENTILE, MagnitudeHistogram

FLOATS = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(-1e6, 1e6, width=32))


def histogram_of(*parts):
    histogram = MagnitudeHistogram()
    for part in parts:
        histogram.add(np.asarray(part, np.float32))
    return histogram


def test_range_of_no_values_or_zeros_is_0():
    for histogram in (histogram_of(), histogram_of(np.zeros((2, 3))), histogram_of([])):
        assert [histogram.choose_range(m) for m in ('minmax', 'percentile', 'entropy')] == [0] * 3


@settings(deadline=None)
@given(st.lists(FLOATS, max_size=5))
def test_histogram_does_not_depend_on_the_order_of_arrays(parts):
    one, other = histogram_of(*parts), histogram_of(*reversed(parts))
    together = histogram_of(np.concatenate([np.empty(0, np.float32), *parts]))
    for histogram in (other, together):
        assert np.array_equal(one.counts, histogram.counts)
        assert (one.top, one.largest) == (histogram.top, histogram.largest)
    values = np.abs(np.concatenate([np.empty(0, np.float32), *parts]))
    assert one.counts.sum() == values.size
    assert one.largest == max(values, default=0)
    if one.top:
        expected, _ = np.histogram(values.astype(np.float64), 4096, (0, one.top))
        assert np.array_equal(one.counts, expected)
        assert one.largest < one.top
        assert one.top in (2.0**-100, 2.0 ** np.frexp(one.largest)[1])


@pytest.mark.parametrize('scale', [1e-6, 0.3, 1.0, 777.0])
def test_percentile_equals_numpy_within_one_bin(scale):
    values = np.random.default_rng(0).normal(0, scale, 200_000).astype(np.float32)
    histogram = histogram_of(*np.split(values, 8))
    expected = np.percentile(np.abs(values), PERCENTILE)
    assert abs(histogram.choose_range('percentile') - expected) <= histogram.top / 4096
    assert histogram.choose_range('minmax') == np.abs(values).max()


def test_one_outlier_widens_only_the_minmax_range():
    values = np.random.default_rng(1).laplace(0, 1, 100_000).astype(np.float32)
    values = np.append(values, np.float32(500))
    histogram = histogram_of(values)
    assert histogram.choose_range('minmax') == 500
    assert histogram.choose_range('percentile') < 15
    assert histogram.choose_range('entropy') < 50


def test_smallest_floats_are_counted():
    histogram = histogram_of([1e-45, 0], [1e-38])
    assert histogram.counts.sum() == 3
    assert histogram.choose_range('minmax') == pytest.approx(1e-38)
    histogram.add(np.float32([1]))
    assert histogram.counts[2048] == 1  # bins from 0 to 2


def test_entropy_keeps_the_range_of_a_uniform_distribution():
    values = np.random.default_rng(2).uniform(-3, 3, 400_000).astype(np.float32)
    assert histogram_of(values).choose_range('entropy') > 2.8


@pytest.mark.parametrize('name', ['normal', 'laplace', 'logistic'])
def test_entropy_agrees_with_onnx_runtime(name):
    # Importing the calibrators takes 1 s, so processes that only collect tests skip the import.
    from onnxruntime.quantization.calibrate import HistogramCollector

    draw = getattr(np.random.default_rng(3), name)(size=100_000).astype(np.float32)
    values = np.concatenate([draw, -draw])  # ONNX Runtime counts signed values
    top = float(np.abs(values).max())
    histogram, edges = np.histogram(values, 2 * 800 + 1, (-top, top))
    theirs = HistogramCollector('entropy', True, 0, 128, 0, None).get_entropy_threshold(
        (histogram, edges.astype(np.float32), np.float32(-top), np.float32(top)), 256
    )
    # Both divergences are flat around their minimum, so the bins decide the result.
    assert histogram_of(values).choose_range('entropy') == pytest.approx(
        float(theirs[1]), rel=0.25
    )


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_refused(bad):
    with pytest.raises(ValueError, match='NaN'):
        histogram_of([1.0, bad])
