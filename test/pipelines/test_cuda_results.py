# SPDX-License-Identifier: Apache-2.0
"""Tests of reading the kernels' results from pinned memory, without a GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from support.oracles.task_outputs import TASKS, spec_of
from trt_perception.errors import OutputError
from trt_perception.images.letterbox import Letterbox
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.thresholds import Thresholds
from trt_perception.pipelines.cuda import results as cuda_results
from trt_perception.stages.gpu_kernels import HEAD_DTYPE, ROW_DTYPE

SAME = Letterbox.fit((640, 640), (640, 640), 'stretch')


@pytest.fixture
def collect_rows(monkeypatch):
    """Return a function that writes rows as the kernels do, and returns the collected result."""
    kernels = SimpleNamespace(
        scratch_bytes=64,
        result_bytes=HEAD_DTYPE.itemsize + 8 * ROW_DTYPE.itemsize,
        result_row=ROW_DTYPE,
        has_mask_kernel=False,
        limits=DecodingLimits(max_candidates=96),
    )
    spec = spec_of(TASKS['detect'], (640, 640), 5, 8400)
    memory = np.zeros(kernels.result_bytes, np.uint8)
    pinned = nullcontext(SimpleNamespace(array=memory))
    scratch = nullcontext(SimpleNamespace(pointer=0, size=64))
    monkeypatch.setattr(cuda_results, 'PinnedBuffer', lambda size: pinned)
    monkeypatch.setattr(cuda_results, 'DeviceBuffer', lambda size: scratch)
    monkeypatch.setattr(cuda_results, 'clear_async', lambda *_: None)
    result = cuda_results.KernelDecoder(kernels, spec, None, None)

    def read_results(*scores, all_nan=False, passed=None):
        head = memory[: HEAD_DTYPE.itemsize].view(HEAD_DTYPE)
        passed = len(scores) if passed is None else passed
        head[0] = len(scores), passed, max(scores, default=0), all_nan
        rows = memory[HEAD_DTYPE.itemsize :].view(ROW_DTYPE)
        rows['score'][: len(scores)] = scores
        rows['xyxy'][:] = [10, 20, 30, 40]
        (found,) = result.read_results(spec, [SAME], [Thresholds()])
        return found

    return read_results


def test_result_does_not_change_with_the_pinned_memory(collect_rows):
    found = collect_rows(0.9, 0.5)
    collect_rows(0.1, 0.1)
    assert found.scores.tolist() == pytest.approx([0.9, 0.5])
    assert found.xyxy.tolist() == [[10, 20, 30, 40]] * 2
    assert len(collect_rows()) == 0


@pytest.mark.parametrize(('passed', 'left_out'), [(1, 0), (96, 0), (97, 1), (8400, 8304)])
def test_boxes_that_the_kernels_left_out_are_counted(collect_rows, passed, left_out):
    assert collect_rows(0.9, passed=passed).left_out == left_out


def test_scores_outside_0_to_1_are_an_error(collect_rows, golden_messages):
    with golden_messages.raises(OutputError):
        raise collect_rows(6.5, 0.9)


def test_scores_that_are_all_nan_are_an_error(collect_rows, golden_messages):
    with golden_messages.raises(OutputError):
        raise collect_rows(all_nan=True)
    assert len(collect_rows()) == 0
