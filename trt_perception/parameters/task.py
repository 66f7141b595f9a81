"""Parameters of single tasks."""

from __future__ import annotations

from dataclasses import dataclass

from trt_perception.images.results.image_limits import MAX_RESULT_PIXELS
from trt_perception.images.results.map_size import map_size_mistake
from trt_perception.parameters.row import parameter_field


@dataclass(frozen=True, kw_only=True)
class TaskParameters:
    """Parameters that only some tasks read. Each field is a row of the table."""

    classification_top_k: int = parameter_field(
        5,
        'Number of classes in a message of a model that classifies the whole image.',
        name='classification.top_k',
        minimum=1,
        maximum=1000,
    )
    map_size: str = parameter_field(
        'source',
        'Size of published class and depth maps. source: the size of the image. network: of '
        "the network's input, without padding. 400x200: width and height, at most "
        f"{MAX_RESULT_PIXELS} pixels. Nav2's semantic layer needs the size of its point cloud.",
        find_mistake=map_size_mistake,
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
        minimum=0.0,
        maximum=1000.0,
        live=True,
    )
    depth_sky_depth_m: float = parameter_field(
        200.0,
        'Depth of the sky.',
        name='depth.sky_depth_m',
        unit='m',
        minimum=1.0,
        maximum=100000.0,
        live=True,
    )
