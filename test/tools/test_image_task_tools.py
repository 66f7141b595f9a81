"""Tools that measure and describe models accept models for the tasks of the whole image."""

import json

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from support.models.image_models import IMAGE_TASKS, tool_arguments
from trt_perception.tools.benchmark_engine import main as benchmark_engine


def change_weights(path, factors):
    """Multiply the rows of the weights in a file."""
    model = onnx.load(path)
    (weights,) = model.graph.initializer
    changed = numpy_helper.to_array(weights) * np.array(factors, np.float32).reshape(-1, 1, 1, 1)
    weights.CopyFrom(numpy_helper.from_array(changed, weights.name))
    onnx.save(model, path)


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_benchmark_has_no_boxes_and_measures_the_agreement(task, tmp_path, capsys):
    model, *parameters = tool_arguments(task, tmp_path / 'model.onnx')
    other = tool_arguments(task, tmp_path / 'other.onnx')[0]
    if task != 'depth':
        change_weights(other, [-1, -1, -1, -1])
    quick = ['--frames', '3', '--warmup', '0', '--size', '64x48']
    saved = tmp_path / 'r.json'
    words = [model, other, *parameters, *quick, '--json', saved]
    assert benchmark_engine(list(map(str, words))) == 0
    output = capsys.readouterr().out
    assert 'candidates' not in output
    assert 'differ from their first run' not in output
    report = json.loads(saved.read_text())
    for model in report['models']:
        assert model['candidates'] == []
        assert model['pipelines'][0]['detections'] is None
        assert model['pipelines'][0]['unequal'] == 0
    (agreement,) = report['agreement']
    assert agreement['images'] == 8
    if task == 'depth':
        assert (agreement['mean'], agreement['lowest']) == (1, 1)
    else:
        assert agreement['mean'] < 0.5, 'opposite logits have other best classes'
