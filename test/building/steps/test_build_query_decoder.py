"""What a build says of the decoder of a transformer in FP16, and how it is kept in FP32."""

import json

import onnx
import pytest

from support.gpu.gpu_support import BUILT_ON_CPU
from support.models.detector_models import parsed_models
from support.models.digits import ROOT, SCENES
from trt_perception.building.steps import agreement_gate

EXPORTS = ROOT / 'test' / 'data' / 'exports'

pytest_plugins = ['support.building.build_fixtures']
pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
pytestmark = [*BUILT_ON_CPU, pytest.mark.usefixtures('reuse_equal_plans')]


def test_convolutions_have_no_queries(build):
    done = build()
    assert 'query_decoder' not in done.report['optimization']
    assert not [text for text in done.report['warnings'] if 'queries' in text]


@pytest.mark.parametrize('family', ['rt_detr', 'detr'])
def test_a_decoder_in_fp16_is_told_and_can_be_kept(
    build, tmp_path, monkeypatch, family, golden_messages
):
    path = EXPORTS / family / 'model.onnx'
    done = build(onnx_file=path)
    assert done.code == 0
    told = done.report['optimization']['query_decoder']
    (warning,) = [text for text in done.report['warnings'] if 'queries' in text]
    golden_messages.add(warning.replace(f' {told["nodes"]} ', ' SOME '))
    config = tmp_path / 'build.yaml'
    config.write_text(json.dumps({'keep_fp32': told['keep_fp32']}))
    parsed = parsed_models(monkeypatch)
    kept = build('--config', config, onnx_file=path)
    assert kept.code == 0
    assert not [text for text in kept.report['warnings'] if 'queries' in text]
    inferred = onnx.shape_inference.infer_shapes(parsed[0]).graph
    types = {
        value.name: value.type.tensor_type.elem_type
        for value in (*inferred.value_info, *inferred.output)
    }
    narrow = onnx.TensorProto.FLOAT16
    wanted = set(told['keep_fp32'])
    outputs = [n.output[0] for n in parsed[0].graph.node if n.name in wanted]
    assert len(outputs) == told['nodes']
    assert narrow not in {types[name] for name in outputs}
    assert narrow in types.values()
    assert not [
        text
        for text in build('--precision', 'fp32', onnx_file=path).report['warnings']
        if 'queries' in text
    ]


def test_a_decoder_that_did_well_on_the_gpu_is_not_warned_of(build, gpu_that_runs, monkeypatch):
    path = EXPORTS / 'rt_detr' / 'model.onnx'
    gpu_that_runs(path)
    monkeypatch.setattr(agreement_gate, 'MIN_DETECTIONS', 1)
    done = build('--validate', SCENES / 'scene_00?.jpg', onnx_file=path)
    assert done.code == 0
    assert done.report['agreement']['f1'] == 1
    assert done.report['optimization']['query_decoder']['nodes'] > 100
    assert not [text for text in done.report['warnings'] if 'queries' in text]
