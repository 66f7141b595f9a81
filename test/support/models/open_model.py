# SPDX-License-Identifier: Apache-2.0
"""Open models in tests by the parameters that a node would have."""

from dataclasses import replace

from trt_perception.pipelines.open_pipeline import open_pipeline


def open_by_parameters(parameters):
    """Open the model of a ParameterValues for all its cameras."""
    options = replace(parameters.pipeline_options(), max_batch=max(1, len(parameters.cameras)))
    return open_pipeline(parameters.engine_path, options)
