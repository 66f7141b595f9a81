# SPDX-License-Identifier: Apache-2.0
"""The failure of a test that waited for something in vain."""


class WaitTimeoutError(AssertionError):
    """Something did not happen within the time limit of a wait.

    Of the tests that fail, only those with this exception, or with subprocess.TimeoutExpired, run
    once more (scripts/test, --only-rerun).
    """
