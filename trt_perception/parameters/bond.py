# SPDX-License-Identifier: Apache-2.0
"""Parameters of the bond with Nav2's lifecycle manager, which all lifecycle nodes have."""

from __future__ import annotations

from dataclasses import dataclass

from trt_perception.errors import ConfigError
from trt_perception.parameters.row import parameter_field


@dataclass(frozen=True, kw_only=True)
class BondParameters:
    """Parameters of the bond. Each field is a row of the table."""

    bond_enabled: bool = parameter_field(
        False,
        "Form a bond with Nav2's lifecycle manager while active: publish a heartbeat on the topic "
        'bond. Needs autostart false, and the package bond.',
        name='bond.enabled',
    )
    # Nav2's nodes have the same period (bond_heartbeat_period) in Jazzy and Kilted. Their manager
    # waits bond_timeout / 2 = 2 s for the first heartbeat.
    bond_heartbeat_period_s: float = parameter_field(
        0.1,
        "Time between two heartbeats, at most a quarter of the manager's bond_timeout.",
        name='bond.heartbeat_period_s',
        unit='s',
        limits=(0.02, 1.0),
    )


def bond_with_autostart() -> ConfigError:
    """Return the error for a node that has a bond, but makes its transitions itself."""
    return ConfigError(
        "parameter 'bond.enabled'",
        'true, and autostart is also true, but only the lifecycle manager may make transitions',
        fix='set autostart to false, or bond.enabled to false',
    )
