# SPDX-License-Identifier: Apache-2.0
"""The result of a check: a level, the observation and the fix.

Guarantee: every yellow or red finding has a fix.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

from trt_perception.files.plain_text import escape_controls

Level = Literal['green', 'yellow', 'red']
#: From good to bad. Yellow means: works, but not in all cases or not at full quality.
LEVELS: Final[tuple[Level, ...]] = ('green', 'yellow', 'red')
_COLORS: Final = {'green': '\033[32m', 'yellow': '\033[33m', 'red': '\033[31m'}


@dataclass(frozen=True)
class Finding:
    """One result of one check.

    Attributes:
        fix: the repair; empty if green.
    """

    area: str
    name: str
    level: Level
    found: str
    fix: str = ''

    def __post_init__(self) -> None:
        assert (self.level == 'green') == (not self.fix), f'{self.name}: only green needs no fix'


def run_check(area: str, name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Run a check and yield its findings, so that other checks run even if it raises.

    An exception becomes a red finding with this area and name.
    """
    try:
        yield from check()
    except Exception as error:  # a broken installation may raise anything
        yield Finding(
            area,
            name,
            'red',
            f'cannot be checked: {type(error).__name__}: {error}',
            'remove the cause of this error, then run doctor again',
        )


def findings_as_json(findings: Sequence[Finding], *, interrupted: bool = False) -> str:
    """Return the findings, and the number of findings of each level, as JSON.

    Args:
        findings: findings in any order.
    """
    counts = {level: _count_of_level(findings, level) for level in LEVELS}
    listed = [asdict(finding) for finding in findings]
    return json.dumps({**counts, 'interrupted': interrupted, 'findings': listed}, indent=2)


def format_findings(findings: Iterable[Finding], *, color: bool) -> Iterator[str]:
    """Yield the text of each finding under its heading, then the number of findings by level.

    The function yields each text as soon as `findings` yields the finding.

    Args:
        findings: findings in the order of their areas.
    """
    area = ''
    seen: list[Finding] = []
    for finding in findings:
        lines = []
        if finding.area != area:
            lines = ['', finding.area] if area else [finding.area]
            area = finding.area
        seen.append(finding)
        level = f'{finding.level:<6}'
        if color:
            level = f'{_COLORS[finding.level]}{level}\033[0m'
        found = escape_controls(finding.found).replace('\n', '\n' + ' ' * 11)
        lines.append(f'  {level} {escape_controls(finding.name)}: {found}')
        if finding.fix:
            fix = escape_controls(finding.fix).replace('\n', '\n' + ' ' * 14)
            lines.append(f'         fix: {fix}')
        yield '\n'.join(lines)
    yield '\n' + ', '.join(f'{_count_of_level(seen, level)} {level}' for level in LEVELS)


def _count_of_level(findings: Sequence[Finding], level: Level) -> int:
    return sum(finding.level == level for finding in findings)
