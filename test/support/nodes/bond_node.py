# SPDX-License-Identifier: Apache-2.0
"""Run a program with a bond that waits longer for the manager's answer when the bond ends.

    python bond_node.py detector_node|detections_3d ARGUMENTS

In production, the node waits 0.1 s, and here at most 4 s. On a busy machine, the manager may learn
that the publisher is gone before it receives the end of the bond, and then reports a silent node.
"""

import sys

from trt_perception import commands
from trt_perception.ros.runtime import bond

if __name__ == '__main__':
    bond._END_REPEAT_S = 2.0
    sys.exit(getattr(commands, sys.argv.pop(1))())
