# SPDX-License-Identifier: Apache-2.0
"""A process has one TensorRT logger. Each listener receives messages from its own lifetime."""

from __future__ import annotations

import gc
import logging
import weakref

from support.building.tensorrt_standin import StandIn
from trt_perception.stages.tensorrt.log import TensorRtLog


def severity(name):
    return type('Severity', (), {'name': name})


def test_tensorrt_gets_one_logger_and_listeners_get_messages_of_their_lifetime():
    module = StandIn('10.3', '10.3.0.26')
    first = TensorRtLog(module)
    first.logger.log(severity('ERROR'), 'early')
    second = TensorRtLog(module)
    assert second.logger is first.logger
    second.logger.log(severity('INTERNAL_ERROR'), 'late')
    second.logger.log(severity('WARNING'), 'slow')
    second.logger.log(severity('INFO'), 'memory')
    assert first.last_errors() == 'early | late'
    assert second.last_errors() == 'late'
    assert first.last_errors(1) == 'late'
    assert list(second.warnings) == ['slow']
    assert TensorRtLog(module).last_errors() == 'nothing'
    assert TensorRtLog(StandIn('10.3', '10.3.0.26')).logger is not first.logger


def test_deleted_listener_gets_no_messages():
    module = StandIn('10.3', '10.3.0.26')
    listener = TensorRtLog(module, quiet=True)
    logger, reference = listener.logger, weakref.ref(listener)
    del listener
    gc.collect()
    assert reference() is None
    logger.log(severity('ERROR'), 'nobody listens')


def test_errors_that_raise_exceptions_are_not_logged(caplog):
    module = StandIn('10.3', '10.3.0.26')
    loud = TensorRtLog(module)
    with caplog.at_level(logging.INFO, 'trt_perception.tensorrt'):
        loud.logger.log(severity('ERROR'), 'one')
        loud.logger.log(severity('INFO'), 'memory')
        quiet = TensorRtLog(module, quiet=True, verbose=True)
        quiet.logger.log(severity('ERROR'), 'two')
        quiet.logger.log(severity('INFO'), 'memory again')
        quiet.logger.log(severity('VERBOSE'), 'every kernel')
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ('ERROR', 'one'),
        ('INFO', 'memory again'),
        ('INFO', 'every kernel'),
    ]
