"""Open models in tests by the parameters that a node would have."""

from dataclasses import replace

from trt_perception.pipelines.open_pipeline import open_pipeline


def open_by_parameters(config):
    """Open the model of a ParameterValues for all its cameras."""
    options = replace(config.pipeline_options(), max_batch=max(1, len(config.cameras)))
    return open_pipeline(config.engine_path, options)
