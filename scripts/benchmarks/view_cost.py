# SPDX-License-Identifier: Apache-2.0
"""Measure what a subscriber of `annotations`, `masks` or `debug_image` costs the detections.

One node serves all cameras, each a process of its own. The node and the cameras run without a
break. A viewer subscribes to the topic in every second window, in changing order, and destroys its
subscriptions for the others. At the end, the viewer compares messages of `annotations` with the
`detections` of the same image.

p50 to max: milliseconds from the image's stamp to the arrival of its detections. images/s:
detections received. CPU ms: of the node for each image.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from cameras_report import match, side_figures
from cameras_roles import DRAIN_S, READY_LINE, Schedule
from cameras_side import ROLES, START_S, TAIL_S, Case, image_words, start_node
from children import Children
from common import launch_environment, save
from host import cpu_seconds, host_settings

from trt_perception.offline.tools.parts.arguments import add_file_option, parse_path
from trt_perception.process.option_parser import OptionParser

EXAMPLES = """\
examples:
  scripts/bench view_cost yolo.engine
  scripts/bench view_cost yolo-seg.engine --view masks --rounds 3
  scripts/bench view_cost yolo.engine --count 8 --rate 200 --image jpeg    at full load
"""
#: A picture of the demo, in which the package's models find objects.
PICTURE = Path(__file__).resolve().parents[2] / 'demo' / 'scenes' / 'scene_046.jpg'
VIEWER = Path(__file__).with_name('view_cost_viewer.py')
SIDES = {False: 'without', True: 'with'}
#: Seconds after each change of the viewer that belong to no window.
SETTLE_S = 1.0
#: Seconds in which the viewer compares messages, at the end.
COMPARE_S = 2.0
SHOWN = 'images_per_s', 'p50_ms', 'p95_ms', 'p99_ms', 'max_ms', 'cpu_ms', 'lost'


def windows(start_s, rounds, seconds):
    """Yield for each window: whether it is viewed, its first second and its end."""
    for number in range(rounds):
        # Every second round has the opposite order, so that a steady drift of the host cancels.
        for viewed in (False, True)[:: -1 if number % 2 else 1]:
            yield viewed, start_s + SETTLE_S, start_s + SETTLE_S + seconds
            start_s += SETTLE_S + seconds


def measure(options):
    """Run node, cameras, client and viewer once. Return the figures of all windows by side."""
    case = Case(options.image, options.count, 'random')
    environment = launch_environment()
    with Children() as children:

        def role(script, *words):
            return children.start(script, *words, environment=environment)

        node = start_node(children, options, case, 'one', case.cameras, log=options.log)
        client = role(ROLES, 'client', *case.cameras)
        words = *image_words(options, case), '--picture', options.picture
        cameras = [role(ROLES, 'camera', name, *words) for name in case.cameras]
        viewer = role(VIEWER, options.view, *case.cameras)
        children.wait_for(READY_LINE, [client, *cameras, viewer], START_S)
        start_s = time.time() + 0.5
        plan = list(windows(start_s + options.warm_up, options.rounds, options.seconds))
        end_s = plan[-1][2] + COMPARE_S
        schedule = Schedule(start_s, end_s + TAIL_S, options.rate, case.timing, 0)
        for child in (*cameras, client):
            child.tell(schedule.line())
        children.sleep_until(plan[0][1] - SETTLE_S)
        cpu_s = []
        for viewed, first_s, last_s in plan:
            viewer.tell('on' if viewed else 'off')
            children.sleep_until(first_s)
            before_s = cpu_seconds(node.pid)
            children.sleep_until(last_s)
            cpu_s.append(cpu_seconds(node.pid) - before_s)
        viewer.tell(f'compare {COMPARE_S}')
        viewed_counts = viewer.result(COMPARE_S + 30)
        limit_s = COMPARE_S + TAIL_S + DRAIN_S + 30
        sent = {}
        for camera in cameras:
            sent.update(camera.result(limit_s))
        received = client.result(limit_s)
        warnings = [line for line in node.log_lines() if line.startswith('[WARN]')]
    found = {side: [] for side in SIDES.values()}
    for (viewed, first_s, last_s), used_s in zip(plan, cpu_s, strict=True):
        bounds = round(first_s * 1e9), round(last_s * 1e9)
        latencies = {
            name: match(sent[name], received['arrivals'][name], *bounds) for name in case.cameras
        }
        figures = side_figures(latencies, used_s, options.seconds)
        figures['images_per_s'] = figures['received'] / options.seconds
        found[SIDES[viewed]].append(figures)
    return {
        'rounds': found,
        'viewer': viewed_counts,
        'missed_by_client': received['missed'],
        'objects': received['objects'],
        'warnings': warnings,
    }


def summary(rounds):
    """Return the medians of both sides, and the median ratio of the rounds, by figure."""
    table = {}
    for side, figures in rounds.items():
        # A figure is unknown for a window without detections.
        table[side] = {
            name: statistics.median(each[name] for each in figures)
            for name in SHOWN
            if all(each[name] is not None for each in figures)
        }
    table['with / without'] = {
        name: statistics.median(
            one[name] / other[name]
            for one, other in zip(rounds['with'], rounds['without'], strict=True)
        )
        for name in SHOWN
        if name in table['with'] and all(each[name] for each in rounds['without'])
    }
    return table


def print_table(table):
    """Print the summary."""
    print(f'{"":16}' + ''.join(f'{name:>14}' for name in SHOWN))
    for label, figures in table.items():
        cells = (f'{figures[name]:14.3f}' if name in figures else f'{"-":>14}' for name in SHOWN)
        print(f'{label:16}' + ''.join(cells), flush=True)


def parse_arguments():
    """Return the options of the command line."""
    parser = OptionParser('scripts/bench view_cost', __doc__, EXAMPLES)
    parser.add_argument('model', type=parse_path, help='engine or ONNX file')
    parser.add_argument(
        '--view',
        choices=['annotations', 'masks', 'debug_image'],
        default='annotations',
        help='topic of the viewer (default annotations)',
    )
    parser.add_argument('--count', type=int, default=1, help='cameras (default 1)')
    parser.add_argument('--rate', type=float, default=30.0, help='of each camera (default 30 Hz)')
    parser.add_argument('--image', choices=['raw', 'jpeg'], default='raw', help='default raw')
    parser.add_argument(
        '--picture', type=parse_path, default=PICTURE, metavar='FILE', help="default: the demo's"
    )
    parser.add_argument('--size', default='1920x1080', help='default 1920x1080')
    parser.add_argument('--rounds', type=int, default=5, help='windows of each side (default 5)')
    parser.add_argument('--seconds', type=float, default=8.0, help='of a window (default 8)')
    parser.add_argument('--warm-up', type=float, default=2.0, help='seconds (default 2)')
    parser.add_argument(
        *('--parameter',), action='append', default=[], metavar='NAME:=VALUE', help='of the node'
    )
    parser.add_argument('--log', type=parse_path, metavar='FILE', help="the node's log")
    add_file_option(parser, '--json', 'result (default benchmark_output/view_cost.json)')
    return parser.parse_args()


def main():
    options = parse_arguments()
    content = {
        'host': host_settings(launch_environment()),
        'model': options.model.name,
        **{name: getattr(options, name) for name in ('view', 'count', 'rate', 'image', 'size')},
        'seconds': options.seconds,
        'picture': options.picture.name,
        'parameters': options.parameter,
        **measure(options),
    }
    content['medians'] = summary(content['rounds'])
    save('view_cost', content, options.json)
    print_table(content['medians'])
    print(json.dumps({**content['viewer'], 'objects': content['objects']}))
    compared = content['viewer']['compared']
    if options.view == 'annotations' and not 0 < compared == content['viewer']['equal']:
        print('the annotations do not equal the detections', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
