# SPDX-License-Identifier: Apache-2.0
"""Write the parameter files in config/ and the generated parts of docs/*.md from the code.

    scripts/tables          write the files again
    scripts/tables --check  write nothing; exit with 1 if a file is out of date

A generated part of a page is between the lines ``<!-- begin NAME -->`` and ``<!-- end -->``.
PARTS has a function for each name.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import json
import re
import sys
import textwrap
from pathlib import Path

from trt_perception import commands, errors
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.model.decoders.table import DECODERS_BY_FAMILY, PRESETS
from trt_perception.model.preprocessing import Preprocessing, pad_value_text
from trt_perception.model.tasks.table import PUBLISHED_TOPICS, TASKS
from trt_perception.parameters.boxes_3d import BOX_PARAMETERS
from trt_perception.parameters.launch_arguments import launch_arguments
from trt_perception.parameters.values import PARAMETERS
from trt_perception.process.foreign_names import FOREIGN_NAMES

ROOT = Path(__file__).resolve().parents[1]
YAML = 'config/detect.yaml'
BOXES_YAML = 'config/detections_3d.yaml'
BOXES_YAML_HEAD = """\
# All parameters of detections_3d with their defaults, written by scripts/tables.
# Reference: docs/boxes_3d.md. Copy this file, change what you need, and start:
#   ros2 launch trt_perception detections_3d.launch.py params_file:=/path/to/my.yaml
# For one of several cameras, add a section of its own, such as /front/detections_3d.
/**:
  ros__parameters:
"""
YAML_HEAD = """\
# All parameters of detector_node with their defaults, written by scripts/tables.
# Reference: docs/parameters.md. Copy this file, change what you need, and start:
#   ros2 launch trt_perception detect.launch.py params_file:=/path/to/my.yaml
/**:
  ros__parameters:
"""
_PART = re.compile(r'^<!-- begin (\w+) -->\n.*?^<!-- end -->$', re.DOTALL | re.MULTILINE)


def table(head, rows):
    """Return a Markdown table."""
    lines = [head, ['---'] * len(head), *rows]
    return ''.join(f'|{"|".join(cell or " " for cell in line)}|\n' for line in lines)


# The node.


def detect_yaml():
    """Return config/detect.yaml."""
    return parameter_yaml(YAML_HEAD, PARAMETERS)


def boxes_yaml():
    """Return config/detections_3d.yaml."""
    return parameter_yaml(BOXES_YAML_HEAD, BOX_PARAMETERS)


def parameter_yaml(start, rows):
    """Return a parameter file with the defaults of a table."""
    lines = [start]
    group = ''
    for parameter in rows:
        head, _, leaf = parameter.name.rpartition('.')
        if head and head != group:
            lines.append(f'    {head}:\n')
        group = head
        indent = '      ' if head else '    '
        comment = f'{parameter.description} {parameter.allowed}'.strip()
        lines += [
            textwrap.fill(
                comment, 99, initial_indent=f'{indent}# ', subsequent_indent=f'{indent}# '
            ),
            f'\n{indent}{leaf}: {yaml_value(parameter.default)}\n',
        ]
    return ''.join(lines)


def yaml_value(value):
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def _can_change(parameter):
    if parameter.start_only:
        return 'never'
    return 'always' if parameter.live else ''


def box_parameters():
    """Return the parameters of detections_3d."""
    head = ('parameter', 'type', 'default', 'allowed', 'can change', 'meaning')
    return table(
        head,
        [
            (
                f'`{parameter.name}`',
                parameter.kind,
                f'`{yaml_value(parameter.default)}`',
                parameter.allowed.strip('().'),
                _can_change(parameter),
                parameter.description,
            )
            for parameter in BOX_PARAMETERS
        ],
    )


def parameters():
    """Return the parameters of the node."""
    head = ('parameter', 'type', 'default', 'allowed', 'can change', 'camera', 'meaning')
    return table(
        head,
        [
            (
                f'`{parameter.name}`',
                parameter.kind,
                f'`{yaml_value(parameter.default)}`',
                parameter.allowed.strip('().'),
                _can_change(parameter),
                'yes' if parameter.per_camera else '',
                parameter.description,
            )
            for parameter in PARAMETERS
        ],
    )


def tracker_parameters():
    """Return the parameters of the tracker."""
    return table(
        ('parameter', 'default', 'allowed', 'meaning'),
        [
            (
                f'`{parameter.name}`',
                f'`{yaml_value(parameter.default)}`',
                ', '.join(f'`{choice}`' for choice in parameter.choices)
                or parameter.allowed.strip('()'),
                parameter.description.replace(' (docs/tracks.md)', ''),  # the page of this table
            )
            for parameter in PARAMETERS
            if parameter.name.startswith('tracker.')
        ],
    )


def foreign_names():
    """Return the names of other packages, with the parameter here."""
    return table(
        ('elsewhere', 'here', 'difference'),
        [
            (', '.join(f'`{name}`' for name in row.names), row.ours and f'`{row.ours}`', row.note)
            for row in FOREIGN_NAMES
        ],
    )


def topics():
    """Return the topics of a node: the images of each camera, and what the node publishes."""
    from trt_perception.ros.topics import topic_qos

    camera_qos = 'as the camera (`image_qos.reliability`), volatile, depth `image_qos.depth`'
    info_qos = 'best effort, volatile, depth 1'
    rows = [
        ('`image`', 'sensor_msgs/Image', camera_qos, 'all', 'subscribed'),
        ('`image/compressed`', 'sensor_msgs/CompressedImage', camera_qos, 'all', 'subscribed'),
        ('`camera_info`', 'sensor_msgs/CameraInfo', info_qos, 'semantic, depth', 'subscribed'),
    ]
    for topic in PUBLISHED_TOPICS:
        tasks = [
            name for name, task in TASKS.items() if topic in (*task.topics, *task.label_topics)
        ]
        qos = topic_qos(topic)
        traits = [qos.reliability.name.lower(), qos.durability.name.lower(), f'depth {qos.depth}']
        rows.append(
            (
                f'`{topic.name}`',
                topic.message,
                ', '.join(traits).replace('_', ' '),
                'all' if len(tasks) in (0, len(TASKS)) else ', '.join(tasks),
                'only while subscribed' if topic.on_demand else '',
            )
        )
    diagnostics_qos = 'reliable, volatile, depth 10'
    rows.append(('`/diagnostics`', 'diagnostic_msgs/DiagnosticArray', diagnostics_qos, 'all', ''))
    return table(('topic', 'type', 'QoS', 'tasks', 'published'), rows)


def encodings():
    """Return the encodings of raw images that need no cv_bridge."""
    names = ' '.join(f'`{name}`' for name in PIXEL_FORMATS)
    return textwrap.fill(names, 110, break_on_hyphens=False) + '\n'


def detect_launch():
    """Return the arguments of detect.launch.py, without those that are parameters."""
    share = 'SHARE'
    known = {parameter.name for parameter in PARAMETERS}
    return table(
        ('argument', 'default', 'meaning'),
        [
            (f'`{name}`', default and f'`{default}`'.replace(share, '…'), description)
            for name, (default, description) in launch_arguments(Path(share)).items()
            if default or name not in known
        ],
    )


def demo_launch():
    """Return the arguments that demo.launch.py adds or gives a different default."""
    return declared_arguments('demo.launch.py')


def boxes_launch():
    """Return the arguments of detections_3d.launch.py."""
    return declared_arguments('detections_3d.launch.py')


def declared_arguments(name):
    """Return the arguments that a launch file declares."""
    tree = ast.parse((ROOT / 'launch' / name).read_text(encoding='utf-8'))
    rows = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') == 'DeclareLaunchArgument':
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            default, description = given['default_value'], given['description'].value
            text = getattr(default, 'value', None)
            if text is None:  # The default is a path below the share folder.
                walk = ast.walk(default)  # Yields the last part of the path first.
                parts = [each.value for each in walk if isinstance(each, ast.Constant)]
                text = '/'.join(['…', *parts[::-1]])
            rows.append((f'`{node.args[0].value}`', text and f'`{text}`', description))
    return table(('argument', 'default', 'meaning'), rows)


# Commands and errors.


def parsers():
    """Return the parser of each command by its name."""
    modules = {name: run.args[0] for name, run in sorted(commands.COMMANDS.items())}
    return {name: importlib.import_module(path)._parser() for name, path in modules.items()}


def command_usage():
    """Return purpose and usage of each command."""
    parts = []
    for name, parser in parsers().items():
        words = parser.usage or ' '.join([name, *filter(None, map(usage, parser._actions))])
        words = textwrap.fill(
            words, 110, subsequent_indent='  ', break_on_hyphens=False, break_long_words=False
        )
        words = words.replace('\xa0', ' ')
        parts.append(f'## {name}\n\n{parser.description}\n\n```text\n{words}\n```\n')
    return '\n'.join(parts)


def usage(action):
    """Return how to type one argument of a command; argparse's own text differs by release."""
    if isinstance(action, argparse._HelpAction):
        return ''
    choices = action.choices and '|'.join(map(str, action.choices))
    value = '' if action.nargs == 0 else action.metavar or choices or action.dest.upper()
    if not action.option_strings:
        return {'?': f'[{value}]', '+': f'{value} [{value} …]'}.get(action.nargs, value)
    flag = action.option_strings[-1]
    if isinstance(action, argparse.BooleanOptionalAction):
        flag = flag.replace('--no-', '--[no-]')
    typed = f'{flag} {value}{" …" if action.nargs == "+" else ""}'.strip()
    typed = typed if action.required else f'[{typed}]'
    return typed.replace(' ', '\xa0')  # prevents line breaks within an argument


def exit_codes():
    """Return the exit codes of each command from its help."""
    names = {}
    for name, parser in parsers().items():
        found = re.search(r'exit codes: (.*?)\.?\s*\Z', parser.epilog, re.I | re.DOTALL)
        names.setdefault(' '.join(found[1].split()), []).append(f'`{name}`')
    rows = [(', '.join(listed), codes) for codes, listed in names.items()]
    return table(('command', 'exit codes'), rows)


def error_classes():
    """Return a table of the error classes, each below its base class."""
    rows = []
    root = errors.TrtPerceptionError
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    kinds = {kind for kind in kinds if issubclass(kind, root) and kind is not root}
    for kind in sorted(kinds, key=lambda kind: [each.__name__ for each in kind.__mro__[::-1]]):
        first = ' '.join(kind.__doc__.partition('\n\n')[0].split()).rstrip('.')
        base = kind.__base__ in kinds and f' ({kind.__base__.__name__})'
        rows.append((f'`{kind.__name__}`{base or ""}', first.removeprefix('Raised when ')))
    return table(('class (derives from)', 'raised when'), rows)


# Models.


def presets():
    """Return one row for each value of model.decoder."""
    return table(
        ('`model.decoder`', 'family and constants', 'outputs', 'exports of'),
        [
            (
                f'`{name}`',
                str(preset.decoder),
                preset.documented_outputs or shape_of(preset),
                preset.documented_models,
            )
            for name, preset in PRESETS.items()
        ],
    )


def shape_of(preset):
    (output,) = preset.decoder.outputs(None)
    return f'({", ".join(map(str, output.shape))})'


def families():
    """Return one row for each decoder family."""
    return table(
        ('family', 'reads', 'boxes', 'scores', 'NMS here'),
        [
            (
                name,
                kind.documented_outputs,
                kind.documented_boxes,
                kind.documented_scores,
                yes_or_no(kind),
            )
            for name, kind in DECODERS_BY_FAMILY.items()
        ],
    )


def yes_or_no(family):
    return 'yes' if getattr(family, 'needs_nms', False) else 'no'


def preprocessing():
    """Return one row for each decoder preset that has a usual preprocessing."""
    resampling = 'resize', 'sides', 'antialias', 'rounded'
    head = ('`model.decoder`', *resampling, 'padding', 'colours', 'scale', 'mean, std')
    rows = []
    for name, preset in PRESETS.items():
        if not preset.preprocessing:
            continue
        values = Preprocessing((1, 1), **preset.preprocessing)
        modes = ' or '.join(preset.networks_by_resize) or values.resize
        is_plain = (values.mean, values.std) == ((0, 0, 0), (1, 1, 1))
        mean_std = '; '.join(', '.join(map(str, three)) for three in (values.mean, values.std))
        rows.append(
            (
                f'`{name}`',
                modes,
                '' if modes == 'stretch' else f'`{values.size_rounding}`',
                'yes' if values.antialias else 'no',
                'yes' if values.round_pixels else 'no',
                '' if modes == 'stretch' else pad_value_text(values.pad_value),
                values.color_order,
                '1/255' if values.scale == 1 / 255 else f'{values.scale:g}',
                '0, 1' if is_plain else mean_std,
            )
        )
    return table(head, rows)


# Benchmarks.


def box_delays():
    """Return CPU time and delays of detections_3d over DDS."""
    recorded = ROOT / 'docs' / 'data' / 'benchmarks' / 'boxes_3d_dds.json'
    record = json.loads(recorded.read_text(encoding='utf-8'))
    head = ('', 'pairs', 'published', 'CPU time for a pair', 'p50', 'p99')
    rows = [
        (
            name.replace('_', ' '),
            str(run['pairs']),
            str(run['counts']['published']),
            *(f'{run[key]:.1f} ms' for key in ('cpu_ms_per_pair', 'p50_ms', 'p99_ms')),
        )
        for name, run in record['runs'].items()
    ]
    return table(head, rows)


def box_accuracy():
    """Return the shares of right boxes in space."""
    recorded = ROOT / 'docs' / 'data' / 'benchmarks' / 'boxes_3d.json'
    record = json.loads(recorded.read_text(encoding='utf-8'))
    head = ('objects', 'depths of the surface', 'depth', 'width', 'height', 'to the true middle')
    rows = [
        (
            f'{found["objects"]} {group}, {"with masks" if region == "mask" else "boxes only"}',
            way,
            *(f'{found[f"{side}_percent"]:.1f} %' for side in ('depth', 'width', 'height')),
            f'{found["middle_median_m"]:.2f} m (p95 {found["middle_p95_m"]:.2f} m)',
        )
        for group, regions in record['figures'].items()
        for region, ways in regions.items()
        for way, found in ways.items()
        if group == 'visible' or way == 'largest mode'
    ]
    return table(head, rows)


def peers():
    """Return the figures of scripts/bench peers and their plot."""
    picture = '![Frames per second, latency and CPU time of each side](images/peers.png)\n'
    return recorded_table('peers.json', 'report') + '\n' + picture


def peers_short():
    """Return the programs in Python that scripts/bench peers compares, in a few columns."""
    report, record = recorded_peers('peers.json', 'report')
    record['medians'] = {
        name: median
        for name, median in record['medians'].items()
        if not name.startswith(('ours', 'limit')) or name == 'ours_python'
    }
    heads = 'program', 'frames/s', 'p50, ms', 'CPU, ms'
    return table(heads, best_in_bold(columns(report, record, heads), highest={1}))


def peers_300():
    """Return the figures of scripts/bench peers with 300 boxes."""
    return recorded_table('peers_300_boxes.json', 'report')


def peers_trained():
    """Return the figures of scripts/bench peers with trained weights."""
    return recorded_table('peers_trained.json', 'report')


def peers_dds():
    """Return the figures of scripts/bench peers_dds."""
    return recorded_table('peers_dds.json', 'dds_report')


def peers_dds_short():
    """Return the figures of scripts/bench peers_dds in a few columns, and their plot."""
    picture = '![Latency and CPU time of each side](images/peers_dds.png)\n'
    report, record = recorded_peers('peers_dds.json', 'dds_report')
    heads = 'cameras', 'program', 'p50, ms', 'p99, ms', 'CPU, ms', 'GPU, MiB'
    rows = columns(report, record, heads)
    groups = [list(group) for _, group in itertools.groupby(rows, key=lambda row: row[0])]
    rows = [row for group in groups for row in best_in_bold(group)]
    return table(heads, rows) + '\n' + picture


def recorded_table(name, module):
    """Return the table of a record on a GPU, with the rows of a module in benchmarks/peers."""
    report, record = recorded_peers(name, module)
    return table(report.HEADS, report.table_rows(record))


def recorded_peers(name, module):
    """Return a module in benchmarks/peers, and a record on a GPU."""
    sys.path.append(str(ROOT / 'scripts' / 'benchmarks' / 'peers'))
    path = ROOT / 'docs' / 'data' / 'benchmarks' / 'gpu' / name
    return importlib.import_module(module), json.loads(path.read_text(encoding='utf-8'))


def columns(report, record, heads):
    """Return these columns of a report's table."""
    places = [report.HEADS.index(head) for head in heads]
    return [[row[place] for place in places] for row in report.table_rows(record)]


def best_in_bold(rows, highest=()):
    """Return rows with the best figure of each column in bold.

    Args:
        rows: cells. A column without a figure in some row is not changed.
        highest: the columns in which the highest figure is best.
    """
    marked = [list(row) for row in rows]
    for place, cells in enumerate(zip(*rows, strict=True)):
        try:
            figures = [float(cell) for cell in cells]
        except ValueError:
            continue
        best = (max if place in highest else min)(figures)
        if best == (min if place in highest else max)(figures):
            continue  # all are equal, such as the number of cameras
        for row, figure in zip(marked, figures, strict=True):
            if figure == best:
                row[place] = f'**{row[place]}**'
    return marked


PARTS = {
    part.__name__: part
    for part in (
        *(
            parameters,
            tracker_parameters,
            box_parameters,
            boxes_launch,
            foreign_names,
            topics,
            encodings,
            detect_launch,
            demo_launch,
        ),
        *(command_usage, exit_codes, error_classes, presets, families, preprocessing),
        *(box_accuracy, box_delays, peers, peers_300, peers_trained, peers_dds),
        *(peers_short, peers_dds_short),
    )
}


def page_text(page):
    """Return a page with its generated parts renewed."""
    return _PART.sub(
        lambda part: f'<!-- begin {part[1]} -->\n\n{text_of(part[1])}\n<!-- end -->', page
    )


def text_of(name):
    if name not in PARTS:
        raise SystemExit(f'unknown generated part {name}; known parts: {", ".join(PARTS)}')
    return PARTS[name]()


def outdated():
    """Return the new text of each outdated file by its path."""
    pages = {path: path.read_text(encoding='utf-8') for path in (ROOT / 'docs').rglob('*.md')}
    texts = {path: page_text(text) for path, text in sorted(pages.items())}
    texts[ROOT / YAML] = detect_yaml()
    texts[ROOT / BOXES_YAML] = boxes_yaml()
    return {path: text for path, text in texts.items() if path.read_text('utf-8') != text}


def main():
    """Write the files, or compare them."""
    parser = argparse.ArgumentParser(
        'tables', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--check', action='store_true', help='compare only')
    is_check = parser.parse_args().check
    found = outdated()
    for path, text in found.items():
        print(f'{"out of date" if is_check else "wrote"}: {path.relative_to(ROOT)}')
        if not is_check:
            path.write_text(text, encoding='utf-8')
    return int(is_check and bool(found))


if __name__ == '__main__':
    sys.exit(main())
