# SPDX-License-Identifier: Apache-2.0
"""Run simulated cameras, the detector node and a recorder, connected by DDS."""

from __future__ import annotations

import argparse
import contextlib
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
from ament_index_python.packages import get_package_prefix, get_package_share_directory
from demo_image_tasks import RESULT_TOPICS, write_crops
from demo_recorder import Recorder
from demo_results import has_arrived, other_classes, report_results
from demo_tracks import write_moving_scene
from rclpy.signals import SignalHandlerOptions

from trt_perception.errors import ConfigError
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.model.tasks.table import TASKS
from trt_perception.parameters.launch_arguments import demo_cameras
from trt_perception.process.option_parser import OptionParser
from trt_perception.process.standard_streams import guarded_streams
from trt_perception.transport.advice import CAMERA_PROFILE, transport_environment

sys.path.append(str(Path(__file__).resolve().parents[1] / 'test'))
from support.ties import tie

ROOT = Path(__file__).resolve().parents[1]
SHARE = Path(get_package_share_directory('trt_perception'))
EXECUTABLES = Path(get_package_prefix('trt_perception')) / 'lib' / 'trt_perception'
#: Highest rate of a camera that sends in step, by whether there are several cameras. With --track,
#: all send at the higher rate: a track ends after a second without detections of its object.
IN_STEP_HZ = {False: 8.0, True: 2.0}
#: Seconds to wait for the answer to the last image, by whether cameras wait for answers. If the
#: detector is busy, an image that waits when its camera is switched off is lost.
LAST_ANSWER_S = {False: 0.5, True: 20.0}
#: Seconds to wait for a state of the detector, and for its end. Busy machines are slow.
WAIT_S = 60.0
EXAMPLES = """\
examples:
  scripts/demo                             each scene after the answer to the previous one, at most
                                           8 Hz; results in demo_output/detect/
  scripts/demo --rate 60                   too fast for a small CPU: counts dropped images
  scripts/demo --task segment              masks; obb: oriented boxes, pose: keypoints
  scripts/demo --task classify             classes of crops with one digit
  scripts/demo --task semantic             the class of each pixel
  scripts/demo --task depth                colours of depth, by a model that was not trained
  scripts/demo --track                     digits that move and cover each other, with ids
  scripts/demo --cameras 4                 four cameras of one node, a table row for each
  scripts/demo --cameras front,rear        two cameras with your own names
  scripts/demo --encoding nv12             images in YUV
  scripts/demo --triton                    the model on a Triton server on this machine
  scripts/demo --size 1920x1080 --model digits.engine --default-transport
                                           enlarged scenes, an engine, no transport profile

The output folder receives:
  pictures/         each processed scene with its result; with --cameras, in a folder per camera
  trails.jpg        with --track: the last scene, and the way of each object; trails_NAME.jpg
  overview.jpg      the first of them; with --cameras, overview_NAME.jpg for each camera
  detections.json   a COCO data set, as detect_images writes it; with --cameras, the file names
                    are NAME/scene_000.jpg. Scenes without a detections message are left out.
                    Not for classify, semantic and depth.
  summary.json      the printed figures

Scenes that were dropped or lost have no picture, and do not count for the accuracy.

exit codes: 0 done, 1 a process failed or the counts do not add up, 2 wrong usage, 130 interrupted
"""


def main():
    options = parse_arguments()
    options.output.mkdir(parents=True, exist_ok=True)
    if options.track:
        write_moving_scene(options)
    if options.size:
        scale_scenes(options)
    if options.task == 'classify':
        write_crops(options)
    if not options.default_transport:
        # Each DDS participant reads the variables: in this process and in its child processes.
        os.environ.update(transport_environment(str(SHARE / CAMERA_PROFILE)))
    # The demo handles Ctrl-C and SIGTERM, because rclpy's handlers would stop the recorder early.
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    recorder = Recorder(options.cameras, options.task)
    try:
        with tempfile.TemporaryDirectory() as folder, model_address(options) as address:
            options.address = address
            logs = {name: Path(folder, f'{name}.jsonl') for name in recorder.cameras}
            run_graph(options, recorder, logs)
            sent = {name: sent_images(log) for name, log in logs.items()}
    except KeyboardInterrupt:
        print('interrupted', file=sys.stderr)
        return 130
    except RuntimeError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    finally:
        recorder.destroy_node()
        rclpy.try_shutdown()
    try:
        return report_results(options, recorder.cameras, sent)
    except RuntimeError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1


