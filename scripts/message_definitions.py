# SPDX-License-Identifier: Apache-2.0
"""Write the message definitions and type hashes that bags need, from the installed ROS 2 packages.

Run the script after a change to TYPES, in the environment of `. scripts/env`:

    python3 scripts/message_definitions.py

It writes trt_perception/bags/message_definitions.json: for each type of TYPES, and each type that
they use, the type hash and the lines of the definition. Comments are left out. A program writes
bags with this file where ROS 2 is not installed.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from ament_index_python.packages import get_package_share_directory

TABLE = (
    Path(__file__).resolve().parents[1] / 'trt_perception' / 'bags' / 'message_definitions.json'
)
#: All types of messages that the package publishes, and types of their inputs.
TYPES = (
    'diagnostic_msgs/msg/DiagnosticArray',
    'foxglove_msgs/msg/ImageAnnotations',
    'sensor_msgs/msg/CameraInfo',
    'sensor_msgs/msg/CompressedImage',
    'sensor_msgs/msg/Image',
    'sensor_msgs/msg/PointCloud2',
    'vision_msgs/msg/Classification',
    'vision_msgs/msg/Detection2DArray',
    'vision_msgs/msg/Detection3DArray',
    'vision_msgs/msg/LabelInfo',
    'visualization_msgs/msg/MarkerArray',
)
# A type, a name, and a default value or the value of a constant.
LINE = re.compile(r'([\w/]+(?:<=\d+)?(?:\[(?:<=)?\d*\])?)\s+(\w+)(?:\s*(=)\s*(.*)|\s+(\S.*))?')


def plain_line(line):
    """Return a line of a definition without its comment, with single spaces; '' if it is empty.

    Raises:
        ValueError: the line has quotes, which may contain a number sign, or is not a field.
    """
    line = line.partition('#')[0].strip()
    if not line:
        return ''
    match = LINE.fullmatch(line)
    if match is None or '"' in line or "'" in line:
        raise ValueError(f'not a field or constant: {line}')
    kind, name, equals, value, default = match.groups()
    if equals:
        return f'{kind} {name}={value.strip()}'
    return f'{kind} {name} {default}' if default else f'{kind} {name}'


def installed_definitions():
    """Map the name of each needed type to its hash and the lines of its definition."""
    found = {}
    waiting = list(TYPES)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        package, _, message = name.split('/')
        path = Path(get_package_share_directory(package)) / 'msg' / message
        text = path.with_suffix('.msg').read_text(encoding='utf-8')
        content = json.loads(path.with_suffix('.json').read_text(encoding='utf-8'))
        hashes = {entry['type_name']: entry['hash_string'] for entry in content['type_hashes']}
        lines = [plain for line in text.splitlines() if (plain := plain_line(line))]
        found[name] = {'type_hash': hashes.pop(name), 'lines': lines}
        waiting += hashes
    return dict(sorted(found.items()))


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1] in ('-h', '--help') else 2
    definitions = installed_definitions()
    TABLE.write_text(json.dumps(definitions, indent=1) + '\n', encoding='utf-8')
    print(f'{TABLE}: {len(definitions)} definitions')
    return 0


if __name__ == '__main__':
    sys.exit(main())
