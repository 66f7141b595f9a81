"""Hypothesis, or stand-ins that skip the property tests and keep the other tests."""

import functools

import pytest

try:
    from hypothesis import given, settings
    from hypothesis import strategies as st
except ModuleNotFoundError:

    class _Strategy:
        """Replaces all strategies, and the functions that make them."""

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
