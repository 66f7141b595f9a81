"""Run scripts/demo.py with twenty scenes, each sent after the answer to the previous one."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[3] / 'scripts'
CAMERA = Path(__file__).with_name('camera_in_step.py')

sys.path.insert(0, str(SCRIPTS))
import demo  # noqa: E402

camera_command = demo.camera_command


def command_in_step(options, name, log):
    """Return the demo's camera command with another program and fewer scenes."""
    _, scenes, *rest = camera_command(options, name, log)
    return [sys.executable, CAMERA, scenes / 'scene_0[01]?.jpg', *rest]


if __name__ == '__main__':
    demo.camera_command = command_in_step
    sys.exit(demo.main())
