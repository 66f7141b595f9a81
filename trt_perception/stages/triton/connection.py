# SPDX-License-Identifier: Apache-2.0
"""The connection to a Triton server: what the server says about a model, and its shared memory.

Everything that the server says is checked like a file: its size is bounded, and unknown values are
refused.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import ssl
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from trt_perception.errors import ConfigError, EngineError, ManifestError
from trt_perception.files.checked_files import read_checked
from trt_perception.files.plain_text import short_repr
from trt_perception.model.files.triton_address import TritonAddress
from trt_perception.model.manifest import MANIFEST_MAX_BYTES, Manifest, parse_manifest
from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.model.recognition.manifest_command import export_command
from trt_perception.model.tensors import TensorSpec
from trt_perception.process.interruption import check_interruption, interrupted_for_s
from trt_perception.stages.triton.bounded_parsing import MAX_FIELDS, parse_bounded
from trt_perception.stages.triton.memory import TritonRegion
from trt_perception.stages.triton.messages import TRITON_DTYPES

_LOG: Final = logging.getLogger(__name__)
#: The parameter of a model's configuration that holds its manifest. `export_triton` writes it.
MANIFEST_PARAMETER: Final = 'trt_perception.manifest'
# A model has few tensors of few dimensions. The limits bound the memory for a server's answer.
_MAX_TENSORS: Final = 64
_MAX_DIMENSIONS: Final = 8
_MAX_CONTROL_BYTES: Final = MANIFEST_MAX_BYTES + 2**20
_METHODS: Final = (
    *('ModelReady', 'ModelConfig', 'ModelInfer', 'SystemSharedMemoryStatus'),
    *('SystemSharedMemoryRegister', 'SystemSharedMemoryUnregister'),
)
_CHANGE_MODEL: Final = 'change the model, or its config.pbtxt on the server'
_CONTROL_TIMEOUT_S: Final = 1.0
# Shorter if the process was asked to end some time ago.
_UNREGISTER_TIMEOUT_S: Final = 1.5
_MIN_UNREGISTER_TIMEOUT_S: Final = 0.5
# A call checks after this time whether the process was asked to end.
_INTERRUPTION_POLL_S: Final = 0.05
_MAX_HEADERS_BYTES: Final = 64 * 1024
_MAX_PEM_BYTES: Final = 2**20
# gRPC waits up to 20 s to connect, and up to 120 s before the next attempt. The first value also
# limits the wait for a connection. A connection of its own, because a shared one would have waits
# of other users. Keepalive finds a server that accepts connections but does not run. Triton closes
# a connection after more pings without data.
_CHANNEL_OPTIONS: Final = (
    ('grpc.initial_reconnect_backoff_ms', 100),
    ('grpc.min_reconnect_backoff_ms', 1000),
    ('grpc.max_reconnect_backoff_ms', 500),
    ('grpc.use_local_subchannel_pool', 1),
    ('grpc.keepalive_time_ms', 5000),
    ('grpc.keepalive_timeout_ms', 3000),
    ('grpc.http2.max_pings_without_data', 2),
    ('grpc.max_send_message_length', -1),
)
# gRPC would drop headers whose names begin with grpc-, and -bin marks binary values.
_HEADER: Final = re.compile(
    r'(?!grpc-)(?P<name>[a-z0-9_.-]+)(?<!-bin) *: *(?P<value>[ -~]*)', re.IGNORECASE | re.ASCII
)


@dataclass(frozen=True)
class ServedModel:
    """What a server says about a model. Equal objects describe the same model.

    Attributes:
        inputs: all inputs. -1 is a dynamic dimension.
        outputs: all outputs. -1 is a dynamic dimension.
        manifest: the manifest that `export_triton` stored in the configuration; None without one.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    manifest: Manifest | None


class _Stub:
    """The methods of a server. A call takes a message, and returns the bytes of the answer."""

    def __init__(self, channel: Any, messages: Any) -> None:
        for method in _METHODS:
            request_type = getattr(messages, f'{method}Request')
            call = channel.unary_unary(
                f'/inference.GRPCInferenceService/{method}',
                request_serializer=request_type.SerializeToString,
            )
            setattr(self, method, call)


