"""The whole way over real DDS: a camera made of images, the detector node, and this recorder."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np
import rclpy
from ament_index_python.packages import get_package_prefix
from ament_index_python.packages import get_package_share_directory
from demo_results import other_classes
from demo_results import report
from diagnostic_msgs.msg import DiagnosticArray
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.node import Node
from rclpy.qos import QoSDurabilityPolicy
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions
from vision_msgs.msg import Detection2DArray
from vision_msgs.msg import LabelInfo

from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.monitoring.transport_advice import transport_environment

SHARE = Path(get_package_share_directory('trt_perception'))
EXECUTABLES = Path(get_package_prefix('trt_perception')) / 'lib' / 'trt_perception'
EXAMPLES = """\
examples:
  scripts/demo                             the demo scenes, 8 a second, results in demo_output/
  scripts/demo --rate 30                   faster than a small CPU: see the dropped frames counted
  scripts/demo --encoding nv12             as a camera that sends YUV
  scripts/demo --size 1920x1080 --model digits.engine --default-transport
                                           scenes scaled up, an engine, and no profile for images

exit codes: 0 done, 1 a process failed or the counts do not add up, 2 wrong usage, 130 interrupted
"""


class Recorder(Node):
    """Keeps every detection message with its time of arrival, and the newest diagnostics."""

    def __init__(self):
        super().__init__('recorder')
        self.detections = {}
        self.arrivals_ns = {}
        self.diagnostics = {}
        self.problem = ''
        self.classes = None
        latched = QoSProfile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)
        self.create_subscription(LabelInfo, 'label_info', self._on_labels, latched)
        self.create_subscription(Detection2DArray, 'detections', self._on_detections, 100)
        self.create_subscription(DiagnosticArray, '/diagnostics', self._on_diagnostics, 10)

    def _on_detections(self, message):
        now = time.time_ns()
        stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
        self.detections[stamp] = message
        self.arrivals_ns[stamp] = now

    def _on_labels(self, message):
        self.classes = [entry.class_name for entry in message.class_map]

    def _on_diagnostics(self, message):
        for status in message.status:
            if status.name.endswith('detector: detector'):
                self.diagnostics = {entry.key: entry.value for entry in status.values}
                self.problem = status.message if status.level == DiagnosticStatus.ERROR else ''

    def counts(self):
        """Return received, published, failed, in flight, not delivered and dropped by reason."""
        names = ('received', 'published', 'failed', 'in flight', 'not delivered')
        counts = {name.replace(' ', '_'): number(self.diagnostics.get(name)) for name in names}
        counts['dropped'] = {
            key.removeprefix('dropped: '): int(value)
            for key, value in self.diagnostics.items()
            if key.startswith('dropped: ')
        }
        return counts


def number(text):
    """Return a count, None where the detector cannot tell: several cameras share the topic."""
    return int(text) if text and text.isdigit() else None


def main():
    options = parse_arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.size:
        scale_scenes(options)
    if not options.default_transport:
        # Read when a participant is made: by this recorder, and by the processes that inherit it.
        os.environ.update(
            transport_environment(str(SHARE / 'config' / 'fastdds_large_images.xml'))
        )
    # Ctrl-C and SIGTERM are ours: rclpy's handlers would end the recorder under our hands.
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    recorder = Recorder()
    try:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / 'sent.jsonl'
            run_graph(options, recorder, log)
            sent = [json.loads(line) for line in log.read_text(encoding='utf-8').splitlines()]
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        return 130
    except RuntimeError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    finally:
        recorder.destroy_node()
        rclpy.try_shutdown()
    return report(options, recorder, sent)


def scale_scenes(options):
    """Write the scenes and their truth in another size below the output, and use those."""
    width, height = options.size
    folder = options.output / 'scenes'
    folder.mkdir(exist_ok=True)
    content = json.loads(options.truth.read_text(encoding='utf-8'))
    scales = {}
    for image in content['images']:
        picture = cv2.imread(str(options.scenes / image['file_name']))
        scales[image['id']] = width / picture.shape[1], height / picture.shape[0]
        cv2.imwrite(str(folder / image['file_name']), cv2.resize(picture, options.size))
    for annotation in content['annotations']:
        x, y = scales[annotation['image_id']]
        annotation['bbox'] = (np.array(annotation['bbox']) * (x, y, x, y)).tolist()
    options.scenes, options.truth = folder, options.output / 'truth.json'
    options.truth.write_text(json.dumps(content), encoding='utf-8')


def run_graph(options, recorder, log):
    """Run detector and camera, and end both whatever happens."""
    processes = {}
    try:
        run_processes(options, recorder, processes, log)
    finally:
        for process in processes.values():
            stop(process)


def run_processes(options, recorder, processes, log):
    """Run until every image was sent and every frame in flight has ended."""
    detector = [
        *(str(EXECUTABLES / 'detector_node'), '--ros-args', '--log-level', 'warn'),
        *(
            '-p',
            'autostart:=true',
            '-p',
            f'engine_path:={options.model}',
            '-p',
            'diagnostics_period_s:=0.2',
        ),
    ]
    camera = [
        *(str(EXECUTABLES / 'replay_images'), str(options.scenes), '--rate', str(options.rate)),
        *('--encoding', options.encoding, '--wait-for-subscribers', '1', '--log', str(log)),
        *('--ros-args', '--log-level', 'warn'),
    ]
    processes['detector_node'] = subprocess.Popen(detector)
    print('detector_node: loading the model')
    wait_for(
        recorder,
        processes,
        lambda: recorder.diagnostics.get('state') == 'active' and recorder.classes is not None,
        60,
        'the detector to be active',
    )
    foreign = other_classes(options.truth, recorder.classes)
    if foreign:
        print(f'note: {foreign}', file=sys.stderr)
    processes['replay_images'] = subprocess.Popen(camera)
    print(f'replay_images: sending {options.scenes} at {options.rate:g} Hz')
    shown = 0
    while processes['replay_images'].poll() is None:
        rclpy.spin_once(recorder, timeout_sec=0.1)
        check(processes['detector_node'], 'detector_node')
        if len(recorder.detections) // 20 > shown // 20 and sys.stdout.isatty():
            print(f'\r{len(recorder.detections)} images with detections', end='', flush=True)
            shown = len(recorder.detections)
    print()
    check(processes['replay_images'], 'replay_images')

    def settled():
        counts = recorder.counts()
        return counts['in_flight'] == 0 and counts['published'] == len(recorder.detections)

    # Two diagnostic messages, so that the last image is in; in a second the camera is missed.
    deadline = time.monotonic() + 0.5
    wait_for(
        recorder,
        processes,
        lambda: time.monotonic() > deadline and settled(),
        10,
        'the last detections',
    )
    stop(processes['detector_node'])
    check(processes['detector_node'], 'detector_node')


def wait_for(recorder, processes, condition, seconds, what):
    """Spin until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        # An active detector's problem is its camera, which ends before the last detections come.
        if recorder.problem and recorder.diagnostics['state'] != 'active':
            raise RuntimeError(f'detector_node: {recorder.problem}')
        if time.monotonic() > deadline:
            raise RuntimeError(
                f'waited {seconds} s for {what}; the diagnostics say '
                f'{recorder.diagnostics or "nothing"}'
            )
        check(processes['detector_node'], 'detector_node')
        rclpy.spin_once(recorder, timeout_sec=0.1)


