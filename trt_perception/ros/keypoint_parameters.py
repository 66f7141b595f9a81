# SPDX-License-Identifier: Apache-2.0
"""Read-only parameters of the node that describe the keypoints of its model."""

from __future__ import annotations

from typing import Final

from rcl_interfaces.msg import ParameterDescriptor, ParameterValue, SetParametersResult
from rclpy.node import Node
from rclpy.parameter import Parameter

from trt_perception.model.tasks.pose import Pose
from trt_perception.model.tasks.task import Task

_NAMES_PARAMETER: Final = 'keypoints.names'
_SKELETON_PARAMETER: Final = 'keypoints.skeleton'
#: Names of the parameters.
KEYPOINT_PARAMETERS: Final = (_NAMES_PARAMETER, _SKELETON_PARAMETER)
_DESCRIPTIONS: Final = {
    _NAMES_PARAMETER: (
        'Names of the keypoints, in the order of the columns of the topic keypoints.'
    ),
    _SKELETON_PARAMETER: 'Ends of the lines between keypoints: two indices for each line.',
}


class KeypointParameters:
    """Declares the parameters while the node has a model with keypoints."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._values: dict[str, ParameterValue] = {}
        node.add_on_set_parameters_callback(self._on_set)

    def declare(self, task: Task) -> None:
        """Declare the parameters if the task has keypoints. Start values are ignored."""
        if not isinstance(task, Pose):
            return
        ends = [end for line in task.keypoints.skeleton for end in line]
        parameters = (
            Parameter(_NAMES_PARAMETER, Parameter.Type.STRING_ARRAY, list(task.keypoints.names)),
            Parameter(_SKELETON_PARAMETER, Parameter.Type.INTEGER_ARRAY, ends),
        )
        for parameter in parameters:
            descriptor = ParameterDescriptor(
                description=_DESCRIPTIONS[parameter.name], additional_constraints='read-only'
            )
            # Declare by type and set the value later: rclpy would declare [] as a byte array.
            self._node.declare_parameter(
                parameter.name, parameter.type_, descriptor, ignore_override=True
            )
            # Call the base class, because the detector's own method would refuse this change.
            result = Node.set_parameters_atomically(self._node, [parameter])
            assert result.successful, result
            # From here on, changes are refused.
            self._values[parameter.name] = parameter.get_parameter_value()

    def undeclare(self) -> None:
        """Undeclare the parameters. This method may be called again."""
        while self._values:
            name, _ = self._values.popitem()
            self._node.undeclare_parameter(name)

    def _on_set(self, changes: list[Parameter]) -> SetParametersResult:
        # With read_only in the descriptor, rclpy would refuse undeclare, too. Equal values are
        # accepted, so that `ros2 param load` can read a file of `ros2 param dump`.
        for change in changes:
            own = self._values.get(change.name)
            if own is not None and change.get_parameter_value() != own:
                return SetParametersResult(
                    successful=False,
                    reason=f"parameter '{change.name}' describes the model and cannot be set; "
                    'change the manifest instead',
                )
        return SetParametersResult(successful=True)
