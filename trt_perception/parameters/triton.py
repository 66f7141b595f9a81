# SPDX-License-Identifier: Apache-2.0
"""Parameters of the connection to a Triton server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trt_perception.model.pipeline_options import TritonOptions
from trt_perception.parameters.row import parameter_field
from trt_perception.parameters.rules import servers_mistake

#: The default of `triton.timeout_ms` for images of a file or a program. A late answer is still
#: useful there, because no newer image replaces it.
OFFLINE_TIMEOUT_MS: Final = 60_000.0


@dataclass(frozen=True, kw_only=True)
class TritonParameters:
    """Parameters that only a model on a Triton server reads. Each field is a row of the table."""

    triton_timeout_ms: float = parameter_field(
        1000.0,
        'Longest wait for the answer of a Triton server to an image. A later answer is ignored, '
        'and the image is dropped with the reason timeout. Tools and Python programs wait '
        'for 60 s by default.',
        name='triton.timeout_ms',
        unit='ms',
        limits=(1.0, 60_000.0),
    )
    triton_shared_memory: bool = parameter_field(
        True,
        'Pass tensors to a Triton server on this machine through shared memory, if that works. '
        'false: send them in each request.',
        name='triton.shared_memory',
        start_only=True,
    )
    triton_servers: tuple[str, ...] = parameter_field(
        (),
        "Further Triton servers, each 'HOST:PORT' in quotes, which engine_path may name after the "
        'start. They get no headers and no client certificate.',
        name='triton.servers',
        rule=servers_mistake,
        start_only=True,
    )
    triton_headers: str = parameter_field(
        '',
        'File with a line NAME: VALUE for each header of the requests to a Triton server, such as '
        'an authorization token. The values are not logged. Only the server in the engine_path of '
        'the start gets them.',
        name='triton.headers',
        start_only=True,
    )
    triton_tls: bool = parameter_field(
        False,
        'Encrypt the connection to a Triton server with TLS.',
        name='triton.tls',
        start_only=True,
    )
    triton_ca_file: str = parameter_field(
        '',
        'PEM file with the certificates that may sign the certificate of a Triton server. Empty: '
        'the certificates of gRPC.',
        name='triton.ca_file',
        start_only=True,
    )
    triton_certificate_file: str = parameter_field(
        '',
        "PEM file with this client's certificate, if the Triton server in the engine_path of the "
        'start asks for one.',
        name='triton.certificate_file',
        start_only=True,
    )
    triton_key_file: str = parameter_field(
        '',
        "PEM file with the private key of this client's certificate.",
        name='triton.key_file',
        start_only=True,
    )

    def triton_options(self) -> TritonOptions:
        """Return the options of the connection."""
        return TritonOptions(
            timeout_s=self.triton_timeout_ms * 1e-3,
            shared_memory=self.triton_shared_memory,
            servers=self.triton_servers,
            headers=self.triton_headers,
            tls=self.triton_tls,
            ca_file=self.triton_ca_file,
            certificate_file=self.triton_certificate_file,
            key_file=self.triton_key_file,
        )
