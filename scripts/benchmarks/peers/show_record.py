# SPDX-License-Identifier: Apache-2.0
"""The command line of report.py and dds_report.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def show_record(usage, print_table, plot):
    """Read a record, and print its table or draw its plot, as the command line says.

    Args:
        usage: text of --help.
        print_table: called with the record.
        plot: called with the record and the path of the picture.
    """
    parser = argparse.ArgumentParser(
        description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('record', type=Path, help='JSON file of the benchmark')
    parser.add_argument('picture', type=Path, nargs='?', help='file of the plot')
    options = parser.parse_args()
    record = json.loads(options.record.read_text(encoding='utf-8'))
    if options.picture:
        plot(record, options.picture)
    else:
        print_table(record)
