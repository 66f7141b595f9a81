"""Ranges from histograms, held against NumPy and ONNX Runtime's own calibrators."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from trt_perception.building.calibration.ranges import PERCENTILE, MagnitudeHistogram

FLOATS = arrays.arrays(np.float32, st.integers(0, 40), elements=st.floats(-1e6, 1e6, width=32))


def counted(*parts):
    magnitudes = MagnitudeHistogram()
    for part in parts:
        magnitudes.add(np.asarray(part, np.float32))
    return magnitudes


def test_nothing_and_zeros():
    for magnitudes in (counted(), counted(np.zeros((2, 3))), counted([])):
        assert [magnitudes.choose_range(m) for m in ('minmax', 'percentile', 'entropy')] == [0] * 3


@settings(deadline=None)
@given(st.lists(FLOATS, max_size=5))
def test_the_order_of_arrays_does_not_matter(parts):
    one, other = counted(*parts), counted(*reversed(parts))
    together = counted(np.concatenate([np.empty(0, np.float32), *parts]))
    for magnitudes in (other, together):
        assert np.array_equal(one.counts, magnitudes.counts)
        assert (one.top, one.largest) == (magnitudes.top, magnitudes.largest)
    values = np.abs(np.concatenate([np.empty(0, np.float32), *parts]))
    assert one.counts.sum() == values.size
    assert one.largest == max(values, default=0)
    if one.top:
        expected, _ = np.histogram(values.astype(np.float64), 4096, (0, one.top))
        assert np.array_equal(one.counts, expected)
        assert one.largest < one.top
        assert one.top in (2.0**-100, 2.0 ** np.frexp(one.largest)[1])


@pytest.mark.parametrize('scale', [1e-6, 0.3, 1.0, 777.0])
def test_percentile_is_numpys_within_a_bin(scale):
    values = np.random.default_rng(0).normal(0, scale, 200_000).astype(np.float32)
    magnitudes = counted(*np.split(values, 8))
    expected = np.percentile(np.abs(values), PERCENTILE)
    assert abs(magnitudes.choose_range('percentile') - expected) <= magnitudes.top / 4096
    assert magnitudes.choose_range('minmax') == np.abs(values).max()


def test_one_outlier_does_not_stretch_the_range():
    values = np.random.default_rng(1).laplace(0, 1, 100_000).astype(np.float32)
    values = np.append(values, np.float32(500))
    magnitudes = counted(values)
    assert magnitudes.choose_range('minmax') == 500
    assert magnitudes.choose_range('percentile') < 15
    assert magnitudes.choose_range('entropy') < 50


def test_the_smallest_floats_are_counted():
    magnitudes = counted([1e-45, 0], [1e-38])
    assert magnitudes.counts.sum() == 3
    assert magnitudes.choose_range('minmax') == pytest.approx(1e-38)
    magnitudes.add(np.float32([1]))
    assert magnitudes.counts[2048] == 1  # of bins from 0 to 2


def test_entropy_keeps_a_flat_distribution_whole():
    values = np.random.default_rng(2).uniform(-3, 3, 400_000).astype(np.float32)
    assert counted(values).choose_range('entropy') > 2.8


@pytest.mark.parametrize('name', ['normal', 'laplace', 'logistic'])
def test_entropy_agrees_with_onnx_runtime(name):
    # It takes a second to import: not for every process that only collects this file.
    from onnxruntime.quantization.calibrate import HistogramCollector

    draw = getattr(np.random.default_rng(3), name)(size=100_000).astype(np.float32)
    values = np.concatenate([draw, -draw])  # it looks at both signs, we at magnitudes
    top = float(np.abs(values).max())
    histogram, edges = np.histogram(values, 2 * 800 + 1, (-top, top))
    theirs = HistogramCollector('entropy', True, 0, 128, 0, None).get_entropy_threshold(
        (histogram, edges.astype(np.float32), np.float32(-top), np.float32(top)), 256
    )
    # Both curves are flat around their minimum, where bins decide.
    assert counted(values).choose_range('entropy') == pytest.approx(float(theirs[1]), rel=0.25)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused(bad):
    with pytest.raises(ValueError, match='NaN'):
        counted([1.0, bad])
