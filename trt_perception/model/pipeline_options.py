"""Options for running a model. Node, tools and Python API fill them from their parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from trt_perception.model.recognition.recognise import ModelOverrides

__all__ = ['ONNX_PROVIDERS', 'DecodingLimits', 'PipelineOptions']

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
class PipelineOptions:
    """Options of a pipeline, besides its model.

    Attributes:
        depth: number of batches in flight on a GPU. The host pipeline always has one.
        device_id: index of the CUDA device that runs the model.
        use_cuda_graph: replay one captured CUDA graph for each batch.
        jpeg_on_gpu: decode JPEG on the GPU if nvJPEG works there.
        onnx_provider: execution provider for ONNX files, one of ONNX_PROVIDERS.
        cpu_threads: threads of ONNX Runtime; 0 for half of the cores that this process may use.
        max_batch: maximum number of frames in a batch; None if unknown. A CUDA pipeline prepares
            no larger batch, to save memory.
        plugin_libraries: paths of TensorRT plugin libraries to load before an engine.
        limits: limits of decoding.
        overrides: values of the user, which replace the values of the model's files.
    """

    depth: int = 3
    device_id: int = 0
    use_cuda_graph: bool = True
    jpeg_on_gpu: bool = False
    onnx_provider: str = 'auto'
    cpu_threads: int = 0
    max_batch: int | None = None
    plugin_libraries: tuple[str, ...] = ()
    limits: DecodingLimits = DecodingLimits()
    overrides: ModelOverrides = field(default_factory=ModelOverrides)
