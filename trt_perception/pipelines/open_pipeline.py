"""Which pipeline runs follows from the file."""

from __future__ import annotations

from trt_perception.errors import ConfigError
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.parameters.config import DetectorConfig
from trt_perception.pipelines.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.host import HostPipeline
from trt_perception.pipelines.pipeline import Pipeline
from trt_perception.stages.gpu_kernels import MAX_CANDIDATES

__all__ = ['open_offline', 'open_pipeline']


def open_pipeline(config: DetectorConfig) -> Pipeline:
    """Load the model that the parameters name: an ONNX file on the CPU, an engine on the GPU.

    As many frames come at once as there are cameras: an engine is not prepared for more.

    Raises:
        ConfigError: ``engine_path`` is empty.
        EngineError: the file cannot be used; the message says why and what to do.
    """
    if not config.engine_path:
        raise ConfigError(
            "parameter 'engine_path'",
            'it is empty',
            fix='give an engine or ONNX file: '
            'ros2 launch trt_perception detect.launch.py engine_path:=/path/to/model.onnx',
        )
    model = read_model_file(config.engine_path)
    if model.is_onnx:
        return HostPipeline(model, config)
    return CudaPipeline(model, config, max_batch=max(1, len(config.cameras)))


def open_offline(
    model: ModelFile, config: DetectorConfig, *, max_candidates: int = MAX_CANDIDATES
) -> Pipeline:
    """Open a model as a node does, for as many images at once as it takes; masks come back whole.

    Args:
        model: an ONNX file or an engine.
        config: the node's parameters.
        max_candidates: most boxes that enter NMS.

    Raises:
        EngineError: it cannot be used; the message says why and what to do.
        CudaError: an engine, and no GPU to run it.
    """
    if model.is_onnx:
        return HostPipeline(model, config, max_candidates=max_candidates)
    return CudaPipeline(model, config, max_candidates=max_candidates, whole_masks=True)