def check(process, name):
    """Fail where a process has ended with an error."""
    if process.poll():
        raise RuntimeError(
            f'{name} ended with exit code {process.returncode}; see its messages above'
        )


def stop(process):
    """Interrupt a process as Ctrl-C would and wait for it."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def positive(text):
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f'must be above 0 and at most 1000 (got {text})')
    return value


def size(text):
    """Return width and height of a text as 1920x1080."""
    sides = [int(side) for side in text.lower().split('x') if side.isdecimal()]
    if len(sides) != 2 or not all(16 <= side <= 8192 for side in sides):
        raise argparse.ArgumentTypeError(f'expected a size as 1920x1080 (got {text})')
    return tuple(sides)


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog='scripts/demo',
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--rate', type=positive, default=8.0, metavar='HZ', help='scenes a second (default 8)'
    )
    parser.add_argument(
        '--encoding',
        choices=list(PIXEL_FORMATS),
        default='bgr8',
        metavar='NAME',
        help='as replay_images --encoding (default bgr8)',
    )
    parser.add_argument(
        '--size',
        type=size,
        metavar='WxH',
        help='of the scenes, scaled before (default: as they are)',
    )
    parser.add_argument(
        '--model',
        type=Path,
        default=SHARE / 'models' / 'digits.onnx',
        help='default: the digits detector',
    )
    parser.add_argument(
        '--output',
        type=Path,
        default=Path('demo_output'),
        metavar='DIR',
        help='default demo_output',
    )
    parser.add_argument(
        '--default-transport', action='store_true', help='without the Fast DDS profile for images'
    )
    options = parser.parse_args()
    options.scenes = SHARE / 'demo' / 'scenes'
    options.truth = SHARE / 'demo' / 'truth.json'
    for path in (options.model, options.scenes, options.truth):
        if not path.exists():
            parser.error(f'{path} does not exist')
    return options


if __name__ == '__main__':
    sys.exit(main())
