# SPDX-License-Identifier: Apache-2.0
"""Measure one node with N cameras against N nodes with one camera, over DDS, with a model.

Each camera is a process with rclpy's ordinary publisher, which sends the same message with a new
stamp, the time of sending. Client processes receive the detections as bytes. All processes have
the transport and allocator settings of detect.launch.py. The sides of a comparison take turns.

The benchmark first prints the host's settings, and measures the intake alone: one process takes
the images of all cameras as a node does, without a model. Compare results only on equal hosts.

sent, lost: images that the cameras sent in the measured seconds, and images without detections.
worst %: share of its images for which the worst camera got detections. p50 to max: milliseconds
from the image's stamp to the arrival of its detections at the client's middleware, over all
cameras (intake: to the taken image). low p99, high p99: of the best and the worst camera.
CPU %: of all nodes; 100 % is one core. CPU ms: of the nodes for each received image.
MiB of all nodes: RSS, PSS (a shared page is divided among its processes), shm (files in /dev/shm
that belong to the nodes), GPU (increase since before the nodes started, by NVML).
"""

from __future__ import annotations

import argparse
import itertools
import signal
import sys

from cameras_report import header, medians, ratio_rows, ratios, row
from cameras_side import Case, measure, other_node_program
from common import SHARE, launch_environment, save
from host import host_settings

from trt_perception.offline.tools.parts.arguments import add_file_option, parse_path
from trt_perception.process.option_parser import OptionParser
from trt_perception.ros.runtime.arguments import number_between, text_matching

EXAMPLES = """\
examples:
  scripts/bench cameras                                the digits on the CPU, 4 cameras
  scripts/bench cameras --timing random triggered --image raw jpeg
  scripts/bench cameras yolo.engine --count 16 --rounds 5
  scripts/bench cameras yolo.engine --count 16 --timing triggered --rounds 5
  scripts/bench cameras yolo.engine --count 16 --nodes one --other ~/older_version
  scripts/bench cameras yolo.engine --count 1,4,16 --nodes one --image jpeg
  scripts/bench cameras yolo.engine --count 64 --nodes one two --image jpeg
  scripts/bench cameras yolo-seg.engine --count 1 --nodes one --view masks
  scripts/bench cameras segformer.engine --count 1 --nodes one relay --topic segmentation/mask
  scripts/bench cameras yolo.engine --count 16 --parameter device_ids:=[0,1] --json two_gpus.json
"""
SIDES = {
    'one': 'one node',
    'two': 'two nodes',
    'many': 'a node each',
    'relay': 'relay, no model',
    'other': 'other, one node',
}
DIGITS = SHARE / 'models' / 'digits.onnx'


def compare(options, case, result):
    """Measure all sides of a case in turn; print the figures, and add them to the result."""
    print(f'\n{case}\n{header()}', flush=True)
    result['intake'] = measure(options, case, 'intake', 0)
    print(row('intake, no model', result['intake']), flush=True)
    # One node and a node for each camera are equal for one camera.
    equal = {'many'} if case.count == 1 and 'one' in options.sides else set()
    rounds = {side: [] for side in options.sides if side not in equal}
    result['rounds'] = rounds
    for number in range(1, options.rounds + 1):
        # Every second round has the opposite order, so that a steady drift of the host cancels.
        for side in list(rounds)[:: 1 if number % 2 else -1]:
            rounds[side].append(measure(options, case, side, number))
            print(row(f'{SIDES[side]}, round {number}', rounds[side][-1]), flush=True)
            warn(options, case, rounds[side][-1])
    for side, results in rounds.items():
        print(row(f'{SIDES[side]}, median', medians(results)), flush=True)
    first, *others = rounds
    for other in others:
        found = ratios(rounds[first], rounds[other])
        result['ratios'][f'{first} / {other}'] = found
        name = f'{SIDES[first]} / {SIDES[other]}'
        for kind, figures in ratio_rows(found).items():
            print(row(name if kind == 'median' else f'  {kind} round', figures, '{:.2f}'))


def warn(options, case, figures):
    """Print a warning if the cameras or the clients limited the result."""
    # The edges of the measured seconds may cost each camera an image.
    share = figures['sent'] / (case.count * max(1.0, options.rate * options.seconds - 1))
    if share < 0.98:
        print(f'warning: the cameras sent only {share:.0%} of their images', file=sys.stderr)
    if missed := figures['missed_by_clients']:
        print(f'warning: {missed} detections did not reach the clients', file=sys.stderr)


def parse_counts(text):
    """Return the numbers of a text such as 1,4,16."""
    found = [int(part) for part in text.split(',') if part.isdecimal()]
    if len(found) != text.count(',') + 1 or not all(1 <= count <= 64 for count in found):
        raise argparse.ArgumentTypeError(
            f'expected numbers from 1 to 64, such as 1,4,16 (got {text})'
        )
    return found


