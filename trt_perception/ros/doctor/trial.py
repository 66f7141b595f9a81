"""Runs a model once with the node's parameters, and warns as the node would."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from trt_perception.checks.trial import run_model_once
from trt_perception.parameters.camera import NodeConfig

_LOG: Final = logging.getLogger(__name__)


def trial_run(values: Mapping[str, Any]) -> str:
    """Run a model once, as the node would. Return a description.

    Parameters that have no effect with the model cause warnings in the log.

    Args:
        values: maps the names of the node's parameters to their values.

    Raises:
        TrtPerceptionError: the model cannot be used; the message gives the reason.
    """
    node_config = NodeConfig.from_values(values)
    node = node_config.node
    options = replace(node_config.pipeline_options(), max_batch=max(1, len(node.cameras)))

    def check(spec: Any) -> None:
        node_config.check(lambda config: config.thresholds(spec.class_names, spec.task))
        _warn_of_unused_parameters(node_config, spec)

    return run_model_once(node.engine_path, options, node.device_ids, check)


def _warn_of_unused_parameters(node_config: NodeConfig, spec: Any) -> None:
    fix = {'fix': 'leave it out, unless other models need it'}
    for name in ('', *node_config.node.cameras):
        config, before = node_config.camera(name), node_config.node if name else None
        for sentence in config.unused_parameter_warnings(spec.task, spec.decoder, before):
            _LOG.warning('%s%s', f"camera '{name}': " if name else '', sentence, extra=fix)
