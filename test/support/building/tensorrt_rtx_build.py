# SPDX-License-Identifier: Apache-2.0
"""Build a plan with TensorRT-RTX, which needs no GPU for builds."""

import pytest


def size_of_built_plan(content, capabilities=('86',)):
    """Return the size of the plan that TensorRT-RTX builds; skip if it is not installed."""
    trt = pytest.importorskip('tensorrt_rtx')
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(content), [parser.get_error(i).desc() for i in range(parser.num_errors)]
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(capabilities)
    for index, name in enumerate(capabilities):
        config.set_compute_capability(getattr(trt.ComputeCapability, f'SM{name}'), index)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None, 'TensorRT-RTX refused the model'
    return plan.nbytes