def model_address(options):
    """Return a context with the path of the model, or its address on a Triton server."""
    if not options.triton:
        return contextlib.nullcontext(options.model)
    from demo_triton import served_model  # needs onnx and tritonclient

    print('triton server: installing it (at the first run) and starting', flush=True)
    return served_model(options.model)


def scale_scenes(options):
    """Write the scenes and their truth in another size to the output folder, and use them."""
    width, height = options.size
    folder = options.output / 'scenes'
    folder.mkdir(exist_ok=True)
    content = json.loads(options.truth.read_text(encoding='utf-8'))
    scales = {}
    for image in content['images']:
        picture = cv2.imread(str(options.scenes / image['file_name']))
        scales[image['id']] = width / picture.shape[1], height / picture.shape[0]
        image['width'], image['height'] = options.size
        cv2.imwrite(str(folder / image['file_name']), cv2.resize(picture, options.size))
    for annotation in content['annotations']:
        x, y = scales[annotation['image_id']]
        annotation['bbox'] = (np.array(annotation['bbox']) * (x, y, x, y)).tolist()
        for key in ('segmentation', 'oriented_bbox', 'keypoints', 'num_keypoints'):
            annotation.pop(key, None)  # annotations that are not scaled here
    options.scenes, options.truth = folder, options.output / 'truth.json'
    options.truth.write_text(json.dumps(content), encoding='utf-8')


def run_graph(options, recorder, logs):
    """Run detector and cameras, and end them in all cases."""
    processes = {}
    try:
        run_processes(options, recorder, processes, logs)
    finally:
        for process in processes.values():
            stop(process)


def detector_command(options):
    """Return the command line of the detector."""
    parameters = {'autostart': 'true', 'engine_path': options.address, 'diagnostics_period_s': 0.2}
    if options.cameras:
        parameters['cameras'] = f'[{",".join(options.cameras)}]'
    if options.track:
        parameters['tracker.type'] = 'bytetrack'
    words = [word for pair in parameters.items() for word in ('-p', '{}:={}'.format(*pair))]
    return [EXECUTABLES / 'detector_node', '--ros-args', '--log-level', 'warn', *words]


def camera_command(options, name, log):
    """Return the command line of a camera. The camera starts to send when it has a subscriber."""
    if options.rate:
        program = [EXECUTABLES / 'replay_images']
    else:
        program = [sys.executable, ROOT / 'scripts' / 'demo_camera.py']
    rate = options.rate or IN_STEP_HZ[bool(options.cameras) and not options.track]
    return [
        *(*program, options.scenes, '--rate', rate),
        *('--encoding', options.encoding, '--wait-for-subscribers', '1', '--log', log),
        *('--ros-args', '--log-level', 'warn', *(['-r', f'__ns:=/{name}'] if name else [])),
    ]


