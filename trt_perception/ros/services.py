"""Every service of a node answers, also where its handler raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import Final

from rcl_interfaces.msg import Parameter as ParameterMessage
from rcl_interfaces.msg import SetParametersResult
from rcl_interfaces.srv import SetParameters
from rcl_interfaces.srv import SetParametersAtomically
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.service import Service

from trt_perception.plain_text import plain
from trt_perception.plain_text import shown

__all__ = ['answer_always']

_TYPES: Final = [kind.value for kind in Parameter.Type]
_LONGEST_REASON: Final = 1000
#: As many as a node has, several times over; and the fields of requests that name them.
_MOST_NAMED: Final = 200
_LISTS: Final = ('parameters', 'names', 'prefixes')

_Handler = Callable[[Any, Any], Any]


def answer_always(node: Node, report: Callable[[Service, Exception], None]) -> None:
    """Let the services that the node has now answer a refusal where their handler raises.

    Args:
        node: all its services were created.
        report: called with what a handler raised.
    """
    for service in node.services:
        kind = service.srv_type
        sets = kind in (SetParameters, SetParametersAtomically)
        handle = _known_types(service) if sets else service.callback
        answer = _answering(service, handle, report)
        answer = _one_by_one(answer) if kind is SetParameters else answer
        service.callback = _not_too_many(service, answer)


def _answering(
    service: Service, handle: _Handler, report: Callable[[Service, Exception], None]
) -> _Handler:
    def answer(request: Any, response: Any) -> Any:
        try:
            return handle(request, response)
        except Exception as error:
            report(service, error)
            return _refusal(service, request, f'{type(error).__name__}: {error}')

    return answer


def _refusal(service: Service, request: Any, reason: str) -> Any:
    """Return an answer that says no: what stands in an empty one, and a reason where one fits."""
    kind: Any = service.srv_type  # rclpy's type of it does not name the classes within
    response = kind.Response()
    refused = SetParametersResult(successful=False, reason=plain(reason, _LONGEST_REASON))
    if service.srv_type is SetParameters:
        response.results = [refused] * len(request.parameters)
    elif service.srv_type is SetParametersAtomically:
        response.result = refused
    return response


def _not_too_many(service: Service, answer: _Handler) -> _Handler:
    """Refuse a request that names one parameter hundreds of times: nothing else goes on then."""

    def limited(request: Any, response: Any) -> Any:
        count = max(len(getattr(request, name, ())) for name in _LISTS)
        if count <= _MOST_NAMED:
            return answer(request, response)
        return _refusal(service, request, f'at most {_MOST_NAMED} in one request (got {count})')

    return limited


def _one_by_one(answer: _Handler) -> _Handler:
    """Answer for each parameter of SetParameters by itself: none fails with another."""

    def each(request: Any, response: Any) -> Any:
        for parameter in request.parameters:
            single = SetParameters.Request(parameters=[parameter])
            response.results.extend(answer(single, SetParameters.Response()).results)
        return response

    return each


def _known_types(service: Service) -> _Handler:
    """Refuse parameters of a type that ROS 2 does not have, on which rclpy raises."""
    handle = service.callback

    def answer(request: Any, response: Any) -> Any:
        for parameter in request.parameters:
            if parameter.value.type not in _TYPES:
                return _refusal(service, request, _unknown(parameter))
        return handle(request, response)

    return answer


def _unknown(parameter: ParameterMessage) -> str:
    return (
        f'parameter {shown(parameter.name)} must be of a type that ROS 2 has, {min(_TYPES)} to '
        f'{max(_TYPES)} (got type {parameter.value.type})'
    )
