"""A node whose constructor never returns, as in a middleware that waits for something."""

import sys
import time

from trt_perception.ros.process import run_node


def make_node():
    print('stuck', flush=True)
    while True:
        time.sleep(0.1)


if __name__ == '__main__':
    sys.exit(run_node(make_node, lambda _: 0))
