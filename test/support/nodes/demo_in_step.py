# SPDX-License-Identifier: Apache-2.0
"""Run patient_demo.py with twenty scenes, sent in step at 100 Hz at most."""

import sys

from patient_demo import demo

camera_command = demo.camera_command
demo.IN_STEP_HZ = dict.fromkeys(demo.IN_STEP_HZ, 100.0)


def command_with_twenty_scenes(options, name, log):
    """Return the demo's camera command with fewer scenes."""
    scenes = options.scenes
    command = camera_command(options, name, log)
    return [scenes / '*_0[01]?.jpg' if word == scenes else word for word in command]


if __name__ == '__main__':
    demo.camera_command = command_with_twenty_scenes
    sys.exit(demo.main())
