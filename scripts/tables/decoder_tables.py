"""Writes the three tables of docs/decoders.md that follow from the decoders.

Run it in the root of a checkout: PYTHONPATH=. python3 scripts/tables/decoder_tables.py
"""

from __future__ import annotations

import re
from pathlib import Path

from trt_perception.model.decoders.table import FAMILIES, PRESETS
from trt_perception.model.preprocessing import Preprocessing

PAGE = Path('docs/decoders.md')


def preset_rows():
    """Return one row for each value of model.decoder."""
    head = ('`model.decoder`', 'family and constants', 'outputs', 'exports of')
    rows = [
        (f'`{name}`', str(preset.decoder), preset.outputs or shape_of(preset), preset.exports)
        for name, preset in PRESETS.items()
    ]
    return head, rows


def shape_of(preset):
    (output,) = preset.decoder.outputs(None)
    return f'({", ".join(map(str, output.shape))})'


def family_rows():
    """Return one row for each family."""
    head = ('family', 'reads', 'boxes', 'scores', 'NMS here')
    rows = [
        (name, kind.reads, kind.boxes, kind.scores, yes_or_no(getattr(kind, 'needs_nms', False)))
        for name, kind in FAMILIES.items()
    ]
    return head, rows


def preprocessing_rows():
    """Return one row for each preset with a usual training."""
    head = ('`model.decoder`', 'resize', 'antialias', 'padding', 'colours', 'scale', 'mean, std')
    rows = []
    for name, preset in PRESETS.items():
        if not preset.preprocessing:
            continue
        values = Preprocessing((1, 1), **preset.preprocessing)
        is_plain = (values.mean, values.std) == ((0, 0, 0), (1, 1, 1))
        mean_std = '; '.join(', '.join(map(str, three)) for three in (values.mean, values.std))
        rows.append(
            (
                f'`{name}`',
                values.resize,
                yes_or_no(values.antialias),
                '' if values.resize == 'stretch' else str(values.pad_value),
                values.color_order,
                '1/255' if values.scale == 1 / 255 else f'{values.scale:g}',
                '0, 1' if is_plain else mean_std,
            )
        )
    return head, rows


def yes_or_no(flag):
    return 'yes' if flag else 'no'


def page_text(page):
    """Return a page with its three tables written anew; each is found by its first row."""
    for head, rows in (preset_rows(), family_rows(), preprocessing_rows()):
        first = table_row(head)
        table = first + '|' + '---|' * len(head) + '\n' + ''.join(map(table_row, rows))
        page, count = re.subn(
            rf'^{re.escape(first)}(?:\|.*\n)+', lambda _, new=table: new, page, flags=re.MULTILINE
        )
        if count != 1:
            raise SystemExit(f'{PAGE}: expected one table that begins with: {first}')
    return page


def table_row(cells):
    return '|' + '|'.join(f' {cell} ' if cell else ' ' for cell in cells) + '|\n'


def main():
    """Write the page below the working folder."""
    PAGE.write_text(page_text(PAGE.read_text(encoding='utf-8')), encoding='utf-8')
    print(f'wrote {PAGE}')


if __name__ == '__main__':
    main()
