# SPDX-License-Identifier: Apache-2.0
"""Check that docs/troubleshooting.md quotes messages exactly."""

import pytest

from support.docs_pages import TROUBLESHOOTING, codes, quoted, rows

#: Beginnings of quoted texts that are messages of other programs, or names of counts.
OTHERS = (
    *('numpy.', 'dropped: ', 'Timeout (', 'Package '),
    *('New publisher ', 'topic […]', 'ros2 '),
    *('ros2: ', 'colcon: ', 'rosdep: ', 'No module named '),
)


def messages():
    cells = [cell for cell, _ in rows(TROUBLESHOOTING)]
    found = [code for cell in cells for code in codes(cell) if ' ' in code]
    return [code for code in found if not code.startswith(OTHERS)]


@pytest.mark.parametrize('message', messages())
def test_page_quotes_messages_exactly(message):
    assert quoted(message)


def test_page_quotes_more_than_10_messages():
    assert len(messages()) > 10
