"""docs/troubleshooting.md quotes messages as the code has them."""

import pytest

from support.docs_pages import TROUBLESHOOTING, codes, quoted, rows

#: Not ours, or names of counts.
OTHERS = ('numpy.', 'dropped: ', 'Timeout (', 'Package ', 'topic […]', 'ros2 ')


def messages():
    cells = [cell for cell, _ in rows(TROUBLESHOOTING)]
    found = [code for cell in cells for code in codes(cell) if ' ' in code]
    return [code for code in found if not code.startswith(OTHERS)]


@pytest.mark.parametrize('message', messages())
def test_messages_are_quoted_as_they_are(message):
    assert quoted(message)


def test_there_are_messages():
    assert len(messages()) > 10