def run_processes(options, recorder, processes, logs):
    """Start the processes, and run them until all images were sent and no frame is in flight."""

    def start(name, command, **pipes):
        processes[name] = subprocess.Popen(list(map(str, command)), **pipes)
        tie(processes[name].pid)

    start('detector_node', detector_command(options))
    print('detector_node: loading the model')
    if options.model.name == 'depth_tiny.onnx':
        print('note: this model was not trained, so its depth has no meaning')
    wait_for(recorder, processes, lambda: recorder.state == 'active', 'the detector to be active')
    check_task(options, recorder.task)
    wait_for(recorder, processes, recorder.is_ready, 'its class names and topics')
    for camera in recorder.cameras.values():
        if foreign := other_classes(options.truth, camera.classes):
            print(f'note: {foreign}', file=sys.stderr)
            break
    senders = {name: ' '.join(filter(None, ['replay_images', name])) for name in logs}
    for name, log in logs.items():
        in_step = {} if options.rate else {'stdin': subprocess.PIPE}
        start(senders[name], camera_command(options, name, log), **in_step)
    several = f'{len(senders)} cameras, each ' if len(senders) > 1 else ''
    rate = f'{options.rate:g} Hz' if options.rate else 'the rate of the answers'
    print(f'replay_images: {several}sending {options.scenes} at {rate}')
    watch_cameras(options, recorder, processes, senders, logs)
    print()
    for name, process in processes.items():
        check_process(process, name)
    for camera in recorder.cameras.values():
        camera.diagnostics = {}  # Wait for new counts.
    patience = time.monotonic() + 4.0  # The middleware repeats a lost message within 3 s.
    wait_for(
        recorder,
        processes,
        lambda: all(
            camera.has_finished() and (camera.is_complete() or time.monotonic() > patience)
            for camera in recorder.cameras.values()
        ),
        'the last results',
    )
    for name, camera in recorder.cameras.items():
        if lost := camera.lost_count():
            where = f'{name}: ' if name else ''
            print(
                f'note: {where}the transport lost the results of {lost} images; they count '
                'as images without results',
                file=sys.stderr,
            )
    stop(processes['detector_node'])
    check_process(processes['detector_node'], 'detector_node')


def sent_images(log):
    """Return name and stamp of each image that a camera has sent, from its log."""
    lines = log.read_text(encoding='utf-8').splitlines() if log.exists() else []
    return [json.loads(line) for line in lines]


def watch_cameras(options, recorder, processes, senders, logs):
    """Answer each image, and switch each camera off after its last image.

    Return when the detector has switched all off. The detector reports a camera as gone after a
    second without images, unless it is switched off. A sender may end seconds after its last
    image, because it waits for acknowledgements.
    """
    off = {}  # maps a camera's name to the future of the detector's answer
    image_count = len(list(options.scenes.glob('*.jpg')))
    ended_s, answered, shown = {}, dict.fromkeys(senders, 0), 0
    while not (len(off) == len(senders) and all(future.done() for future in off.values())):
        rclpy.spin_once(recorder, timeout_sec=0.1)
        for name, process in processes.items():
            check_process(process, name)
        for name, sender in senders.items():
            sent = sent_images(logs[name])
            if name in off or not (sent or processes[sender].poll() is not None):
                continue
            camera, camera_process = recorder.cameras[name], processes[sender]
            has_result = sent and has_arrived(options.task, camera, sent[-1]['stamp_ns'])
            # An image that was dropped has no result.
            if (has_result or camera.has_finished(len(sent))) and answered[name] < len(sent):
                answered[name] = len(sent)
                if camera_process.stdin:
                    with contextlib.suppress(BrokenPipeError):  # it has ended
                        os.write(camera_process.stdin.fileno(), b'.')
            if len(sent) == image_count or camera_process.poll() is not None:
                waited_s = time.monotonic() - ended_s.setdefault(name, time.monotonic())
                # The transport may lose images, and a slow model may need longer.
                if answered[name] == len(sent) or waited_s > LAST_ANSWER_S[not options.rate]:
                    off[name] = recorder.switch_off(name)
        if recorder.received // 20 > shown // 20 and sys.stdout.isatty():
            print(f'\r{recorder.received} images with results', end='', flush=True)
            shown = recorder.received


