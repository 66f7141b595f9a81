# SPDX-License-Identifier: Apache-2.0
"""Wait for a condition, and the failure of a test that waited in vain."""

import time

#: Time limit of a wait, in seconds. It is long, because the machine may be busy.
DEADLINE_S = 90


class WaitTimeoutError(AssertionError):
    """Something did not happen within the time limit of a wait.

    Of the tests that fail, only those with this exception, or with subprocess.TimeoutExpired, run
    once more (scripts/test, --only-rerun).
    """


def wait_until(condition, what='a condition', seconds=DEADLINE_S):
    """Wait until a function returns a true value, and return the value.

    Args:
        condition: the function.
        what: names what the test waits for.
        seconds: the time limit.

    Raises:
        WaitTimeoutError: the function returned no true value within the time limit.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise WaitTimeoutError(f'expected within {seconds} s: {what}')
        time.sleep(0.0005)
    return value


def require_arrivals(counts, what):
    """Check that messages arrived in each window of a measurement.

    Args:
        counts: the number of messages that arrived in each window.
        what: names the messages.

    Raises:
        WaitTimeoutError: a count is 0. The transport or the machine was too slow.
    """
    counts = list(counts)
    if not all(counts):
        raise WaitTimeoutError(f'expected {what} in each window (got {counts})')
