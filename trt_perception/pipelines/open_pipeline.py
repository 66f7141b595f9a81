"""Opens a model file with the pipeline that fits it."""

from __future__ import annotations

from trt_perception.errors import ConfigError
from trt_perception.model.files.model_file import ModelFile, read_model_file
from trt_perception.model.pipeline_options import PipelineOptions
from trt_perception.pipelines.cuda_pipeline import CudaPipeline
from trt_perception.pipelines.host_pipeline import HostPipeline
from trt_perception.pipelines.pipeline import Pipeline

__all__ = ['open_offline_pipeline', 'open_pipeline']


def open_pipeline(path: str, options: PipelineOptions) -> Pipeline:
    """Open a model file for a node: an ONNX file on the CPU, an engine on the GPU.

    Args:
        path: value of the parameter `engine_path`.
        options: options of the pipeline.

    Raises:
        ConfigError: the path is empty.
        EngineError: the file cannot be used. The message says why, and how to correct it.
        CudaError: the file is an engine, and no GPU can run it.
    """
    if not path:
        raise ConfigError(
            "parameter 'engine_path'",
            'is empty',
            fix='name an engine or ONNX file: engine_path:=/path/to/model.onnx '
            '(detect.launch.py) or --ros-args -p engine_path:=/path/to/model.onnx (detector_node)',
        )
    model = read_model_file(path)
    return HostPipeline(model, options) if model.is_onnx else CudaPipeline(model, options)


def open_offline_pipeline(model: ModelFile, options: PipelineOptions) -> Pipeline:
    """Open a model file for use without a node. Results contain prototypes, not mask images.

    Args:
        model: an ONNX file or an engine.
        options: options of the pipeline.

    Raises:
        EngineError: the file cannot be used. The message says why, and how to correct it.
        CudaError: the file is an engine, and no GPU can run it.
    """
    if model.is_onnx:
        return HostPipeline(model, options)
    return CudaPipeline(model, options, returns_prototypes=True)