def wait_for(recorder, processes, condition, what):
    """Spin until the condition is true."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        # Ignore a problem of an active detector. The problem is a camera without images, because
        # cameras end before the last detections arrive.
        if recorder.problem and recorder.state != 'active':
            raise RuntimeError(f'detector_node: {recorder.problem}')
        if time.monotonic() > deadline:
            said = {name: camera.diagnostics for name, camera in recorder.cameras.items()}
            raise RuntimeError(
                f'waited {WAIT_S:g} s for {what}; the diagnostics say '
                f'{said if any(said.values()) else "nothing"}'
            )
        check_process(processes['detector_node'], 'detector_node')
        rclpy.spin_once(recorder, timeout_sec=0.1)


def check_task(options, task):
    """Fail if the model has another task than --task. Boxes are measured for every model."""
    said = f'{options.model} is a model of the task {task}'
    if task == options.task:
        return
    if options.task != 'detect' or task in RESULT_TOPICS:
        raise RuntimeError(f'{said}, expected {options.task}; give --task {task}')
    print(f'note: {said}: only its boxes are measured; use --task {task}', file=sys.stderr)


def check_process(process, name):
    """Fail if a process has ended with an error."""
    if process.poll():
        raise RuntimeError(
            f'{name} ended with exit code {process.returncode}; see its messages above'
        )


def stop(process):
    """Interrupt a process as Ctrl-C does, and wait for its end."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def positive(text):
    value = float(text)
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f'must be above 0 and at most 1000 (got {text})')
    return value


def size(text):
    """Return (width, height) of a text such as 1920x1080."""
    sides = [int(side) for side in text.lower().split('x') if side.isdecimal()]
    if len(sides) != 2 or not all(16 <= side <= 8192 for side in sides):
        raise argparse.ArgumentTypeError(f'expected a size such as 1920x1080 (got {text})')
    return tuple(sides)


def camera_names(text):
    """Return the names of cameras from a list of names or a number of cameras."""
    try:
        return demo_cameras(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_arguments():
    parser = OptionParser('scripts/demo', __doc__, EXAMPLES)
    parser.add_argument(
        '--cameras',
        type=camera_names,
        default=(),
        metavar='N|NAME,…',
        help='several cameras of one node: their number, or their names',
    )
    parser.add_argument(
        '--rate',
        type=positive,
        metavar='HZ',
        help='scenes per second of each camera, also if the machine is slower (default: each '
        'scene after the answer to the previous one, at most 8 per second; 2 with --cameras, but '
        '8 with --track)',
    )
    parser.add_argument(
        '--encoding',
        choices=list(PIXEL_FORMATS),
        default='bgr8',
        metavar='NAME',
        help='encoding, as for replay_images --encoding (default bgr8)',
    )
    parser.add_argument(
        '--size',
        type=size,
        metavar='WxH',
        help='scale the scenes before the run (default: original size); only with --task detect',
    )
    parser.add_argument(
        '--task',
        choices=list(TASKS),
        default='detect',
        help='result of the model (default: detect); classify gets a crop of each scene; '
        'depth is relative',
    )
    parser.add_argument(
        '--track',
        action='store_true',
        help='a moving scene, and the ids of its objects; only with --task detect',
    )
    parser.add_argument(
        '--model', type=Path, help='default: the digits model of the task in models/'
    )
    parser.add_argument(
        '--triton',
        action='store_true',
        help='run the model, an ONNX file, on a Triton server that the demo installs and starts',
    )
    parser.add_argument(
        '--output',
        type=Path,
        metavar='DIR',
        help='default: demo_output/TASK',
    )
    parser.add_argument(
        '--default-transport', action='store_true', help='no Fast DDS profile for images'
    )
    options = parser.parse_args()
    name = 'track' if options.track else options.task
    options.output = options.output or Path('demo_output', name)
    options.scenes = ROOT / 'demo' / 'scenes'
    options.truth = ROOT / 'demo' / 'truth.json'
    if options.model is None:
        names = {'detect': 'digits', 'depth': 'depth_tiny'}
        name = names.get(options.task, f'digits_{options.task}')
        options.model = ROOT / 'models' / f'{name}.onnx'
    if options.size and options.task != 'detect':
        parser.error(f'--size needs --task detect (got --task {options.task})')
    if options.track and options.task != 'detect':
        parser.error(f'--track needs --task detect (got --task {options.task})')
    if options.triton and options.model.suffix != '.onnx':
        parser.error(f'--triton needs an ONNX file (got {options.model})')
    for path in (options.model, options.scenes, options.truth):
        if not path.exists():
            parser.error(f'{path} does not exist')
    return options


if __name__ == '__main__':
    with guarded_streams():
        sys.exit(main())
