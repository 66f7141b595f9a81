# SPDX-License-Identifier: Apache-2.0
"""The page that lists the bags of a command, with links to their report pages."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from trt_perception.files.plain_text import counted
from trt_perception.offline.bags.work import Work
from trt_perception.offline.bags.work_text import failure_lines, rate_lines, result_rows
from trt_perception.offline.report_page.markup import Markup, element, name, table
from trt_perception.offline.report_page.page import PAGE_NAME, Page


def index_page(work: Work, pages: Sequence[str], command: str) -> Page:
    """Return the page about several bags.

    Args:
        work: the work after it was done.
        pages: paths of the bags that have a report page, in a folder of their result's name.
        command: the command line.
    """
    with_page = set(pages)  # there may be thousands
    links = {
        run.plan.bag: f'{quote(run.plan.output.name)}/{PAGE_NAME}'
        for run in work.runs
        if run.plan.bag in with_page
    }
    heads, *rows, total = result_rows(work)
    cells = [
        (
            element('a', name(bag), href=links[bag]) if bag in links else name(bag),
            *figures,
            _left(result),
        )
        for bag, *figures, result in rows
    ]
    heads[-1] = _left(heads[-1])
    count = counted(len(work.runs) + len(work.failures), 'bag')
    page = Page(f'Results of {count}', [*rate_lines(work), element('code', command)])
    page.add('Bags', table('', heads, [*cells, total]))
    failures = list(failure_lines(work))
    if failures:
        page.add('Failures', element('ul', *(element('li', line) for line in failures)))
    page.data |= {
        'command': command,
        'bags': [
            {
                'bag': run.plan.bag,
                'output': str(run.plan.output),
                'page': links.get(run.plan.bag),
                'is_complete': run.ledger.is_complete,
                'failure': run.failure,
                'images': counts.images,
                'detections': run.ledger.detections,
                'unread': counts.unread,
                'lost_ranges': len(counts.losses),
            }
            for run, counts in ((run, run.ledger.total) for run in work.runs)
        ],
        'failures': work.failures,
    }
    return page


def _left(text: str) -> Markup:
    """Return a cell that is aligned left."""
    return element('div', text, class_='left')
