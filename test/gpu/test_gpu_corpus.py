# SPDX-License-Identifier: Apache-2.0
"""The kernels read the fuzzer's valid frames correctly and never read past the frame.

scripts/sanitize --corpus runs these tests under compute-sanitizer.
"""

import functools

import numpy as np
import pytest
from test_gpu_kernels import run_letterbox, spec_for

from support.fuzz.frame_corpus import frame_cases
from support.gpu.gpu_support import needs_gpu
from trt_perception import gpu
from trt_perception.model.pipeline_options import DecodingLimits
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.stages.gpu_kernels import FrameKernels
from trt_perception.stages.host_preprocess import HostPreprocessor

pytestmark = needs_gpu


@functools.cache
def cases():
    return [case for case in frame_cases(1800) if not case.faults]


def test_corpus_covers_all_encodings_and_sizes():
    assert len(cases()) > 400
    assert len({case.encoding for case in cases()}) == 18
    assert max(case.width for case in cases()) == max(case.height for case in cases()) == 32767
    assert min(case.width * case.height for case in cases()) == 1
    assert all(case.frame().data.size == len(case.data) for case in cases())


@pytest.mark.timeout(3600)
@pytest.mark.parametrize('antialias', [False, True])
@pytest.mark.parametrize('resize', ['letterbox', 'stretch'])
def test_valid_frames_give_the_same_input_as_on_the_host(resize, antialias):
    spec = spec_for(Preprocessing((96, 64), resize, antialias=antialias))
    kernels = FrameKernels(gpu.Device(0), spec, DecodingLimits())
    host = HostPreprocessor(spec.preprocessing)
    for case in cases():
        frame = case.frame()
        expected, _ = host(frame)
        # Header and pixels fill a buffer of exactly their size.
        found = run_letterbox(kernels, spec, frame)
        assert np.abs(found - expected).max() <= 1 / 255 + 1e-6, case.name
    kernels.close()
