# SPDX-License-Identifier: Apache-2.0
"""All parameters of the node detections_3d, in one typed table."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trt_perception.parameters.bond import BondParameters
from trt_perception.parameters.row import parameter_field, read_value, table_rows


@dataclass(frozen=True, kw_only=True)
class BoxParameters(BondParameters):
    """The values of all parameters. The constructor does not check them."""

    sync_tolerance_ms: float = parameter_field(
        33.0,
        'Largest difference between the stamps of detections and of the depth image.',
        unit='ms',
        limits=(0.0, 10000.0),
        live=True,
    )
    max_wait_ms: float = parameter_field(
        100.0,
        'Longest wait of detections for their depth image and their masks.',
        unit='ms',
        limits=(0.0, 10000.0),
        live=True,
    )
    min_points: int = parameter_field(
        20,
        'Smallest number of pixels on the surface of an object. Objects with fewer pixels are '
        'left out and counted.',
        limits=(1, 1000000),
        live=True,
    )
    min_depth_m: float = parameter_field(
        0.05,
        'Smallest size.z of a box. The box of a flat surface has this size.',
        unit='m',
        limits=(0.001, 10.0),
        live=True,
    )
    depth_unit_m: float = parameter_field(
        0.0,
        'Metres per unit of the depth image. 0: 0.001 for 16UC1, 1 for 32FC1.',
        unit='m',
        limits=(0.0, 1000.0),
        live=True,
    )
    depth_transport: str = parameter_field(
        'raw',
        'raw: subscribe to sensor_msgs/Image. compressedDepth: subscribe to '
        'sensor_msgs/CompressedImage on depth/compressedDepth (PNG).',
        choices=('raw', 'compressedDepth'),
    )
    qos_reliability: str = parameter_field(
        'auto',
        'Reliability of all subscriptions. auto: start reliable, and change to best effort for a '
        'best-effort publisher.',
        name='qos.reliability',
        choices=('auto', 'reliable', 'best_effort'),
    )
    diagnostics_period_s: float = parameter_field(
        1.0, 'Time between two messages on /diagnostics.', unit='s', limits=(0.1, 60.0)
    )
    autostart: bool = parameter_field(
        False, 'Configure and activate when the node starts.', start_only=True
    )

    def with_changes(self, values: Mapping[str, Any]) -> BoxParameters:
        """Return a copy with changed values, by the names of rows.

        Raises:
            ConfigError: a value has the wrong type or is out of range.
        """
        rows = {row.name: row for row in BOX_PARAMETERS}
        fields = {
            rows[name].field: read_value(rows[name], value) for name, value in values.items()
        }
        return dataclasses.replace(self, **fields)


# Inherited fields come first in a dataclass, but the table ends with the bond.
_FIELDS: Final = sorted(
    dataclasses.fields(BoxParameters), key=lambda field: field.name.startswith('bond_')
)
#: The table.
BOX_PARAMETERS: Final = table_rows(_FIELDS)
