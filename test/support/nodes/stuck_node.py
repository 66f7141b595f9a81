"""A node that never comes through its start or its end, as in a middleware that waits.

python stuck_node.py [start|end [SECONDS [lock]]]

SECONDS are what the package gives that part. With ``lock`` it hangs with the interpreter's lock
held, as where rclpy calls the middleware.
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
    if seconds is not None:
        setattr(process, f'{where.upper()}_LIMIT_S', float(seconds))

    def make_node():
        if where == 'start':
            hang(lock)
        return rclpy.create_node('stuck')

    return process.run_node(make_node, lambda _: hang(lock), [], finished=lambda _: True)


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