def choices(parser, option, names, default, help_text):
    """Add an option that takes some of the names."""
    parser.add_argument(
        option,
        nargs='+',
        choices=names,
        default=default,
        help=f'{help_text} (default {" ".join(default)})',
    )


def parse_arguments():
    """Return the options of the command line."""
    parser = OptionParser('scripts/bench cameras', __doc__, EXAMPLES)
    parser.add_argument(
        *('model',),
        nargs='?',
        type=parse_path,
        default=DIGITS,
        help='engine or ONNX file (default: the digits, for a computer without a GPU)',
    )
    parser.add_argument(
        '--count',
        type=parse_counts,
        default=[4],
        metavar='N,…',
        help='number of cameras (default 4)',
    )
    choices(parser, '--image', ['raw', 'jpeg'], ['raw'], 'raw bgr8 or JPEG')
    choices(
        *(parser, '--timing', ['random', 'triggered'], ['random']),
        'random: own phase and a rate up to 0.5 %% above --rate; triggered: all at one instant',
    )
    choices(
        *(parser, '--nodes', ['one', 'two', 'many', 'relay'], ['one', 'many']),
        'one node, two nodes that share the cameras as with detect.launch.py nodes:=2, a node '
        'each, or a program that answers each image with a constant map',
    )
    parser.add_argument(
        '--topic',
        default='detections',
        metavar='NAME',
        help='topic of the results, such as segmentation/mask or depth (default detections)',
    )
    parser.add_argument(
        '--other',
        type=parse_path,
        metavar='FOLDER',
        help='also measure one node of another version of the package: a checkout or an unpacked '
        'archive',
    )
    parser.add_argument(
        '--rounds', type=number_between(1, 100), default=3, help='of each side (default 3)'
    )
    parser.add_argument(
        '--seconds',
        type=number_between(0.5, 3600.0),
        default=12.0,
        help='measured in each round (default 12)',
    )
    parser.add_argument(
        '--warm-up',
        type=number_between(0.0, 3600.0),
        default=4.0,
        metavar='SECONDS',
        help='the cameras send for this time before the measurement (default 4)',
    )
    parser.add_argument(
        '--rate',
        type=number_between(0.1, 1000.0),
        metavar='HZ',
        help='of each camera (default 30; 5 for the digits)',
    )
    parser.add_argument(
        '--size',
        type=text_matching(r'[1-9]\d{1,3}x[1-9]\d{1,3}', 'a size as 1920x1080'),
        metavar='WxH',
        help='of the images (default 1920x1080; 640x480 for the digits)',
    )
    parser.add_argument(
        *('--parameter',),
        action='append',
        default=[],
        metavar='NAME:=VALUE',
        help='parameter of the nodes',
    )
    parser.add_argument('--view', metavar='TOPIC', help='also subscribe to masks or debug_image')
    parser.add_argument(
        '--logs',
        type=parse_path,
        metavar='FOLDER',
        help='write the log of each detector_node there, with lines of level INFO',
    )
    add_file_option(
        parser, '--json', 'file for all rounds (default benchmark_output/cameras.json)'
    )
    parser.set_defaults(pictures=[])
    options = parser.parse_args()
    if not options.model.is_file():
        parser.error(f'{options.model} does not exist')
    digits = options.model == DIGITS
    options.rate = options.rate or (5.0 if digits else 30.0)
    options.size = options.size or ('640x480' if digits else '1920x1080')
    if 'two' in options.nodes and 1 in options.count:
        parser.error('--nodes two needs at least two cameras (--count)')
    options.sides = list(dict.fromkeys(options.nodes))
    if options.other:
        options.sides.append('other')
        try:
            options.other_node_program = other_node_program(options.other)
        except ValueError as error:
            parser.error(f'--other: {error}')
    return options


def main():
    """Measure all cases; print and save the figures."""
    options = parse_arguments()
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    environment = launch_environment()
    host = host_settings(environment)
    for name, value in host.items():
        print(f'{name:20} {value}', flush=True)
    content = {
        'host': host,
        'model': options.model.name,
        'rate_hz': options.rate,
        'size': options.size,
        'warm_up_s': options.warm_up,
        'seconds': options.seconds,
        'parameters': options.parameter,
        'cases': [],
    }
    try:
        for values in itertools.product(options.image, options.count, options.timing):
            case = Case(*values)
            content['cases'].append({**vars(case), 'rounds': {}, 'ratios': {}})
            compare(options, case, content['cases'][-1])
    except KeyboardInterrupt:
        return 130
    finally:  # saves the rounds before an error, too
        save('cameras', content, options.json)
    return 0


if __name__ == '__main__':
    sys.exit(main())
