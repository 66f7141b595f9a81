# SPDX-License-Identifier: Apache-2.0
"""Import Hypothesis with settings for all tests, or define stand-ins that skip the property tests.

Import Hypothesis from here only, because each `settings` copies the values of its time.
"""

import functools

import pytest

try:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    # Each run has the same examples. On a busy machine, making them may take long.
    settings.register_profile(
        'repeatable',
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile('repeatable')
except ModuleNotFoundError:

    class _Strategy:
        """Replaces all strategies of Hypothesis, and the functions that create strategies."""

        def __getattr__(self, name):
            return self

        def __call__(self, *args, **kwargs):
            return self

        def __or__(self, other):
            return self

    st = _Strategy()

    def given(*args, **kwargs):
        """Skip the test, or the test that calls a property check."""

        def decorate(check):
            @functools.wraps(check)
            def skipping(*args, **kwargs):
                pytest.skip('needs hypothesis')

            return pytest.mark.skip(reason='needs hypothesis')(skipping)

        return decorate

    def settings(**kwargs):
        return lambda test: test


__all__ = ['given', 'settings', 'st']
