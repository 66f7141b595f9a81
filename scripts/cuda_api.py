# SPDX-License-Identifier: Apache-2.0
"""Add the names of the installed cuda-bindings release to test/data/cuda_api.json.

Run the script once per release, in a separate virtual environment. No GPU is needed:

    python3 -m venv /tmp/cuda
    /tmp/cuda/bin/pip install 'cuda-bindings==13.5.*'
    /tmp/cuda/bin/python scripts/cuda_api.py

The table maps sets of releases to names that exist in exactly these releases. Each digit of a set
is an index into "releases". Names are functions and constants of driver, runtime and nvrtc, and
members of the enumerations in ENUMERATIONS.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / 'test' / 'data' / 'cuda_api.json'
ENUMERATIONS = (
    'CUresult',
    'cudaDeviceAttr',
    'cudaError_t',
    'cudaMemcpyKind',
    'cudaStreamCaptureMode',
    'nvrtcResult',
)


def names():
    """Return all names, as ``module.name`` or ``module.Enumeration.member``."""
    found = set()
    for module_name in ('driver', 'nvrtc', 'runtime'):
        module = importlib.import_module(f'cuda.bindings.{module_name}')
        for name, value in vars(module).items():
            if name.startswith(('cu', 'CU', 'nvrtc')):
                found.add(f'{module_name}.{name}')
            if name in ENUMERATIONS and isinstance(value, type):
                # Not an Enum in every release, but all have __members__.
                found |= {f'{module_name}.{name}.{member}' for member in value.__members__}
    return found


def releases_of(table):
    """Map each name in a table to the set of its releases."""
    return {
        name: {release for release, bit in zip(table['releases'], bits, strict=True) if bit == '1'}
        for bits, listed in table['names'].items()
        for name in listed
    }


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ('-h', '--help') else 2
    release = '.'.join(importlib.metadata.version('cuda-bindings').split('.')[:2])
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {'releases': [], 'names': {}}
    known = releases_of(table)
    for name in known:
        known[name].discard(release)
    for name in names():
        known.setdefault(name, set()).add(release)
    releases = sorted({*table['releases'], release}, key=lambda r: [int(n) for n in r.split('.')])
    grouped = {}
    for name in sorted(known):
        bits = ''.join(str(int(release in known[name])) for release in releases)
        if '1' in bits:
            grouped.setdefault(bits, []).append(name)
    content = {'releases': releases, 'names': dict(sorted(grouped.items()))}
    TABLE.write_text(json.dumps(content, indent=1) + '\n')
    print(f'{TABLE}: {len(known)} names of {", ".join(releases)}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
