# SPDX-License-Identifier: Apache-2.0
"""Format the findings of doctor's checks as text for golden files."""


def lines_of(findings):
    """Return the findings as lines, each followed by its fix."""
    lines = []
    for finding in findings:
        lines.append(f'{finding.level} {finding.name}: {finding.found}')
        lines += [f'  fix: {finding.fix}'] * bool(finding.fix)
    return lines


def text_of(scenes, good=()):
    """Return the findings in all situations as text.

    Args:
        scenes: maps the name of each situation to its findings.
        good: findings without any fault. The text lists them once. A situation then has only its
            other findings, and the names of the checks that it omits.
    """
    lines = ['== good', *lines_of(good)] if good else []
    for name, findings in scenes.items():
        names = {finding.name for finding in findings}
        lines += [f'== {name}', *lines_of(f for f in findings if f not in good)]
        lines += [f'not checked: {finding.name}' for finding in good if finding.name not in names]
    return '\n'.join(lines)
