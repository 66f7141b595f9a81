# SPDX-License-Identifier: Apache-2.0
"""Names of parameters in other packages, and what this package calls the same thing.

A user who comes from another package types its names. An exact name of this table is answered
before a similar name is searched, because a similar name may be another quantity: ``threshold``
resembles ``iou_threshold``, but means a score. The names are those of yolo_ros, Ultralytics, Isaac
ROS, Autoware's tensorrt_yolox, ros_deep_learning, and their usual variants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# Options of commands whose names differ from the parameter.
_OPTIONS_BY_PARAMETER: Final = {
    'engine_path': '--model',
    'confidence_threshold': '--confidence',
    'iou_threshold': '--iou',
    'class_filter': '--classes',
    'device_ids': '--device',
    'tracker.type': '--track',
}


@dataclass(frozen=True)
class ForeignNames:
    """The names of one thing in other packages.

    Attributes:
        names: the foreign names, in lower case with underscores.
        ours: the parameter or argument of detect.launch.py; empty if there is none.
        note: how the meaning differs, or what to do if there is no such parameter. Empty if the
            value can stay as it is.
        builds_with: the option of build_engine, with its value unless the user gives one; empty if
            there is none.
    """

    names: tuple[str, ...]
    ours: str
    note: str = ''
    builds_with: str = ''

    @property
    def option(self) -> str:
        """The option of the commands that have one for the parameter; empty without parameter."""
        if not self.ours:
            return ''
        plain = self.ours.removeprefix('model.').replace('_', '-').replace('.', '-')
        return _OPTIONS_BY_PARAMETER.get(self.ours, f'--{plain}')

    def fix(self, line: Callable[[str], str], spell: Callable[[str], str] = str) -> str:
        """Return what the user should do instead, as the fix of an error.

        Args:
            line: returns what the user pastes, from the name of the parameter. Used if the value
                can stay.
            spell: returns the spelling of a parameter's name in the user's program.
        """
        if not self.ours:
            return f'no such parameter here: {self.note}'
        if self.note:
            return f'set {spell(self.ours)} instead: {self.note}'
        return f'did you mean {line(self.ours)}'


_PRECISION: Final = (
    'an engine has its precision since the build (build_engine --precision fp16 or int8), and an '
    'ONNX file since the export'
)
_BUILT: Final = 'the node builds no engines: run build_engine first'
_FLAT: Final = (
    'boxes are in pixels of the image; for boxes in metres, start detections_3d.launch.py with '
    'depth_topic and camera_info_topic'
)
_HUB: Final = 'nothing is downloaded; set engine_path to a file'

#: The table. docs/parameters.md shows it.
FOREIGN_NAMES: Final = (
    ForeignNames(
        (
            *('model', 'model_path', 'model_file', 'model_file_path', 'weights', 'weights_path'),
            *('engine', 'engine_file', 'engine_file_path', 'onnx', 'onnx_path', 'onnx_file'),
            *('yolo_model', 'trt_engine_path', 'checkpoint'),
        ),
        'engine_path',
    ),
    ForeignNames(
        (
            *('threshold', 'conf', 'confidence', 'conf_thres', 'conf_thresh', 'conf_threshold'),
            *('confidence_thresh', 'confidence_thres', 'score_threshold', 'score_thresh'),
            *('score_thr', 'min_score', 'min_confidence', 'detection_threshold'),
        ),
        'confidence_threshold',
    ),
    ForeignNames(
        (
            *('iou', 'iou_thres', 'iou_thresh', 'nms_threshold', 'nms_thresh', 'nms_thres'),
            *('nms_iou', 'nms_iou_threshold', 'overlap_threshold'),
        ),
        'iou_threshold',
    ),
    ForeignNames(('max_det', 'max_dets', 'max_objects', 'max_boxes'), 'max_detections'),
    ForeignNames(('top_k', 'topk'), 'classification.top_k'),
    ForeignNames(
        ('classes', 'class_ids', 'filter_classes', 'allowed_classes', 'target_classes'),
        'class_filter',
        'a list of names of classes, not of their numbers',
    ),
    ForeignNames(
        ('agnostic_nms', 'agnostic', 'nms_agnostic', 'class_agnostic'), 'class_agnostic_nms'
    ),
    ForeignNames(('names', 'labels', 'label_list', 'class_list'), 'model.class_names'),
    ForeignNames(
        (
            *('label_path', 'labels_path', 'label_file', 'labels_file', 'class_labels_path'),
            *('class_names_path', 'names_file', 'names_path'),
        ),
        'model.class_names',
        'a list of names, not a file; write_manifest --class-names-file reads a file',
    ),
    ForeignNames(
        ('num_classes', 'number_of_classes', 'nc'), '', "the model's outputs have this number"
    ),
    ForeignNames(
        ('model_type', 'task_type'),
        'model.task',
        'the task, such as detect, and only if the model does not tell it',
    ),
    ForeignNames(
        (
            *('imgsz', 'img_size', 'image_size', 'imgsz_height', 'imgsz_width', 'input_shape'),
            *('input_width', 'input_height', 'network_image_width', 'network_image_height'),
            *('inference_input_shape', 'network_size'),
        ),
        'model.input_size',
        'width and height, and only if the model accepts several sizes',
    ),
    ForeignNames(
        ('input_image_width', 'input_image_height', 'image_width', 'image_height'),
        '',
        'each image states its size',
    ),
    ForeignNames(
        ('input_encoding', 'image_encoding', 'yolo_encoding', 'encoding'),
        '',
        'each image states its encoding',
    ),
    ForeignNames(
        ('enable_padding', 'letterbox', 'keep_aspect_ratio'),
        'model.resize',
        'letterbox, letterbox_top_left, stretch or center_crop',
    ),
    ForeignNames(('image_mean', 'mean_pixel_value'), 'model.mean', 'three numbers, after scaling'),
    ForeignNames(('image_stddev', 'image_std', 'stddev'), 'model.std', 'three numbers'),
    ForeignNames(
        (
            *('device', 'devices', 'device_id', 'gpu', 'gpus', 'gpu_id', 'gpu_ids'),
            *('cuda_device', 'tensorrt_device'),
        ),
        'device_ids',
        'a list of numbers of CUDA devices, such as [0]. On a CPU, ONNX models need no setting',
    ),
    ForeignNames(('provider', 'execution_provider'), 'onnx_provider'),
    ForeignNames(('n_threads', 'num_threads', 'threads', 'intra_op_num_threads'), 'cpu_threads'),
    ForeignNames(
        ('half', 'half_precision', 'fp16', 'enable_fp16', 'trt_fp16_enable'),
        '',
        _PRECISION,
        '--precision fp16',
    ),
    ForeignNames(('int8', 'enable_int8'), '', _PRECISION, '--precision int8'),
    ForeignNames(('precision', 'inference_precision'), '', _PRECISION, '--precision'),
    ForeignNames(
        ('batch_size', 'max_batch_size', 'max_batch'),
        '',
        'the model file decides: build_engine --batch 4 builds an engine for 4 images at once',
        '--batch',
    ),
    ForeignNames(
        (
            *('force_engine_update', 'build_only', 'auto_build_engine', 'engine_cache_dir'),
            *('trt_engine_cache_enable', 'trt_engine_cache_path', 'max_workspace_size'),
            *('workspace', 'workspace_size', 'dla_core_id', 'calibration_algorithm'),
        ),
        '',
        _BUILT,
    ),
    ForeignNames(('custom_plugin_lib', 'plugin_lib'), 'plugin_libraries', 'a list of paths'),
    ForeignNames(
        (
            *('input_tensor_names', 'output_tensor_names', 'input_binding_names'),
            *('output_binding_names', 'input_blob', 'output_cvg', 'output_bbox'),
        ),
        '',
        'the model states its inputs and outputs; model.decoder tells how they are read',
    ),
    ForeignNames(('model_name', 'model_repo', 'model_filename', 'force_download'), '', _HUB),
    ForeignNames(
        (
            *('image', 'image_topics', 'input_image_topic', 'image_input_topic', 'input_topic'),
            *('input_image', 'camera_topic', 'rgb_topic', 'color_topic', 'src_image_topic_name'),
            *('sub_image_topic', 'image_raw'),
        ),
        'image_topic',
    ),
    ForeignNames(('camera_names',), 'cameras'),
    ForeignNames(
        ('detections_topic', 'detection_topic', 'detections_output', 'output_topic'),
        '',
        'remap the topic detections, with -r detections:=/its/topic',
    ),
    ForeignNames(
        ('image_reliability', 'input_qos', 'sub_reliability'),
        'image_qos.reliability',
        'auto, reliable or best_effort',
    ),
    ForeignNames(
        ('queue_size', 'qos_depth', 'input_queue_size', 'image_queue_size'), 'image_qos.depth'
    ),
    ForeignNames(
        ('use_compressed_images', 'use_compressed', 'use_decompress'),
        'image_transport',
        'raw, compressed or auto',
    ),
    ForeignNames(('max_fps', 'fps', 'max_inference_fps', 'rate_limit'), 'max_rate_hz'),
    ForeignNames(('enable',), 'enabled'),
    ForeignNames(('sim_time',), 'use_sim_time'),
    ForeignNames(
        ('use_debug', 'debug', 'publish_debug_image', 'visualize', 'show'),
        '',
        'the topic debug_image has the picture while somebody subscribes to it',
    ),
    ForeignNames(
        ('use_tracking', 'tracking', 'tracker', 'track'),
        'tracker.type',
        'none or bytetrack',
    ),
    ForeignNames(
        ('track_high_thresh', 'track_thresh', 'high_conf_det_threshold'), 'tracker.high_threshold'
    ),
    ForeignNames(('track_low_thresh',), 'tracker.low_threshold'),
    ForeignNames(
        ('new_track_thresh', 'track_activation_threshold'), 'tracker.new_track_threshold'
    ),
    ForeignNames(('minimum_iou_threshold',), 'tracker.match_iou'),
    ForeignNames(('match_thresh',), 'tracker.match_iou', '1 minus this value'),
    ForeignNames(
        ('track_buffer', 'lost_track_buffer', 'max_age'),
        'tracker.max_lost_s',
        'a time in seconds, not a number of images',
    ),
    ForeignNames(('minimum_consecutive_frames', 'min_hits', 'n_init'), 'tracker.min_hits'),
    ForeignNames(('fuse_score',), '', 'scores do not change the overlap of a pair'),
    ForeignNames(
        ('with_reid', 'gmc_method'),
        '',
        'tracks use boxes only, not the appearance of objects or the motion of the camera',
    ),
    ForeignNames(
        (
            *('use_3d', 'target_frame', 'input_depth_topic', 'input_depth_info_topic'),
            *('depth_image_topic', 'depth'),
        ),
        '',
        _FLAT,
    ),
    ForeignNames(('augment',), '', 'each image runs once'),
)
#: Arguments of the launch file and of ROS that are not in the table of parameters.
OURS_OUTSIDE_THE_TABLE: Final = ('image_topic', 'use_sim_time')
_BY_NAME: Final = {name: row for row in FOREIGN_NAMES for name in row.names}


def foreign_names(word: str) -> ForeignNames | None:
    """Return the row with a foreign name, in any case and also with ``-`` for ``_``; else None."""
    return _BY_NAME.get(word.lower().replace('-', '_'))
