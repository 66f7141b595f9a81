# SPDX-License-Identifier: Apache-2.0
"""Options for running a model. Node, tools and Python API fill them from their parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import join_first_items
from trt_perception.model.recognition.recognise import ModelOverrides

#: Values of the parameter `onnx_provider`.
ONNX_PROVIDERS: Final = ('auto', 'cpu', 'cuda', 'tensorrt', 'tensorrt_rtx')


@dataclass(frozen=True)
class DecodingLimits:
    """Limits for the number of boxes, and the scope of NMS.

    Attributes:
        max_detections: maximum number of returned boxes per image.
        max_candidates: maximum number of boxes that enter NMS.
        class_agnostic: whether NMS also compares boxes of different classes.
    """

    max_detections: int = 300
    max_candidates: int = 1024
    class_agnostic: bool = False


@dataclass(frozen=True)
class TritonOptions:
    """Options of the connection to a Triton server.

    Attributes:
        timeout_s: longest wait in seconds for the answer to an image.
        shared_memory: pass tensors through shared memory if the server is on this machine.
        start_server: host and port of the only server that gets headers and the client's
            certificate; '' if no server gets them. None in tools and programs, whose user names
            the server together with these options: any server may be used and gets them.
        servers: host and port of each further server that may be used. Has no effect if
            start_server is None.
        headers: path of a file with headers of the requests; '' for none.
        tls: encrypt the connection.
        ca_file: path of a PEM file with certificates that may sign the server's; '' for gRPC's.
        certificate_file: path of a PEM file with the client's certificate; '' for none.
        key_file: path of a PEM file with the client's private key; '' for none.
    """

    timeout_s: float = 1.0
    shared_memory: bool = True
    start_server: str | None = None
    servers: tuple[str, ...] = ()
    headers: str = ''
    tls: bool = False
    ca_file: str = ''
    certificate_file: str = ''
    key_file: str = ''

    def is_trusted(self, server: str) -> bool:
        """Return whether a server, such as ``localhost:8001``, gets headers and certificate."""
        return self.start_server in (None, server)

    def check_server(self, server: str) -> None:
        """Check that a server may be used. Servers are compared as text.

        Raises:
            ConfigError: the start of the node did not name this server.
        """
        if self.is_trusted(server) or server in self.servers:
            return
        allowed = join_first_items([*filter(None, [self.start_server]), *self.servers])
        raise ConfigError(
            "parameter 'engine_path'",
            f'the server {server}',
            expected=f'one of the servers {allowed}' if allowed else 'a local file',
            fix='start the node with this engine_path, or list the server in triton.servers at '
            'the start',
        )


@dataclass(frozen=True)
class PipelineOptions:
    """Options of a pipeline, besides its model.

    Attributes:
        depth: number of batches in flight on a GPU, or of requests to a Triton server. The host
            pipeline always has one.
        device_id: index of the CUDA device that runs the model.
        use_cuda_graph: replay one captured CUDA graph for each batch.
        jpeg_on_gpu: decode JPEG on the GPU if nvJPEG works there.
        onnx_provider: execution provider for ONNX files, one of ONNX_PROVIDERS.
        cpu_threads: threads of ONNX Runtime; 0 for half of the cores that this process may use,
            divided by ``nodes_on_this_machine``.
        nodes_on_this_machine: number of processes that share the CPU cores with this process,
            including this process.
        max_batch: maximum number of frames in a batch; None if unknown. A CUDA pipeline prepares
            no larger batch, to save memory.
        plugin_libraries: paths of TensorRT plugin libraries to load before an engine.
        nvtx: mark NVTX ranges of batches and stages.
        map_size: value of the parameter ``map_size``, for maps that kernels make.
        triton: the connection to a Triton server.
        limits: limits of decoding.
        overrides: values of the user, which replace the values of the model's files.
    """

    depth: int = 3
    device_id: int = 0
    use_cuda_graph: bool = True
    jpeg_on_gpu: bool = False
    onnx_provider: str = 'auto'
    cpu_threads: int = 0
    nodes_on_this_machine: int = 1
    max_batch: int | None = None
    plugin_libraries: tuple[str, ...] = ()
    nvtx: bool = False
    map_size: str = 'source'
    triton: TritonOptions = TritonOptions()
    limits: DecodingLimits = DecodingLimits()
    overrides: ModelOverrides = field(default_factory=ModelOverrides)
