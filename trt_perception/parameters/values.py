# SPDX-License-Identifier: Apache-2.0
"""All parameters of the detector node, in one typed table.

Each field of ParameterValues defines type, default, range and description of one ROS parameter.
ROS descriptors, config/detect.yaml and docs/parameters.md are generated from these fields.
Guarantee: `from_values` and `with_values` check each given value once, and return valid values.
The constructor and `replace` trust their arguments. Exception: only `thresholds` checks the class
filter against the class names, because this check needs the model.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import closest_words, names_mistake, short_repr
from trt_perception.images.results.image_limits import MAX_RESULT_PIXELS
from trt_perception.images.results.map_size import map_size_mistake
from trt_perception.model.class_filter import class_filter_ids
from trt_perception.model.decoder import Decoder, Sky
from trt_perception.model.pipeline_options import (
    ONNX_PROVIDERS,
    DecodingLimits,
    PipelineOptions,
)
from trt_perception.model.tasks.table import TASK_KEYS
from trt_perception.model.tasks.task import PARAMETERS_OF_TRACKER, Task
from trt_perception.model.thresholds import FrameParameters, Thresholds
from trt_perception.parameters.bond import BondParameters
from trt_perception.parameters.model import ModelParameters
from trt_perception.parameters.row import (
    parameter_field,
    read_value,
    table_rows,
)
from trt_perception.parameters.rules import (
    HIGHEST_RATE_HZ,
    MAX_CAMERAS,
    cameras_mistake,
    devices_mistake,
    libraries_mistake,
    rate_mistake,
)
from trt_perception.parameters.tracker import TrackerParameters
from trt_perception.parameters.triton import TritonParameters
from trt_perception.process.foreign_names import foreign_names

# Lowest similarity of a name and a slip of it, such as confidence_treshold.
_SLIP_CUTOFF: Final = 0.85

#: Parameters without effect if the images come from files or a program.
NODE_ONLY_PARAMETERS: Final = frozenset(
    {
        'autostart',
        'batch_max_delay_ms',
        'bond.enabled',
        'bond.heartbeat_period_s',
        'cameras',
        'cameras_of_other_nodes',
        'classification.top_k',
        'debug_image.max_rate_hz',
        'diagnostics_period_s',
        'enabled',
        'image_intake',
        'image_participants',
        'image_qos.depth',
        'image_qos.reliability',
        'image_transport',
        'map_size',
        'max_rate_hz',
        'nodes_on_this_machine',
        'triton.servers',
    }
)


def manifest_only_fix(name: str) -> str:
    """Return the fix for a parameter name that is only a key of manifests, otherwise ''."""
    is_key = name.removeprefix('model.').replace('model_', '') in TASK_KEYS
    return 'set this value in a manifest (docs/manifest.md) instead' if is_key else ''


def closest_parameters(word: str, known: Iterable[str]) -> list[str]:
    """Return the parameter whose name a user mistyped as this word; empty if there is none.

    A word that is only a part of a name is no slip: ``threshold`` is not ``iou_threshold``.
    """
    return closest_words(word, known, cutoff=_SLIP_CUTOFF)


@dataclass(frozen=True, kw_only=True)
class ParameterValues(
    FrameParameters, TrackerParameters, ModelParameters, TritonParameters, BondParameters
):
    """The values of all parameters. The constructor checks only rules between parameters.

    Raises:
        ConfigError: a value of the tracker contradicts another one.
    """

    confidence_threshold: float = parameter_field(
        FrameParameters.confidence_threshold,
        'Only detections with a score above this are reported.',
        limits=(0.0, 1.0),
        live=True,
        per_camera=True,
    )
    iou_threshold: float = parameter_field(
        FrameParameters.iou_threshold,
        'If the intersection over union (IoU) of two boxes of one class is above this, the box '
        'with the lower score is dropped.',
        limits=(0.0, 1.0),
        live=True,
    )
    engine_path: str = parameter_field(
        '',
        'Model to run: a TensorRT engine (.engine, .plan, .trt), an ONNX file (.onnx), or a model '
        'on a Triton server (triton://HOST:PORT/MODEL[/VERSION]).',
    )
    cameras: tuple[str, ...] = parameter_field(
        (),
        'Names of the cameras, at most 64. The camera front has the topics front/image, '
        'front/detections and others. Empty: one camera with the topics image, detections and '
        'others.',
        rule=cameras_mistake,
    )
    device_ids: tuple[int, ...] = parameter_field(
        (0,),
        'CUDA devices, each 0 to 63. Each device runs a copy of the engine for its share of the '
        'cameras. An ONNX model runs on the first one only.',
        rule=devices_mistake,
    )
    nodes_on_this_machine: int = parameter_field(
        1,
        'Number of detector nodes that share this machine. Each node takes this part of the free '
        'shared memory and of the CPU cores. The launch argument nodes sets it.',
        limits=(1, MAX_CAMERAS),
        start_only=True,
    )
    cameras_of_other_nodes: tuple[str, ...] = parameter_field(
        (),
        'Names of the cameras that other nodes with the same parameter file serve. This node '
        'ignores the start values of their camera parameters. The launch argument nodes sets it.',
        rule=cameras_mistake,
        start_only=True,
    )
    pipeline_depth: int = parameter_field(
        3,
        'Batches in flight on the GPU, or requests in flight to a Triton server. The CPU pipeline '
        'always has one.',
        limits=(1, 8),
    )
    use_cuda_graph: bool = parameter_field(
        True, 'Replay one captured CUDA graph for each batch. false: queue each CUDA call.'
    )
    batch_max_delay_ms: float = parameter_field(
        0.0,
        'Longest wait for images of other cameras before an incomplete batch runs. 0: no wait.',
        unit='ms',
        limits=(0.0, 1000.0),
    )
    onnx_provider: str = parameter_field(
        'auto',
        'Execution provider of ONNX Runtime for an ONNX model. auto: the first that works of '
        'tensorrt, cuda and cpu.',
        choices=ONNX_PROVIDERS,
    )
    cpu_threads: int = parameter_field(
        0,
        'Threads of ONNX Runtime. 0: half of the cores that the process may use, divided by '
        'nodes_on_this_machine.',
        limits=(0, 1024),
    )
    plugin_libraries: tuple[str, ...] = parameter_field(
        (),
        'TensorRT plugin libraries (.so) that the engine needs. The process keeps them loaded. An '
        'ONNX model ignores them.',
        rule=libraries_mistake,
        start_only=True,
    )
    nvtx: bool = parameter_field(
        False,
        'Mark NVTX ranges of frames, batches and stages for NVIDIA Nsight Systems. Needs the '
        'Python package nvtx.',
    )
    enabled: bool = parameter_field(
        True,
        'Process images. false: drop them with the reason disabled.',
        live=True,
        per_camera=True,
    )
    max_rate_hz: float = parameter_field(
        0.0,
        'Largest rate of processed images, at least 0.01. Further images are dropped with the '
        'reason rate_limit. 0: no limit.',
        unit='Hz',
        limits=(0.0, HIGHEST_RATE_HZ),
        rule=rate_mistake,
        live=True,
        per_camera=True,
    )
    max_detections: int = parameter_field(
        300,
        'Largest number of detections in an image, best scores first.',
        limits=(1, 1024),
    )
    class_filter: tuple[str, ...] = parameter_field(
        (),
        'Names of the classes to report. Empty: all classes.',
        rule=functools.partial(names_mistake, distinct=False),
        live=True,
        per_camera=True,
    )
    class_agnostic_nms: bool = parameter_field(
        False, 'NMS also drops overlapping boxes of different classes.'
    )
    image_transport: str = parameter_field(
        'raw',
        'raw: subscribe to sensor_msgs/Image. compressed: subscribe to '
        'sensor_msgs/CompressedImage on image/compressed. auto: compressed if the GPU decodes '
        'JPEG and that topic has a publisher at activate, else raw.',
        choices=('raw', 'compressed', 'auto'),
        per_camera=True,
    )
    image_intake: str = parameter_field(
        'auto',
        'auto: separate threads take the images without the GIL. rclpy: the executor takes the '
        'images, as in other Python nodes, with more CPU time.',
        choices=('auto', 'rclpy'),
    )
    image_participants: int = parameter_field(
        -1,
        'Further DDS participants that receive raw images, so that cameras do not wait for each '
        'other. -1: one for each of several cameras, fewer if shared memory is short. Only with '
        'rmw_fastrtps and image_intake auto.',
        limits=(-1, MAX_CAMERAS),
    )
    image_qos_reliability: str = parameter_field(
        'auto',
        'auto: start reliable, and change to best effort for a best-effort camera.',
        name='image_qos.reliability',
        choices=('auto', 'reliable', 'best_effort'),
        per_camera=True,
    )
    image_qos_depth: int = parameter_field(
        1,
        'Images that the middleware keeps. More than 1 adds latency.',
        name='image_qos.depth',
        limits=(1, 100),
        per_camera=True,
    )
    debug_image_max_rate_hz: float = parameter_field(
        10.0,
        'Largest rate of debug images, at least 0.01. 0: no debug images.',
        name='debug_image.max_rate_hz',
        unit='Hz',
        limits=(0.0, HIGHEST_RATE_HZ),
        rule=rate_mistake,
    )
    diagnostics_period_s: float = parameter_field(
        1.0, 'Time between two messages on /diagnostics.', unit='s', limits=(0.1, 60.0)
    )
    autostart: bool = parameter_field(
        False, 'Configure and activate when the node starts, and again after a fault.'
    )
    # Only some tasks read the following parameters.
    classification_top_k: int = parameter_field(
        5,
        'Number of classes in a message of a model that classifies the whole image.',
        name='classification.top_k',
        limits=(1, 1000),
    )
    map_size: str = parameter_field(
        'source',
        'Size of published class and depth maps. source: the size of the image. network: of '
        "the network's input, without padding. 400x200: width and height, at most "
        f"{MAX_RESULT_PIXELS} pixels. Nav2's semantic layer needs the size of its point cloud.",
        rule=map_size_mistake,
    )
    depth_sky: str = parameter_field(
        'far',
        'Depth of the sky. far: depth.sky_depth_m. nan: unknown.',
        name='depth.sky',
        choices=('far', 'nan'),
        live=True,
    )
    depth_sky_threshold: float = parameter_field(
        0.3,
        'Smallest value of the output sky where a pixel is sky.',
        name='depth.sky_threshold',
        limits=(0.0, 1000.0),
        live=True,
    )
    depth_sky_depth_m: float = parameter_field(
        200.0,
        'Depth of the sky.',
        name='depth.sky_depth_m',
        unit='m',
        limits=(1.0, 100000.0),
        live=True,
    )

    def __post_init__(self) -> None:
        self.check_tracker()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> ParameterValues:
        """Read values by ROS name. Other parameters keep their defaults.

        Raises:
            ConfigError: a name is unknown, or a value has the wrong type or is out of range.
        """
        return cls().with_values(values)

    def with_values(self, values: Mapping[str, Any]) -> ParameterValues:
        """Read values by ROS name, and return them with the other values of this object.

        Raises:
            ConfigError: a name is unknown, or a value has the wrong type or is out of range.
        """
        rows = {parameter.name: parameter for parameter in PARAMETERS}
        fields = {}
        for name, value in values.items():
            if name not in rows:
                raise unknown_parameter(name)
            fields[rows[name].field] = read_value(rows[name], value)
        return dataclasses.replace(self, **fields)

    def pipeline_options(self) -> PipelineOptions:
        """Return the options of a pipeline on the first device."""
        return PipelineOptions(
            depth=self.pipeline_depth,
            device_id=self.device_ids[0],
            use_cuda_graph=self.use_cuda_graph,
            jpeg_on_gpu=self.image_transport != 'raw',
            onnx_provider=self.onnx_provider,
            cpu_threads=self.cpu_threads,
            nodes_on_this_machine=self.nodes_on_this_machine,
            plugin_libraries=self.plugin_libraries,
            nvtx=self.nvtx,
            map_size=self.map_size,
            triton=self.triton_options(),
            limits=DecodingLimits(self.max_detections, class_agnostic=self.class_agnostic_nms),
            overrides=self.model_overrides(),
        )

    def unused_parameter_warnings(
        self, task: Task, decoder: Decoder, before: ParameterValues | None = None
    ) -> list[str]:
        """Return a warning for each changed parameter that has no effect with a model.

        Parameters at their defaults are not mentioned.

        Args:
            before: the earlier values; None for the defaults.
        """
        defaults = ParameterValues()
        before = before or defaults
        without_tracker = PARAMETERS_OF_TRACKER if self.tracker_type == 'none' else ()
        unused = {
            **dict.fromkeys(without_tracker, 'tracker.type none'),
            **dict.fromkeys(decoder.unused_parameters, f'decoder {decoder.family}'),
            **dict.fromkeys(task.unused_parameters, f'task {task}'),
        }
        return [
            f'{row.name} has no effect with the {unused[row.name]}'
            for row in PARAMETERS
            if row.name in unused
            and getattr(self, row.field)
            not in (getattr(before, row.field), getattr(defaults, row.field))
        ]

    def thresholds(self, class_names: tuple[str, ...], task: Task | None = None) -> Thresholds:
        """Return the values that may change between frames, with class indices for the filter.

        With a tracker, the lower one of its threshold and `confidence_threshold` applies.

        Args:
            task: task of the model; None for a task of objects. Other tasks ignore the filter.

        Raises:
            ConfigError: the class filter names a class that the model does not have, or the model
                finds no objects that could be tracked.
        """
        finds_objects = task is None or task.finds_objects
        if self.tracker_type != 'none' and not finds_objects:
            raise ConfigError(
                "parameter 'tracker.type'",
                f'{self.tracker_type!r} with a model with task {task}',
                fix="set it to 'none': only models that find objects have tracks",
            )
        values = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(FrameParameters)
        }
        if self.tracker_type != 'none':
            values['confidence_threshold'] = min(
                self.confidence_threshold, self.tracker_low_threshold
            )
        class_filter = self.class_filter if finds_objects else ()
        return Thresholds(
            class_ids=class_filter_ids(class_filter, class_names),
            focal_length_px=self.model_focal_length,
            sky=Sky(
                self.depth_sky_threshold,
                self.depth_sky_depth_m if self.depth_sky == 'far' else math.nan,
            ),
            **values,
        )


def unknown_parameter(name: str) -> ConfigError:
    """Return the error for an unknown name in a Python program or a tool."""
    return ConfigError(f'parameter {short_repr(name)}', 'unknown', fix=_unknown_name_fix(name))


def _unknown_name_fix(name: str) -> str:
    """Return the fix for an unknown name in a Python program or a tool."""
    rows = {parameter.name: parameter for parameter in PARAMETERS}

    def spell(known: str) -> str:
        return rows[known].field

    if fix := manifest_only_fix(name):
        return fix
    foreign = foreign_names(name)
    if foreign and foreign.ours and foreign.ours not in rows:
        return 'leave it out: only a node uses it'
    if foreign:
        return foreign.fix(lambda known: f'{spell(known)}=VALUE', spell)
    close = closest_parameters(name, rows)
    meant = f'did you mean {spell(close[0])}=VALUE? ' if close else ''
    return f'{meant}known: {", ".join(rows)}'


def _group(field: str) -> int:
    """Return the group of a row: engine_path, no base class, tracker, model, Triton, bond."""
    if field == 'engine_path':
        return 0
    return {'tracker': 2, 'model': 3, 'triton': 4, 'bond': 5}.get(field.partition('_')[0], 1)


# Inherited fields come first in a dataclass, but the table begins with the model.
_FIELDS: Final = sorted(dataclasses.fields(ParameterValues), key=lambda field: _group(field.name))
#: The table: `engine_path`, the rows that are read for each frame, the other rows in order.
PARAMETERS: Final = table_rows(_FIELDS)
