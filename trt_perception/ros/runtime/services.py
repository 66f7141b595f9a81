# SPDX-License-Identifier: Apache-2.0
"""Lets every service of a node answer, even if its handler raises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from rcl_interfaces.msg import SetParametersResult
from rcl_interfaces.srv import SetParameters, SetParametersAtomically
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.service import Service

from trt_perception.files.plain_text import escape_controls, short_repr

_PARAMETER_TYPES: Final = [kind.value for kind in Parameter.Type]
_MAX_REASON_LENGTH: Final = 1000
# A request may name this many parameters, or all parameters of the node if there are more. A node
# with one camera has far fewer.
_MAX_PARAMETERS: Final = 200
# Fields of requests that name parameters.
_LIST_FIELDS: Final = ('parameters', 'names', 'prefixes')
_SETTER_SERVICES: Final = (SetParameters, SetParametersAtomically)

_Handler = Callable[[Any, Any], Any]


def answer_every_request(node: Node, report: Callable[[Service, Exception], None]) -> None:
    """Let all current services of a node answer with a refusal if their handler raises.

    Args:
        node: a node whose services all exist.
        report: called with the service and the exception of its handler.
    """
    for service in node.services:
        service.callback = _with_refusals(node, service, service.callback, report)


def _with_refusals(
    node: Node,
    service: Service,
    handle: _Handler,
    report: Callable[[Service, Exception], None],
) -> _Handler:
    kind: Any = service.srv_type

    def answer(request: Any, response: Any) -> Any:
        # A request that repeats a name very often would block the executor.
        count = max(len(getattr(request, name, ())) for name in _LIST_FIELDS)
        if count > _MAX_PARAMETERS:
            most = max(_MAX_PARAMETERS, len(node.list_parameters([], 0).names))
            if count > most:
                reason = f'a request may name at most {most} parameters (got {count})'
                return _refusal(service, request, reason)
        if twice := _repeated_name(request):
            return _refusal(
                service,
                request,
                f'a request may name each parameter only once (got {twice} twice)',
            )
        if kind is SetParameters and count != 1:  # one handler call for each parameter
            for parameter in request.parameters:
                single = SetParameters.Request(parameters=[parameter])
                response.results.extend(answer(single, SetParameters.Response()).results)
            return response
        for parameter in request.parameters if kind in _SETTER_SERVICES else ():
            if parameter.value.type not in _PARAMETER_TYPES:  # rclpy would raise
                reason = (
                    f'parameter {short_repr(parameter.name)} must have a type of ROS 2, '
                    f'{min(_PARAMETER_TYPES)} to {max(_PARAMETER_TYPES)} '
                    f'(got type {parameter.value.type})'
                )
                return _refusal(service, request, reason)
        try:
            return handle(request, response)
        except Exception as error:
            report(service, error)
            return _refusal(service, request, f'{type(error).__name__}: {error}')

    return answer


def _repeated_name(request: Any) -> str:
    """Return a parameter that a request names more than once, or an empty string."""
    named = [each.name for each in getattr(request, 'parameters', ())]
    named += getattr(request, 'names', ())
    return next((short_repr(name) for name, count in Counter(named).items() if count > 1), '')


def _refusal(service: Service, request: Any, reason: str) -> Any:
    """Return an empty response, with a refusal and its reason if the type has such a field."""
    kind: Any = service.srv_type  # rclpy's type hint lacks Request and Response
    response = kind.Response()
    refused = SetParametersResult(
        successful=False, reason=escape_controls(reason, _MAX_REASON_LENGTH)
    )
    if kind is SetParameters:
        response.results = [refused] * len(request.parameters)
    elif kind is SetParametersAtomically:
        response.result = refused
    return response
