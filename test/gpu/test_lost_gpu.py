# SPDX-License-Identifier: Apache-2.0
"""A lost GPU context is counted and reported, and the process exits with a non-zero code."""

import os
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest
import rclpy
from ament_index_python.packages import get_package_prefix
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from support.gpu.gpu_support import build_plan, why_no_tensorrt

pytestmark = pytest.mark.ros

ROOT = Path(__file__).resolve().parents[2]
MAX_EXIT_S = 2.0


def run_until_exit(argument, tmp_path):
    """Run the node until it exits. Return exit code, output, diagnostics and seconds to exit."""
    for index in range(20):
        cv2.imwrite(str(tmp_path / f'{index:02d}.png'), np.full((48, 64, 3), 114, np.uint8))
    replay = (
        Path(get_package_prefix('trt_perception')) / 'lib' / 'trt_perception' / 'replay_images'
    )
    context = rclpy.Context()
    rclpy.init(context=context)
    listener = rclpy.create_node('listener', context=context)
    executor = rclpy.executors.SingleThreadedExecutor(context=context)
    executor.add_node(listener)
    diagnostics = []
    listener.create_subscription(DiagnosticArray, '/diagnostics', diagnostics.append, 50)
    script = Path(__file__).parents[1] / 'support' / 'nodes' / 'lost_gpu_node.py'
    output = tmp_path / 'node.log'
    with output.open('w') as log:
        node = subprocess.Popen([sys.executable, script, argument], stdout=log, stderr=log)
        camera = subprocess.Popen(
            [replay, tmp_path, '--rate', '10', '--loop', '--wait-for-subscribers', '1']
        )
        try:
            end = time.monotonic() + 60
            while node.poll() is None and time.monotonic() < end:
                executor.spin_once(timeout_sec=0.02)
            died = time.time()
            for _ in range(20):
                executor.spin_once(timeout_sec=0.05)
        finally:
            for process in (camera, node):
                process.kill()
                process.wait()
            listener.destroy_node()
            rclpy.shutdown(context=context)
    text = output.read_text()
    print(text)
    started = float(text.split('dead at ')[1].split()[0])
    return node.returncode, text, diagnostics, died - started


def check_exit(code, text, diagnostics, seconds, limit_s=MAX_EXIT_S):
    print(f'exited after {seconds:.2f} s')
    assert code == 1
    assert 'GPU context is lost' in text
    assert seconds <= limit_s
    errors = [
        s for message in diagnostics for s in message.status if s.level == DiagnosticStatus.ERROR
    ]
    assert errors
    values = {entry.key: entry.value for entry in errors[-1].values}
    assert int(values['failed']) >= 1
    ended = sum(int(value) for key, value in values.items() if key.startswith('dropped: '))
    ended += int(values['published']) + int(values['failed']) + int(values['in flight'])
    assert int(values['received']) == ended


def test_process_exits_after_a_lost_context(tmp_path):
    # A machine that runs other tests at the same time is slower.
    check_exit(*run_until_exit('pretend', tmp_path), limit_s=5 * MAX_EXIT_S)


@pytest.mark.skipif(bool(why_no_tensorrt()), reason=why_no_tensorrt())
def test_illegal_address_ends_the_process(tmp_path):
    engine = tmp_path / 'digits.engine'
    engine.write_bytes(build_plan((ROOT / 'models' / 'digits.onnx').read_bytes()))
    manifest = (ROOT / 'models' / 'digits.onnx.json').read_text()
    import hashlib
    import json

    content = json.loads(manifest)
    digest = hashlib.sha256(engine.read_bytes()).hexdigest()
    size = os.stat(engine).st_size
    content['engine'] = {'file': engine.name, 'sha256': digest, 'size_bytes': size}
    engine.with_name('digits.engine.json').write_text(json.dumps(content))
    check_exit(*run_until_exit(str(engine), tmp_path))
