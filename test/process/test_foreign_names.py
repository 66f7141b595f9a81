# SPDX-License-Identifier: Apache-2.0
"""Tests of names from other packages: each program answers with the name here."""

import pytest

from trt_perception.errors import ConfigError
from trt_perception.offline.building.options.sources import load_options
from trt_perception.offline.tools import build_engine, detect_images, evaluate_engine
from trt_perception.offline.tools.parts.model_arguments import read_parameters
from trt_perception.parameters.camera import suggest_parameter, unknown_parameter
from trt_perception.parameters.launch_arguments import launch_arguments, unknown_arguments
from trt_perception.parameters.spelling import parameter_named
from trt_perception.parameters.values import PARAMETERS, ParameterValues
from trt_perception.process.foreign_names import (
    FOREIGN_NAMES,
    OURS_OUTSIDE_THE_TABLE,
    foreign_names,
)

NAMES = {row.name for row in PARAMETERS}
FOREIGN = [(name, row) for row in FOREIGN_NAMES for name in row.names]
# Parameters and launch arguments that users of these packages set.
PEERS = {
    'yolo_ros': 'model_type model model_repo model_filename force_download device provider '
    'trt_fp16_enable trt_engine_cache_enable trt_engine_cache_path threshold iou max_det enable '
    'image_reliability input_image_topic n_threads max_fps top_k tracker use_tracking use_3d '
    'use_debug imgsz_height imgsz_width half agnostic_nms augment yolo_encoding camera_names '
    'image_topics max_batch_size detections_topic',
    'Ultralytics': 'model conf iou max_det imgsz device half int8 classes agnostic_nms augment '
    'show visualize tracker workspace conf_thres iou_thres weights',
    'Isaac ROS': 'model_file_path engine_file_path force_engine_update input_tensor_names '
    'output_tensor_names input_binding_names output_binding_names custom_plugin_lib '
    'max_workspace_size max_batch_size enable_fp16 input_image_width input_image_height '
    'network_image_width network_image_height input_encoding enable_padding image_mean '
    'image_stddev num_classes nms_threshold input_qos image_input_topic label_list',
    'Autoware': 'model_path label_path precision score_threshold nms_threshold gpu_id dla_core_id '
    'build_only calibration_algorithm',
    'ros_deep_learning': 'model_name model_path class_labels_path input_blob output_cvg '
    'output_bbox threshold mean_pixel_value',
}


@pytest.mark.parametrize(
    ('package', 'name'), [(key, name) for key, names in PEERS.items() for name in names.split()]
)
def test_each_name_of_a_peer_is_answered(package, name):
    assert foreign_names(name) is not None


def test_foreign_names_are_unique_and_no_names_of_ours():
    names = [name for name, _ in FOREIGN]
    assert len(set(names)) == len(names)
    arguments = launch_arguments_of_the_file()
    assert not [name for name in names if name in arguments or parameter_named(name) in NAMES]


@pytest.mark.parametrize(('name', 'row'), FOREIGN, ids=[name for name, _ in FOREIGN])
def test_answer_exists(name, row):
    assert row.ours in {'', *NAMES, *OURS_OUTSIDE_THE_TABLE}
    assert row.ours or row.note
    for spelling in (name, name.upper(), name.replace('_', '-')):
        assert foreign_names(spelling) is row


def launch_arguments_of_the_file():
    from pathlib import Path

    return launch_arguments(Path('share'))


@pytest.mark.parametrize('name', sorted(NAMES))
def test_part_of_a_name_suggests_no_other_quantity(name):
    words = name.replace('.', '_').split('_')
    parts = {'_'.join(words[start:stop]) for start in (0, 1) for stop in (len(words) - 1, None)}
    for part in parts - {''}:
        row = foreign_names(part)
        meant = {name, parameter_named(part), row.ours if row else ''}
        assert suggest_parameter(part) in {'', *meant}, part


SHOWN = ['model', 'threshold', 'imgsz', 'device', 'half', 'input_image_topic', 'use_tracking']


@pytest.mark.parametrize('name', [*SHOWN, 'treshold'])
def test_node_answers(name, golden_messages):
    error = unknown_parameter(name, (), lambda meant: f'-p {meant}:=x')
    golden_messages.add(str(error))


@pytest.mark.parametrize('name', SHOWN)
def test_launch_file_answers(name, golden_messages):
    near, _ = unknown_arguments([f'{name}:=x'], launch_arguments_of_the_file())
    golden_messages.add(near[0])


@pytest.mark.parametrize('name', SHOWN)
def test_program_and_param_option_answer(name, golden_messages):
    with pytest.raises(ConfigError) as caught:
        ParameterValues.from_values({name: 1})
    golden_messages.add(str(caught.value))
    with pytest.raises(ConfigError) as caught:
        read_parameters([f'{name}=1'])
    golden_messages.add(str(caught.value))


@pytest.mark.parametrize(
    ('tool', 'words'),
    [
        (detect_images, 'm.onnx --source a --output b --conf-thres 0.3'),
        (detect_images, 'm.onnx --source a --output b --score_threshold=0.3'),
        (detect_images, 'm.onnx --source a --output b --imgsz 640'),
        (detect_images, 'm.onnx --source a --output b --half'),
        (detect_images, 'm.onnx --source a --output b --names cat dog'),
        (detect_images, 'm.onnx --source a --output b threshold:=0.3'),
        (evaluate_engine, 'm.onnx --images a --class-ids 3'),
        (build_engine, 'm.onnx --imgsz 640'),
        (build_engine, 'm.onnx --fp16'),
        (build_engine, 'm.onnx --int8'),
        (build_engine, 'm.onnx --batch-size 4'),
        (build_engine, 'm.onnx --conf 0.3'),
    ],
)
def test_option_answers(tool, words, golden_messages, capsys):
    with pytest.raises(SystemExit):
        tool._parser().parse_args(words.split())
    golden_messages.add(capsys.readouterr().err.splitlines()[1])


@pytest.mark.parametrize('row', [row for row in FOREIGN_NAMES if row.builds_with])
def test_build_engine_has_the_options_that_it_suggests(row):
    words = row.builds_with.split()
    words += [''] * (len(words) == 1)
    options = vars(build_engine._parser().parse_args(['m.onnx', *words]))
    assert options[words[0].removeprefix('--')] in (words[1], [words[1]])


def test_key_of_build_yaml_answers(tmp_path, golden_messages):
    file = tmp_path / 'build.yaml'
    file.write_text('onnx: m.onnx\nimgsz: 640\nhalf: true\nnames: [a]\nconf: 0.3\n')
    with pytest.raises(ConfigError) as caught:
        load_options(file, {})
    for mistake in caught.value.mistakes:
        golden_messages.add(mistake.replace(str(tmp_path), ''))
