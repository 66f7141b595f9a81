# SPDX-License-Identifier: Apache-2.0
"""Import Hypothesis, or define stand-ins that skip only the property tests.

Examples are the same in each run, so that an unchanged project does not fail by chance. Slow
examples and their slow generation are no failures, because the machine may be busy.
"""

import functools

import pytest

try:
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    settings.register_profile(
        'tests',
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile('tests')
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
