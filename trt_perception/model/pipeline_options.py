"""How a model is run. Whoever opens a pipeline makes these values from parameters of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from trt_perception.model.recognition.recognise import ModelOverrides

__all__ = ['DecodingLimits', 'PipelineOptions']


@dataclass(frozen=True)
class DecodingLimits:
    """How many boxes go on, and which suppress each other.

    Attributes:
        max_detections: most boxes returned for one image.
        max_candidates: most boxes that enter NMS.
        class_agnostic: boxes of different classes suppress each other too.
    """

    max_detections: int = 300
    max_candidates: int = 1024
    class_agnostic: bool = False


@dataclass(frozen=True)
class PipelineOptions:
    """What a pipeline needs to know besides its model.

    Attributes:
        depth: batches in flight on a GPU. The CPU pipeline always has one.
        device_id: CUDA device of an engine.
        use_cuda_graph: replay one captured CUDA graph for each batch.
        jpeg_on_gpu: decode JPEG on the GPU if nvJPEG works there.
        cpu_threads: threads of ONNX Runtime; 0 takes half of the cores that this process may use.
        max_batch: most frames that come at once; None if unknown. A CUDA pipeline prepares no
            larger batch, to save memory.
        limits: limits of decoding.
        overrides: what is known of the model better than its file says.
    """

    depth: int = 3
    device_id: int = 0
    use_cuda_graph: bool = True
    jpeg_on_gpu: bool = False
    cpu_threads: int = 0
    max_batch: int | None = None
    limits: DecodingLimits = DecodingLimits()
    overrides: ModelOverrides = field(default_factory=ModelOverrides)
