# SPDX-License-Identifier: Apache-2.0
"""export_triton writes models for a server. test/building/triton runs them on a server."""

import hashlib
import shutil
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from google.protobuf import text_format
from onnx import numpy_helper
from tritonclient.grpc import model_config_pb2

from support.gpu.fake_tensorrt import PLAN
from support.models.batch_models import write_digits_twin
from support.models.digits import DIGITS
from support.models.external_models import has_external_tensor
from support.models.task_comparison import write_without_metadata
from support.models.written_manifest import write_manifest
from support.optional_packages import needs
from trt_perception.errors import WriteError
from trt_perception.files import atomic_files
from trt_perception.model.build_record import FileIdentity, ProfileRange
from trt_perception.model.decoders.anchors import Dense
from trt_perception.model.decoders.final_boxes import OnnxNms, Tensorflow
from trt_perception.model.files.model_file import read_model_file
from trt_perception.model.manifest import manifest_path, parse_manifest, serialise_manifest
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.building.triton.model_repository import (
    ServerOptions,
    write_served_model,
)
from trt_perception.offline.tools.export_triton import main
from trt_perception.stages.triton.connection import MANIFEST_PARAMETER

pytestmark = needs('onnx', 'tritonclient')

NAMES = ('red', 'green', 'blue')
DENSE = Dense(objectness=False, transposed=False)
IMAGE, OUTPUT = ('images', (-1, 3, 48, 64), 'float32'), ('output0', (-1, 7, 20), 'float32')


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    """Work in a folder with models. Return the folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS, 'digits.onnx')
    shutil.copy(manifest_path(DIGITS), 'digits.onnx.json')
    write_without_metadata(tmp_path / 'digits.onnx', 'plain.onnx')
    return tmp_path


def write_engine(path, *, profiles=(), content=PLAN, dtype='float32'):
    """Write an engine for up to 2, 4, … images, and its manifest."""
    path.write_bytes(content)
    image = (*IMAGE[:2], dtype)
    # Any plugin, so that the manifest has a section of the build.
    plugin = read_model_file(DIGITS).manifest.onnx
    write_manifest(path, (64, 48), image, OUTPUT, DENSE, NAMES, [plugin])
    manifest = read_model_file(path).manifest
    ranges = [
        {'images': ProfileRange(*((batch, 3, 48, 64) for batch in (low, high, high)))}
        for low, high in profiles
    ]
    object.__setattr__(manifest.build, 'profiles', tuple(ranges))
    manifest_path(path).write_bytes(serialise_manifest(manifest))
    return path


def run_export_triton(*words):
    try:
        return main([str(word) for word in words])
    except SystemExit as end:
        return end.code


def configuration(folder):
    text = (folder / 'config.pbtxt').read_text()
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def identity(path):
    content = path.read_bytes()
    return FileIdentity(path.name, hashlib.sha256(content).hexdigest(), len(content))


def stored_manifest(folder):
    text = configuration(folder).parameters[MANIFEST_PARAMETER].string_value
    return parse_manifest(text.encode(), 'stored')


def test_files_are_complete(in_folder, capsys, golden_messages):
    assert run_export_triton('digits.onnx', '--repository', 'models') == 0
    golden_messages.add(capsys.readouterr().out)
    folder = in_folder / 'models/digits'
    files = {path.relative_to(folder).as_posix() for path in folder.rglob('*') if path.is_file()}
    assert files == {'config.pbtxt', 'labels.txt', '1/model.onnx'}
    assert (folder / '1/model.onnx').read_bytes() == DIGITS.read_bytes()
    assert (folder / 'labels.txt').read_text() == ''.join(f'{name}\n' for name in range(10))
    assert configuration(folder).backend == 'onnxruntime'
    # A file next to which this manifest lies is accepted.
    shutil.copy(folder / '1/model.onnx', 'model.onnx')
    (in_folder / 'model.onnx.json').write_bytes(serialise_manifest(stored_manifest(folder)))
    assert read_model_file('model.onnx').manifest == stored_manifest(folder)


def test_options_describe_a_model_without_a_manifest(in_folder):
    words = ['--class-names', *NAMES, *'4567890', '--param', 'model.scale=0.5']
    words += ['--param', 'model.decoder=dense', '--param', 'model.resize=letterbox']
    words += ['--param', 'model.color_order=bgr', '--name', 'named', '--model-version', '3']
    words += ['--queue-delay-ms', '7', '--queue-timeout-ms', '9', '--no-warm-up']
    assert run_export_triton('plain.onnx', '--repository', '.', *words) == 0
    manifest = stored_manifest(in_folder / 'named')
    assert manifest.class_names == (*NAMES, *'4567890')
    assert manifest.preprocessing.scale == 0.5
    assert manifest.preprocessing.color_order == 'bgr'
    assert (in_folder / 'named/3/model.onnx').is_file()
    config = configuration(in_folder / 'named')
    assert list(config.version_policy.specific.versions) == [3]
    batching = config.dynamic_batching
    assert batching.max_queue_delay_microseconds == 7000
    assert batching.default_queue_policy.default_timeout_microseconds == 9000
    assert not config.model_warmup


def test_weights_of_another_file_become_part_of_the_model(in_folder):
    plain = onnx.load('plain.onnx')
    weights = [numpy_helper.to_array(each) for each in plain.graph.initializer]
    onnx.save(plain, 'outside.onnx', save_as_external_data=True, location='w', size_threshold=0)
    image, output = ('images', (1, 3, 480, 640)), ('output0', (1, 14, 6000))
    path, names = in_folder / 'outside.onnx', tuple('0123456789')
    write_manifest(path, (640, 480), (*image, 'float32'), (*output, 'float32'), DENSE, names)
    assert run_export_triton('outside.onnx', '--repository', '.', '--name', 'whole') == 0
    served = onnx.load('whole/1/model.onnx', load_external_data=False)
    assert not has_external_tensor(served)
    found = [numpy_helper.to_array(each) for each in served.graph.initializer]
    assert len(weights) > 0
    for one, other in zip(found, weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_engine_gets_its_profiles_and_gpus(in_folder, capsys, golden_messages):
    engine = write_engine(in_folder / 'a.engine', profiles=[(1, 2), (3, 6)])
    words = ['--cuda-graphs', '--gpus', '0', '2', '--instances', '2']
    assert run_export_triton(engine, '--repository', 'models', *words) == 0
    golden_messages.add(capsys.readouterr().out)
    config = configuration(in_folder / 'models/a')
    assert config.max_batch_size == 6
    (group,) = config.instance_group
    assert (group.kind, group.count) == (model_config_pb2.ModelInstanceGroup.KIND_GPU, 2)
    assert (list(group.gpus), list(group.profile)) == ([0, 2], ['0', '1'])
    assert not config.dynamic_batching.HasField('default_queue_policy')
    assert config.HasField('dynamic_batching')
    plan = in_folder / 'models/a/1/model.plan'
    assert plan.read_bytes() == PLAN
    assert stored_manifest(in_folder / 'models/a').engine == identity(plan)


def outputs_of_tensorflow(batch, number):
    shapes = {'boxes': (batch, 9, 4), 'classes': (batch, 9), 'scores': (batch, 9)}
    shapes = {f'detection_{name}': shape for name, shape in shapes.items()}
    return [
        TensorSpec(name, shape, 'float32')
        for name, shape in {**shapes, 'num_detections': (number,)}.items()
    ]


@pytest.mark.parametrize(
    ('decoder', 'outputs'),
    [
        (DENSE, [TensorSpec('output0', (1, 14, 6000), 'float32')]),
        (Tensorflow(), outputs_of_tensorflow(-1, -1)),  # a number for each image
        (
            OnnxNms(box_format='xyxy'),
            [
                TensorSpec('boxes', (-1, 9, 4), 'float32'),
                TensorSpec('scores', (-1, 10, 9), 'float32'),
                TensorSpec('selected_indices', (-1, 3), 'int64'),
            ],
        ),
    ],
)
def test_output_without_open_batch_or_values_prevents_batches(in_folder, decoder, outputs):
    model = read_model_file(write_digits_twin(in_folder / 'twin.onnx', 0))
    manifest = replace(model.manifest, decoder=decoder, outputs=tuple(outputs))
    folder = in_folder / 'models/twin'
    write_served_model(model, manifest, folder, 1, ServerOptions(), uint8=False)
    config = configuration(folder)
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [-1, 3, 480, 640]
    assert [list(warm_up.inputs['images'].dims) for warm_up in config.model_warmup] == [
        [1, 3, 480, 640]
    ]


def test_overwrite_replaces_an_export(in_folder):
    assert run_export_triton('digits.onnx', '--repository', '.') == 0
    assert (
        run_export_triton('digits.onnx', '--repository', '.', '--overwrite', '--input', 'uint8')
        == 0
    )
    (image,) = configuration(in_folder / 'digits').input
    assert image.data_type == model_config_pb2.TYPE_UINT8
    model = in_folder / 'digits/1/model.onnx'
    assert model.read_bytes() != DIGITS.read_bytes()
    assert stored_manifest(in_folder / 'digits').onnx == identity(model)


def test_failed_write_leaves_nothing(in_folder, monkeypatch, capsys):
    before = sorted(in_folder.rglob('*'))
    renames = []

    def rename(path, target):
        renames.append(target)
        if len(renames) == 3:
            raise OSError(28, 'No space left on device')
        return original(path, target)

    original = atomic_files.Path.replace
    monkeypatch.setattr(atomic_files.Path, 'replace', rename)
    assert run_export_triton('digits.onnx', '--repository', 'models') == 1
    assert WriteError.__name__ not in capsys.readouterr().err
    assert sorted(in_folder.rglob('*')) == before


@pytest.mark.parametrize(
    ('words', 'code'),
    [
        ('gone.onnx', 2),
        ('digits.onnx --name a/1', 2),
        ('digits.onnx --name ..', 2),
        ('digits.onnx --class-names a', 2),
        ('digits.onnx --param model.scale=1', 2),
        ('digits.onnx --cuda-graphs', 2),
        ('digits.onnx --queue-delay-ms -1', 2),
        ('digits.onnx --instances 0', 2),
        ('digits.onnx --max-batch 2', 1),
        ('plain.onnx', 1),
        ('rtx.engine', 2),
        ('no_plan.engine', 2),
        ('trt.engine', 1),
        ('trt.engine --input uint8', 2),
        ('profile.engine --max-batch 3', 1),
        ('bf16.engine', 1),
        ('triton://host:8001/model', 2),
    ],
)
def test_wrong_command_writes_nothing(in_folder, capsys, golden_messages, words, code):
    write_engine(in_folder / 'rtx.engine', content=b'vtrt' + PLAN[4:])
    write_engine(in_folder / 'trt.engine')
    write_engine(in_folder / 'no_plan.engine', content=b'x' * 100)
    write_engine(in_folder / 'profile.engine', profiles=[(1, 2)])
    write_engine(in_folder / 'bf16.engine', profiles=[(1, 2)], dtype='bfloat16')
    before = sorted(in_folder.rglob('*'))
    assert run_export_triton(*words.split(), '--repository', 'models') == code
    assert sorted(in_folder.rglob('*')) == before
    golden_messages.add(capsys.readouterr().err)


def test_existing_model_and_unusable_folder_are_refused(in_folder, capsys, golden_messages):
    (in_folder / 'digits').mkdir()
    for repository in ('.', 'gone/models', 'digits.onnx'):
        assert run_export_triton('digits.onnx', '--repository', repository) == 2
        golden_messages.add(capsys.readouterr().err)
    assert list((in_folder / 'digits').iterdir()) == []


def test_only_a_changed_model_needs_onnx(in_folder, monkeypatch, capsys, golden_messages):
    monkeypatch.setitem(sys.modules, 'onnx', None)
    for name in ('graph.onnx_model', 'triton.uint8_input'):
        monkeypatch.delitem(sys.modules, f'trt_perception.offline.building.{name}', raising=False)
    assert run_export_triton('digits.onnx', '--repository', 'models') == 0
    words = ['--name', 'bytes', '--input', 'uint8']
    assert run_export_triton('digits.onnx', '--repository', 'models', *words) == 1
    assert not (in_folder / 'models/bytes').exists()
    golden_messages.add(capsys.readouterr().err)


def test_missing_client_is_reported(in_folder, monkeypatch, capsys, golden_messages):
    monkeypatch.setitem(sys.modules, 'tritonclient.grpc', None)
    assert run_export_triton('digits.onnx', '--repository', 'models') == 1
    assert not (in_folder / 'models').exists()
    golden_messages.add(capsys.readouterr().err)
