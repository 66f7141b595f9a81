"""One logger in a process, whose listeners each hear their own time."""

from __future__ import annotations

import gc
import logging
import weakref

from support.building.tensorrt_standin import StandIn
from trt_perception.stages.tensorrt_log import TensorRtLog


def severity(name):
    return type('Severity', (), {'name': name})


def test_tensorrt_gets_one_logger_and_each_listener_hears_its_own_time():
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


def test_a_listener_that_is_gone_hears_nothing():
    module = StandIn('10.3', '10.3.0.26')
    listener = TensorRtLog(module, quiet=True)
    logger, gone = listener.logger, weakref.ref(listener)
    del listener
    gc.collect()
    assert gone() is None
    logger.log(severity('ERROR'), 'nobody listens')


def test_errors_that_become_exceptions_are_no_errors_of_the_log(caplog):
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
