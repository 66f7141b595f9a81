# SPDX-License-Identifier: Apache-2.0
"""Keep the node busy for a long time, and print a table of promised and measured figures.

Exit codes: 0 every promise was kept, 1 a promise was broken, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The checkout's sources must not hide the installed package.
sys.path[:] = [entry for entry in sys.path if Path(entry or '.').resolve() != ROOT]
sys.path.insert(0, str(ROOT / 'test'))

from trt_perception.process.option_parser import OptionParser  # noqa: E402
from trt_perception.process.standard_streams import guarded_streams  # noqa: E402

EXAMPLES = """\
examples:
  scripts/soak                                   all soaks, about 40 minutes
  scripts/soak --only lifecycle,silence          two soaks, in a minute
  scripts/soak --minutes 120 --json result.json  the long soaks take two hours each
  scripts/soak --only lifecycle --model yolo.engine
  scripts/soak --only frames,signals --intake rclpy
  scripts/soak --only many_cameras --minutes 20
"""
NAMES = (
    'lifecycle',
    'silence',
    'faults',
    'cameras',
    'transitions',
    'signals',
    'frames',
    'overload',
    'many_cameras',
    'damaged',
    'bad_outputs',
    'memory',
    'triton',
)


def parse():
    parser = OptionParser(
        'scripts/soak',
        'Test promises over a long time, and print the measured figures.',
        EXAMPLES,
    )
    parser.add_argument(
        '--minutes',
        type=float,
        default=10.0,
        help='minutes of overload and many_cameras (default 10); the other soaks scale with this '
        'number: 10 gives 200 cycles and signals, 10,000 frames',
    )
    parser.add_argument('--only', default='', metavar='NAMES', help=f'some of {", ".join(NAMES)}')
    parser.add_argument('--json', type=Path, metavar='FILE', help='also write the figures to FILE')
    parser.add_argument('--model', type=Path, help='engine or ONNX file (default: a tiny model)')
    parser.add_argument(
        '--intake', choices=['auto', 'rclpy'], default='auto', help="the node's image_intake"
    )
    options = parser.parse_args()
    options.only = options.only.split(',') if options.only else list(NAMES)
    unknown = set(options.only) - set(NAMES)
    if unknown:
        parser.error(f'--only must name some of {", ".join(NAMES)} (got {", ".join(unknown)})')
    if options.minutes <= 0:
        parser.error(f'--minutes must be above 0 (got {options.minutes:g})')
    if options.model is not None and not options.model.is_file():
        parser.error(f'--model must name a file (got {options.model})')
    return options


def plan(client, model, minutes, intake):
    """Return a dict from the name of a soak to its function."""
    from support.soak import soaks
    from support.soak.soak_bad_outputs import bad_outputs
    from support.soak.soak_damaged import damaged
    from support.soak.soak_frames import frames
    from support.soak.soak_many_cameras import many_cameras
    from support.soak.soak_memory import memory
    from support.soak.soak_silence import silence
    from support.soak.soak_triton import triton

    count = max(2, round(20 * minutes))
    way = {'intake': intake}
    return {
        'lifecycle': lambda: soaks.lifecycle(model, warm_up=200, cycles=max(200, count), **way),
        'silence': lambda: silence(client, model, **way),
        'faults': soaks.faults,
        'cameras': lambda: soaks.cameras(
            client, model, switches=max(2, round(10 * minutes)), **way
        ),
        'transitions': lambda: [
            *soaks.transitions(client, model, seconds=6 * minutes, **way),
            *soaks.transitions(client, seconds=6 * minutes, **way),
        ],
        'signals': lambda: soaks.signals(model, count=count, **way),
        'frames': lambda: frames(client, count=50 * count, **way),
        'overload': lambda: soaks.overload(client, seconds=60 * minutes, **way),
        'many_cameras': lambda: many_cameras(client, seconds=60 * minutes, **way),
        'damaged': lambda: damaged(client, model, seconds=6 * minutes, **way),
        'bad_outputs': lambda: bad_outputs(client, seconds=6 * minutes, **way),
        'memory': lambda: memory(client, model, seconds=6 * minutes, **way),
        'triton': lambda: triton(client, count=max(2, count // 2), **way),
    }


def run_soaks(options, folder):
    from support.nodes import graph_fixtures

    graph_fixtures.share_environment(folder)
    from support.models.tiny_model import write_tiny_model
    from support.nodes.graph import Client

    model = options.model.resolve() if options.model else write_tiny_model(folder / 'tiny.onnx')
    client = Client()
    results = {}
    try:
        for name, soak in plan(client, model, options.minutes, options.intake).items():
            if name in options.only:
                begun = time.monotonic()
                print(f'{name} ...', file=sys.stderr, flush=True)
                results[name] = soak()
                seconds = time.monotonic() - begun
                print(f'{name}: {seconds:.0f} s', file=sys.stderr, flush=True)
    finally:
        client.close()
    return results


def show(results):
    """Print the table; return whether every promise was kept."""
    print(f'\n{"":3} {"promise":64} {"limit":>10} {"measured":>10}')
    for name, figures in results.items():
        print(name)
        for figure in figures:
            word = 'ok' if figure.is_within_limit else '***'
            print(
                f'{word:3} {figure.promise:64} {figure.limit:>10.4g} {figure.value:>10.4g} '
                f'{figure.unit}'
            )
    return all(figure.is_within_limit for figures in results.values() for figure in figures)


def processor():
    for line in Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines():
        if line.startswith('model name'):
            return line.partition(':')[2].strip()
    return platform.machine()


def save(path, results, options):
    content = {
        'machine': {
            'processor': processor(),
            'cores': os.cpu_count(),
            'system': platform.platform(),
            'python': platform.python_version(),
            'ros': os.environ.get('ROS_DISTRO', ''),
            'load': os.getloadavg(),
        },
        'minutes': options.minutes,
        'intake': options.intake,
        'figures': {
            name: [{**vars(figure), 'kept': figure.is_within_limit} for figure in figures]
            for name, figures in results.items()
        },
    }
    path.write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')


def main():
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        try:
            results = run_soaks(options, Path(folder))
        except KeyboardInterrupt:
            return 130
    kept = show(results)
    if options.json is not None:
        save(options.json, results, options)
    return 0 if kept else 1


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main())
