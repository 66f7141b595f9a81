"""Format the findings of doctor's checks as text for golden files."""


def lines_of(findings):
    """Return the findings as lines, each followed by its fix."""
    lines = []
    for finding in findings:
        lines.append(f'{finding.level} {finding.name}: {finding.found}')
        lines += [f'  fix: {finding.fix}'] * bool(finding.fix)
    return lines


def text_of(scenes, good=()):
    """Return the findings in all situations as text, without the findings that `good` contains.

    Args:
        scenes: maps the name of each situation to its findings.
        good: findings without any fault, which the text omits.
    """
    lines = []
    for name, findings in scenes.items():
        lines += [f'== {name}', *lines_of(f for f in findings if f not in good)]
    return '\n'.join(lines)
