# SPDX-License-Identifier: Apache-2.0
"""Parameters that describe the model, if its files do not."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from trt_perception.files.plain_text import names_mistake
from trt_perception.images.frame import MAX_SIDE
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.preprocessing import (
    COLOR_ORDERS,
    RESIZE_FILTERS,
    RESIZE_MODES,
    input_size_mistake,
    number_mistake,
)
from trt_perception.model.recognition.parameter_syntax import LAUNCH_SYNTAX, ROS_SYNTAX
from trt_perception.model.recognition.recognise import ModelOverrides
from trt_perception.model.tasks.table import TASKS
from trt_perception.parameters.row import parameter_field
from trt_perception.parameters.rules import triple_mistake
from trt_perception.process.tool_command import is_launched


@dataclass(frozen=True, kw_only=True)
class ModelParameters:
    """Parameters that replace values of the model's files. Each field is a row of the table."""

    model_input_size: tuple[int, ...] = parameter_field(
        (),
        "Width and height of the network's input. Empty: from manifest or tensor.",
        name='model.input_size',
        unit='px',
        rule=lambda size: input_size_mistake(size) if size else None,
    )
    model_resize: str = parameter_field(
        '',
        'How an image is fitted into the input. Empty: from the manifest, else from the model.',
        name='model.resize',
        choices=('', *RESIZE_MODES),
    )
    model_shorter_side: int = parameter_field(
        0,
        "Image's shorter side before center_crop. 0: from the manifest, else from the model.",
        name='model.shorter_side',
        unit='px',
        limits=(0, MAX_SIDE),
    )
    model_filter: str = parameter_field(
        '',
        'Filter of the resize. Empty: from the manifest, else from the model.',
        name='model.filter',
        choices=('', *RESIZE_FILTERS),
    )
    model_antialias: int = parameter_field(
        -1,
        'Whether downscaling filters the image, as PIL and Hugging Face do: 1 or yes, 0 or no. '
        '-1: from the manifest, else from the model.',
        name='model.antialias',
        limits=(-1, 1),
        is_yes_no=True,
    )
    model_pad_value: int = parameter_field(
        -1,
        'Pixel value of the padding. -1: from the manifest, else from the model.',
        name='model.pad_value',
        limits=(-1, 255),
    )
    model_color_order: str = parameter_field(
        '',
        'Order of the input channels. Empty: from the manifest, else from the model.',
        name='model.color_order',
        choices=('', *COLOR_ORDERS),
    )
    model_scale: float = parameter_field(
        0.0,
        'Factor on the pixel values, at least 1e-6, often 1/255. 0: from the manifest, else from '
        'the model.',
        name='model.scale',
        limits=(0.0, 1000.0),
        rule=lambda scale: number_mistake('scale', (scale,)) if scale else None,
    )
    model_mean: tuple[float, ...] = parameter_field(
        (),
        'Mean per channel, subtracted after scaling, -1e6 to 1e6. Empty: from the manifest, '
        'else 0.',
        name='model.mean',
        rule=functools.partial(triple_mistake, 'mean'),
    )
    model_std: tuple[float, ...] = parameter_field(
        (),
        'Standard deviation per channel, divisor after the mean, 1e-6 to 1e6. Empty: from the '
        'manifest, else 1.',
        name='model.std',
        rule=functools.partial(triple_mistake, 'std'),
    )
    model_decoder: str = parameter_field(
        '',
        'How the outputs are read (docs/decoders.md). Empty: from the manifest, else from the '
        'model.',
        name='model.decoder',
        choices=('', *PRESETS),
    )
    model_class_names: tuple[str, ...] = parameter_field(
        (),
        "Names of the classes in the network's order. Empty: from the manifest, else from the "
        "model's metadata.",
        name='model.class_names',
        rule=names_mistake,
    )
    model_task: str = parameter_field(
        '',
        'What the model returns for each object or image. Empty: from the manifest, else from the '
        'model.',
        name='model.task',
        choices=('', *TASKS),
    )

    model_focal_length: float = parameter_field(
        0.0,
        'Focal length of the camera, in pixels of the image. 0: from camera_info.',
        name='model.focal_length',
        unit='px',
        limits=(0.0, 1e6),
        live=True,
        per_camera=True,
    )

    def model_overrides(self) -> ModelOverrides:
        """Return the values of the ``model.*`` parameters that differ from the default."""
        names = (
            'input_size',
            'resize',
            'shorter_side',
            'filter',
            'color_order',
            'scale',
            'mean',
            'std',
        )
        values = {name: it for name in names if (it := getattr(self, f'model_{name}'))}
        if self.model_pad_value >= 0:
            values['pad_value'] = self.model_pad_value
        if self.model_antialias >= 0:
            values['antialias'] = bool(self.model_antialias)
        return ModelOverrides(
            values,
            self.model_decoder,
            self.model_class_names,
            self.model_task,
            syntax=LAUNCH_SYNTAX if is_launched() else ROS_SYNTAX,
        )
