# SPDX-License-Identifier: Apache-2.0
"""Run a node that hangs at its start or end, as if the middleware waited forever.

python stuck_node.py [start|end [SECONDS [lock]]]

SECONDS is the package's limit for this step. With ``lock`` the node hangs while holding Python's
lock, as in rclpy's calls of the middleware.
"""

import ctypes
import sys
import time

import rclpy

from trt_perception.ros.runtime import process


def hang(lock):
    print('stuck', flush=True)
    sleep = ctypes.PyDLL(None).sleep if lock else time.sleep
    while True:
        sleep(1000 if lock else 0.1)


def main(where='start', seconds=None, lock=''):
    process.SIGNAL_LIMIT_S = 60.0  # only the other limits and a second signal end the node
    if seconds is not None:
        setattr(process, f'{where.upper()}_LIMIT_S', float(seconds))

    def make_node():
        if where == 'start':
            hang(lock)
        return rclpy.create_node('stuck')

    return process.run_node(make_node, lambda _: hang(lock), [], finished=lambda _: True)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
