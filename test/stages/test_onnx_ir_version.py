# SPDX-License-Identifier: Apache-2.0
"""Tests of ONNX files whose IR version is newer than ONNX Runtime."""

import pytest

from support.models.support_models import tiny_onnx
from support.optional_packages import needs
from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import read_model_file
from trt_perception.stages.onnx_runtime import OnnxModel

pytestmark = needs('onnx')


@pytest.mark.parametrize(
    ('version', 'is_newer'), [(8, False), (10, False), (100, True), (127, True), (300, False)]
)
def test_newer_ir_version_has_its_own_fix(tmp_path, version, is_newer):
    import onnx

    model = onnx.load_model_from_string(tiny_onnx())
    # A model that ONNX Runtime refuses for another reason, too.
    model.graph.node[0].op_type = 'NoSuchOperator'
    model.ir_version = version
    path = tmp_path / 'model.onnx'
    path.write_bytes(model.SerializeToString())
    with pytest.raises(EngineError) as caught:
        OnnxModel(read_model_file(path), 1)
    assert bool(caught.value.fix) is is_newer
