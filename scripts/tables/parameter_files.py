"""Writes config/detect.yaml and docs/parameters.md from the parameter table.

Run it in the root of a checkout: PYTHONPATH=. python3 scripts/tables/parameter_files.py
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from trt_perception.parameters.config import PARAMETERS

YAML_HEAD = """\
# Parameters of detector_node: all of them, with their defaults. Reference: docs/parameters.md
# Made from trt_perception/parameters/ by:
# PYTHONPATH=. python3 scripts/tables/parameter_files.py
# Copy it, change what you need, and start:
#   ros2 launch trt_perception detect.launch.py params_file:=/path/to/my.yaml
/**:
  ros__parameters:
"""
MARKDOWN_HEAD = """\
# Parameters

Made from `trt_perception/parameters/` by
`PYTHONPATH=. python3 scripts/tables/parameter_files.py`.

*Live* parameters may change at any time (`ros2 param set /detector confidence_threshold 0.4`) and
act from the next frame on. The others are fixed while the node is configured: run
`ros2 lifecycle set /detector deactivate` and `ros2 lifecycle set /detector cleanup` first. An
unknown name, a wrong type or a value out of range is refused, at the start with exit code 2.

`detect.launch.py` takes each parameter that is not a list as an argument of the same name
(`confidence_threshold:=0.4`), which wins over the parameter file; of the lists it takes `cameras`
and `device_ids`, with commas (`cameras:=front,rear`).

What says *camera* each camera may have for itself: `camera.front.confidence_threshold` is that of
the camera `front`, which `cameras` must name. It always has the value in force. Until it is set it
has the node's, and follows it; *cleanup* forgets what was set since the start. In a parameter file
(`config/cameras.yaml` is an example), under the names of the cameras:

```yaml
/**:
  ros__parameters:
    cameras: [front, rear]
    camera:
      front:
        confidence_threshold: 0.4
      rear:
        image_transport: compressed
        max_rate_hz: 10.0
```

The `model.*` parameters say what a [manifest](manifest.md) says, but for the task and what belongs
to it, and win over it. They are needed only for a model without a manifest; what is neither in the
model, nor in a manifest, nor here is an error that lists the names to set.

| parameter | type | default | allowed | live | camera | meaning |
| --- | --- | --- | --- | --- | --- | --- |
"""


def yaml_text():
    """Return config/detect.yaml."""
    lines = [YAML_HEAD]
    group = ''
    for parameter in PARAMETERS:
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


def markdown_text():
    """Return docs/parameters.md."""
    rows = []
    for parameter in PARAMETERS:
        cells = (
            f'`{parameter.name}`',
            parameter.kind,
            f'`{yaml_value(parameter.default)}`',
            parameter.allowed.strip('().'),
            'yes' if parameter.live else '',
            'yes' if parameter.per_camera else '',
            parameter.description,
        )
        rows.append(f'| {" | ".join(cells)} |\n')
    return MARKDOWN_HEAD + ''.join(rows)


def yaml_value(value):
    return json.dumps(list(value) if isinstance(value, tuple) else value)


def main():
    """Write both files below the working folder."""
    for name, text in (
        ('config/detect.yaml', yaml_text()),
        ('docs/parameters.md', markdown_text()),
    ):
        Path(name).write_text(text, encoding='utf-8')
        print(f'wrote {name}')


if __name__ == '__main__':
    main()
