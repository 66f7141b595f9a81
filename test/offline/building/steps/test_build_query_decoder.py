# SPDX-License-Identifier: Apache-2.0
"""build_engine warns about a transformer decoder in FP16. An option keeps it in FP32."""

import json

import onnx
import pytest

from support.gpu.gpu_support import BUILT_ON_CPU_MARKS
from support.models.detector_models import parsed_models
from support.models.digits import ROOT, SCENES
from trt_perception.offline.building.steps import agreement_gate

EXPORTS = ROOT / 'test' / 'data' / 'exports'

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = [*BUILT_ON_CPU_MARKS, pytest.mark.usefixtures('reuse_equal_plans')]


def test_convolutional_model_has_no_query_decoder(build):
    build_result = build()
    assert 'query_decoder' not in build_result.report['optimization']
    assert not [text for text in build_result.report['warnings'] if 'queries' in text]


@pytest.mark.parametrize('family', ['rt_detr', 'detr'])
def test_query_decoder_in_fp16_gives_a_warning_and_can_be_kept_in_fp32(
    build, tmp_path, monkeypatch, family, golden_messages
):
    path = EXPORTS / family / 'model.onnx'
    first = build(onnx_file=path)
    assert first.code == 0
    decoder_report = first.report['optimization']['query_decoder']
    (warning,) = [text for text in first.report['warnings'] if 'queries' in text]
    golden_messages.add(warning.replace(f' {decoder_report["nodes"]} ', ' SOME '))
    config = tmp_path / 'build.yaml'
    config.write_text(json.dumps({'keep_fp32': decoder_report['keep_fp32']}))
    parsed = parsed_models(monkeypatch)
    second = build('--config', config, onnx_file=path)
    assert second.code == 0
    assert not [text for text in second.report['warnings'] if 'queries' in text]
    inferred = onnx.shape_inference.infer_shapes(parsed[0]).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.value_info, *inferred.output)
    }
    narrow = onnx.TensorProto.FLOAT16
    kept_names = set(decoder_report['keep_fp32'])
    outputs = [n.output[0] for n in parsed[0].graph.node if n.name in kept_names]
    assert len(outputs) == decoder_report['nodes']
    assert narrow not in {types[name] for name in outputs}
    assert narrow in types.values()
    assert not [
        text
        for text in build('--precision', 'fp32', onnx_file=path).report['warnings']
        if 'queries' in text
    ]


def test_query_decoder_that_agrees_on_the_gpu_gives_no_warning(build, gpu_that_runs, monkeypatch):
    path = EXPORTS / 'rt_detr' / 'model.onnx'
    gpu_that_runs(path)
    monkeypatch.setattr(agreement_gate, 'MIN_DETECTIONS', 1)
    build_result = build('--validate', SCENES / 'scene_00?.jpg', onnx_file=path)
    assert build_result.code == 0
    assert build_result.report['agreement']['f1'] == 1
    assert build_result.report['optimization']['query_decoder']['nodes'] > 100
    assert not [text for text in build_result.report['warnings'] if 'queries' in text]
