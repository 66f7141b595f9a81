# SPDX-License-Identifier: Apache-2.0
"""Run a check of two GPUs on the CPU, so that a mistake in the check shows without two GPUs."""

from contextlib import closing

import test_gpu_batches
from test_gpu_batches import DENSE, SIZE, check_two_gpus

from support.models.patch_model import patch_onnx, write_engine
from support.optional_packages import needs
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.pipelines.host.onnx_runtime_pipeline import OnnxRuntimePipeline


class TwoSlots(OnnxRuntimePipeline):
    """A pipeline on the CPU that accepts the slots 0 and 1, one at a time."""

    def enqueue(self, slot, frames, thresholds):
        assert slot in (0, 1)
        super().enqueue(0, frames, thresholds)

    def collect(self, slot):
        return super().collect(0)


@needs('onnx')
def test_check_of_two_gpus_opens_both_and_compares_their_boxes(tmp_path, monkeypatch):
    path = write_engine(
        tmp_path / 'model.onnx', patch_onnx(SIZE, DENSE, batch=8), SIZE, DENSE, batch=8
    )
    opened = []

    def open_on_cpu(path, **options):
        opened.append(PipelineOptions(**options).device_id)
        return closing(TwoSlots(read_model_file(path), PipelineOptions(**options)))

    compared = []
    assert_same = test_gpu_batches.assert_same
    monkeypatch.setattr(
        test_gpu_batches,
        'assert_same',
        lambda found, expected: compared.append(len(found)) or assert_same(found, expected),
    )
    assert check_two_gpus(path, open_on_cpu, turns=4) > 50
    assert opened == [0, 1]
    # 2 owners x 3 batches x 2 pipelines, then 4 turns of 2 pipelines; each batch has 8 frames.
    assert len(compared) == (2 * 3 * 2 + 4 * 2) * 8