class TritonConnection:
    """Calls a Triton server with short time limits.

    Attributes:
        headers: headers of each request; empty if the server is not trusted.

    Raises:
        EngineError: tritonclient is not installed, or a file of the options cannot be used.
        ConfigError: the server is not allowed, or a file with headers or certificates is
            malformed.
    """

    def __init__(self, address: TritonAddress, options: TritonOptions) -> None:
        _silence_grpc()
        try:
            import grpc
            from tritonclient.grpc import service_pb2
        except ImportError as error:
            raise _missing_package(str(address), error) from error
        self._grpc = grpc
        self.messages = service_pb2
        self._address = address
        options.check_server(address.server)
        self._options = _without_secrets(options, address)
        self.headers = _read_headers(self._options.headers) if self._options.headers else ()
        self._channels: list[Any] = []
        self._control = self.open_stub(_MAX_CONTROL_BYTES)
        self.call_errors: Any = grpc.RpcError

    def open_stub(self, max_answer_bytes: int) -> Any:
        """Return a gRPC stub with a connection of its own, which refuses larger answers.

        Its calls return bytes for `parse`.
        """
        grpc, options, server = self._grpc, self._options, self._address.server
        options.check_server(server)
        # With the scheme, gRPC cannot read a host such as `unix` as a scheme of its own.
        target = f'dns:///{server}'
        channel_options = (
            *_CHANNEL_OPTIONS,
            ('grpc.max_receive_message_length', max_answer_bytes),
        )
        if options.tls:
            credentials = grpc.ssl_channel_credentials(*_read_certificates(options))
            channel = grpc.secure_channel(target, credentials, channel_options)
        else:
            channel = grpc.insecure_channel(target, channel_options)
        self._channels.append(channel)
        return _Stub(channel, self.messages)

    def parse(self, kind: type[EngineError], method: str, answer: bytes) -> Any:
        """Return the message in the answer of a call. Raises an error of this type."""
        try:
            return parse_bounded(getattr(self.messages, f'{method}Response'), answer)
        except ValueError as error:
            raise kind(
                str(self._address),
                f'an answer to {method} that is {error}',
                expected=f'a message of at most {MAX_FIELDS} fields',
                fix='check that the server is a Triton server',
            ) from error

    def describe_model(self) -> ServedModel:
        """Ask whether the model is ready, and for its description.

        Raises:
            EngineError: the server does not answer, or the model is not ready or cannot be used.
        """
        name = {'name': self._address.model, 'version': self._address.version}
        if not self._call('ModelReady', **name).ready:
            raise EngineError(
                str(self._address),
                'the server does not have this model, or the model is not ready',
                fix="load the model on the server, or see the server's log",
            )
        return _served_model(str(self._address), self._call('ModelConfig', **name).config)

    def known_regions(self) -> set[str]:
        """Return the names of all regions that the server has registered. Raises EngineError."""
        return set(self._call('SystemSharedMemoryStatus').regions)

    def register(self, region: TritonRegion) -> None:
        """Let the server use a region.

        Raises:
            EngineError: the server has another /dev/shm, for example because it runs elsewhere.
        """
        values = {'name': region.name, 'key': f'/{region.name}', 'byte_size': region.size}
        self._call('SystemSharedMemoryRegister', **values)

    def unregister(self, *names: str) -> None:
        """Let the server forget regions that no request uses. All calls share one time limit.

        An empty name would mean all regions of all clients. This also works after the process was
        asked to end.

        Raises:
            EngineError: the server does not answer. It may have forgotten some of the regions.
        """
        assert all(names)
        method = self._control.SystemSharedMemoryUnregister
        requests = [self.messages.SystemSharedMemoryUnregisterRequest(name=name) for name in names]
        limit_s = max(_UNREGISTER_TIMEOUT_S - interrupted_for_s(), _MIN_UNREGISTER_TIMEOUT_S)
        calls = [
            method.future(request, timeout=limit_s, metadata=self.headers) for request in requests
        ]
        errors = [error for call in calls if (error := call.exception()) is not None]
        if errors:
            raise request_error(EngineError, self._address, errors[0])

    def close(self) -> None:
        """Close all connections. May be called again."""
        while self._channels:
            self._channels.pop().close()

    def _call(self, method: str, **values: Any) -> Any:
        """Call a method of the server, and return the answer.

        Raises:
            EngineError: the call failed.
            InterruptionError: the process was asked to end.
        """
        request = getattr(self.messages, f'{method}Request')(**values)
        call = getattr(self._control, method).future(
            request, timeout=_CONTROL_TIMEOUT_S, metadata=self.headers
        )
        try:
            while True:
                check_interruption()
                with contextlib.suppress(self._grpc.FutureTimeoutError):
                    return self.parse(EngineError, method, call.result(_INTERRUPTION_POLL_S))
        except self.call_errors as error:
            raise request_error(EngineError, self._address, error) from None
        finally:
            call.cancel()


def import_model_config(subject: str) -> Any:
    """Return the module with the messages of a model's configuration.

    Raises:
        EngineError: tritonclient is not installed.
    """
    _silence_grpc()
    try:
        from tritonclient.grpc import model_config_pb2
    except ImportError as error:
        raise _missing_package(subject, error) from error
    return model_config_pb2


def _silence_grpc() -> None:
    """Let gRPC write no lines to standard error, unless the user chose its verbosity.

    gRPC reads the variable when it is imported. The errors of calls contain the same facts.
    """
    os.environ.setdefault('GRPC_VERBOSITY', 'NONE')


def _missing_package(subject: str, error: ImportError) -> EngineError:
    return EngineError(
        subject,
        f'the package tritonclient is missing ({error})',
        fix="python3 -m pip install 'tritonclient[grpc]', in the virtual environment that the "
        'node runs in',
    )


def request_error(kind: type[EngineError], address: TritonAddress, error: Any) -> EngineError:
    """Return an error of this type for an error of gRPC, with the server's words."""
    return kind(
        str(address),
        f'the request failed: {error.code().name}: {short_repr(error.details() or "", 300)}',
        fix='check that the server runs and serves this model, and see its log',
    )


def _served_model(address: str, config: Any) -> ServedModel:
    """Check the configuration of a model, and return its description. Raises EngineError."""
    if config.model_transaction_policy.decoupled:
        raise EngineError(
            address,
            'the model is decoupled',
            expected='a model with one answer to each request',
            fix=_CHANGE_MODEL,
        )
    if config.HasField('sequence_batching'):
        raise EngineError(
            address,
            'the model uses sequence batching',
            expected='a model whose requests are independent',
            fix=_CHANGE_MODEL,
        )
    leading = (-1,) if config.max_batch_size > 0 else ()
    text = config.parameters[MANIFEST_PARAMETER].string_value.encode()
    manifest = None
    if text:
        try:
            manifest = parse_manifest(text[: MANIFEST_MAX_BYTES + 1], f'{address}: its manifest')
        except ManifestError as error:
            fix = f'export the model for the server again: {export_command(address)}'
            raise ManifestError(
                error.subject, error.found, expected=error.expected, fix=fix
            ) from error
    return ServedModel(
        _tensors(address, config.input, leading),
        _tensors(address, config.output, leading),
        manifest,
    )


def _tensors(address: str, listed: Any, leading: tuple[int, ...]) -> tuple[TensorSpec, ...]:
    from tritonclient.grpc.model_config_pb2 import DataType

    if not 0 < len(listed) <= _MAX_TENSORS:
        raise EngineError(
            address,
            f'{len(listed)} inputs or outputs',
            expected=f'1 to {_MAX_TENSORS}',
            fix=_CHANGE_MODEL,
        )
    kinds = {number: kind.removeprefix('TYPE_') for kind, number in DataType.items()}
    tensors = []
    for item in listed:
        kind = kinds.get(item.data_type, str(item.data_type))
        if kind not in TRITON_DTYPES:
            raise EngineError(
                f'{address}: tensor {short_repr(item.name)}',
                kind,
                expected=f'one of {", ".join(TRITON_DTYPES)}',
                fix=_CHANGE_MODEL,
            )
        shape = (*leading, *item.dims)
        if len(shape) > _MAX_DIMENSIONS or min(shape, default=1) < -1:
            raise EngineError(
                f'{address}: tensor {short_repr(item.name)}',
                f'shape {short_repr(str(list(shape)))}',
                expected=f'at most {_MAX_DIMENSIONS} dimensions, each -1 or larger',
                fix=_CHANGE_MODEL,
            )
        tensors.append(TensorSpec(item.name, shape, TRITON_DTYPES[kind]))
    return tuple(tensors)


def _without_secrets(options: TritonOptions, address: TritonAddress) -> TritonOptions:
    """Return the options for a server: without headers and certificate if it is not trusted."""
    without = replace(options, headers='', certificate_file='', key_file='')
    if options.is_trusted(address.server) or without == options:
        return options
    _LOG.warning(
        '%s gets no headers and no certificate: only the server in the engine_path of the start '
        'gets them',
        address,
        extra={'show': True},
    )
    return without


def _read_headers(path: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of a file. Raises ConfigError without the values."""
    content = read_checked(Path(path).expanduser(), _MAX_HEADERS_BYTES)[0]
    headers = []
    for number, line in enumerate(content.decode('ascii', 'replace').splitlines(), 1):
        header = _HEADER.fullmatch(line.strip())
        if header is not None:
            headers.append((header['name'].lower(), header['value']))
        elif line.strip():
            raise ConfigError(
                "parameter 'triton.headers'",
                f'line {number} of {path} is not a header',
                expected='NAME: VALUE in ASCII, with a name that gRPC does not reserve '
                '(grpc-… and …-bin)',
            )
    return tuple(headers)


def _read_certificates(options: TritonOptions) -> list[bytes | None]:
    """Return the content of the files for TLS: authorities, key and certificate.

    Raises:
        ConfigError: a file is not in PEM format, or key and certificate do not belong together.
        EngineError: a file cannot be read.
    """
    names = (options.ca_file, options.key_file, options.certificate_file)
    paths = [Path(name).expanduser() if name else None for name in names]
    contents = [read_checked(path, _MAX_PEM_BYTES)[0] if path else None for path in paths]
    ca_file, key_file, certificate_file = paths
    # gRPC ends the process if one of the pair is missing, and does not say which file is wrong.
    subject = "parameter 'triton.ca_file'"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if ca_file:
            context.load_verify_locations(ca_file)
        subject = "parameters 'triton.certificate_file' and 'triton.key_file'"
        if key_file or certificate_file:
            # An empty password, so that OpenSSL does not ask for it on the terminal.
            context.load_cert_chain(certificate_file or '', key_file or '', lambda: '')
    except (OSError, ValueError) as error:
        raise ConfigError(
            subject,
            f'cannot be used: {short_repr(str(error))}',
            expected='PEM files, and a certificate together with its key without a password',
        ) from error
    return contents
