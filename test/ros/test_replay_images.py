# SPDX-License-Identifier: Apache-2.0
"""Test replay_images: the published images, its end, its exit code and its log."""

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys

import cv2
import numpy as np
import pytest
import rclpy
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage, Image

from support import forked
from support.programs import DEADLINE_S, Program, executable, script
from trt_perception.images.bag_selection import BagSelection
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.images.frame_pixels import frame_to_bgr
from trt_perception.images.image_source import find_images
from trt_perception.ros import replay_images
from trt_perception.ros.camera.messages import frame_from_compressed, frame_from_image

pytest_plugins = ['support.nodes.graph_fixtures']

COLORS = {'a.png': (10, 20, 30), 'b.png': (200, 40, 90), 'c.bmp': (0, 255, 128)}
#: A high rate, to save time, and a depth that keeps all images until discovery is complete.
FAST_OPTIONS = ('--rate', '100', '--depth', '1000')
#: The log line with the number of sent images.
SENT = r'\]: (\w+ \d+ .*) in [0-9.]+ s'
_numbers = itertools.count()


def picture(bgr, size_wh=(64, 48)):
    image = np.empty((size_wh[1], size_wh[0], 3), np.uint8)
    image[...] = bgr
    return image


@pytest.fixture
def folder(tmp_path):
    """Return a folder with three images, a text file and a folder."""
    folder = tmp_path / 'pictures'
    folder.mkdir()
    for name, bgr in COLORS.items():
        cv2.imwrite(str(folder / name), picture(bgr))
    (folder / 'notes.txt').write_text('not a picture')
    (folder / 'folder').mkdir()
    return folder


@pytest.fixture
def replay(client):
    """Return a function that starts replay_images and returns the program and received images."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, kind=Image, topic='image', ros_arguments=()):
            namespace = f'/replay_{os.getpid()}_{next(_numbers)}'
            received, subscription = client.subscribe(
                kind, f'{namespace}/{topic}', QoSProfile(depth=1000)
            )
            stack.callback(client.node.destroy_subscription, subscription)
            ros = ['--ros-args', '-r', f'__ns:={namespace}', *ros_arguments]
            wait = ['--wait-for-subscribers', '1']
            program = Program(
                [executable('replay_images'), *FAST_OPTIONS, *wait, *arguments, *ros]
            )
            program.namespace = namespace
            stack.callback(program.close)
            return program, received

        yield start


def run_replay(*arguments):
    """Run replay_images to its end without a subscriber. Return its exit code and output."""
    ended = forked.run([executable('replay_images'), *arguments], timeout=DEADLINE_S)
    return ended.returncode, ended.stdout + ended.stderr


def pixels(message):
    return np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)


def stamp_ns(message):
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec


def test_images_of_a_folder_are_published_in_order(
    client, replay, folder, tmp_path, golden_messages
):
    log = tmp_path / 'sent.jsonl'
    program, received = replay(folder, '--log', log)
    client.spin_until(lambda: len(received) == 3, 'three images')
    assert program.wait() == 0
    golden_messages.add(program.wait_for_line(SENT)[1])
    for message, bgr in zip(received, COLORS.values(), strict=True):
        assert (message.encoding, message.width, message.height) == ('bgr8', 64, 48)
        assert message.step == 3 * 64
        assert (pixels(message) == picture(bgr)).all()
        assert message.header.frame_id == 'camera'
    stamps = [stamp_ns(message) for message in received]
    assert stamps == sorted(set(stamps))
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry['name'] for entry in entries] == list(COLORS)
    assert [entry['stamp_ns'] for entry in entries] == stamps


def test_frames_of_a_video_are_published(client, replay, tmp_path):
    path = tmp_path / 'drive.avi'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'MJPG'), 25, (64, 48))
    levels = [20, 80, 140, 200]
    for level in levels:
        writer.write(picture((level, level, level)))
    writer.release()
    log = tmp_path / 'sent.jsonl'
    program, received = replay(path, '--log', log)
    client.spin_until(lambda: len(received) == 4, 'four images')
    assert program.wait() == 0
    assert [pixels(message).mean() for message in received] == pytest.approx(levels, abs=3)
    names = [json.loads(line)['name'] for line in log.read_text().splitlines()]
    assert names == [f'drive.avi#{index:06d}' for index in range(4)]


def test_images_of_a_bag_are_published(client, replay, tmp_path):
    # An optional package: its absence skips only this test.
    from support.bags import START, raw_image, write_typed_folder

    topics = {
        '/front/image_raw': [raw_image(picture(bgr)) for bgr in COLORS.values()],
        '/rear/image_raw': [raw_image(picture((1, 2, 3)))],
    }
    bag = write_typed_folder(tmp_path / 'drive', topics)
    log = tmp_path / 'sent.jsonl'
    program, received = replay(bag, '--topic', '/front/image_raw', '--every', '2', '--log', log)
    client.spin_until(lambda: len(received) == 2, 'two images')
    assert program.wait() == 0
    for message, bgr in zip(received, list(COLORS.values())[::2], strict=True):
        assert (pixels(message) == picture(bgr)).all()
        assert stamp_ns(message) > START + 10**16  # the stamp of now, not of the bag
    names = [json.loads(line)['name'] for line in log.read_text().splitlines()]
    found = find_images(bag, selection=BagSelection('/front/image_raw', 2))
    assert names == [path.name for path in found]


def test_loop_ends_cleanly_by_a_signal(client, replay, folder):
    program, received = replay(folder, '--loop')
    client.spin_until(lambda: len(received) >= 8, 'eight images of a loop over three files')
    program.send(signal.SIGINT)
    assert program.wait() == 0
    assert 'Traceback' not in program.output
    means = [pixels(message).mean() for message in received[:6]]
    assert means[:3] == means[3:]
    stamps = [stamp_ns(message) for message in received]
    assert stamps == sorted(set(stamps))


def test_signals_during_interpreter_shutdown_are_ignored(folder):
    program = Program([*script('nodes/late_signal_node.py'), 'replay_images', folder, '--loop'])
    program.wait_for_line(r'^\[INFO\]')
    program.send(signal.SIGTERM)
    assert program.wait() == 0
    assert 'Traceback' not in program.output


def test_files_of_a_glob_are_published_compressed_on_a_remapped_topic(client, replay, folder):
    program, received = replay(
        f'{folder}/*.png',
        '--encoding',
        'png',
        '--frame-id',
        'vorn ü',
        kind=CompressedImage,
        topic='front/image_raw/compressed',
        ros_arguments=('-r', 'image:=front/image_raw'),
    )
    client.spin_until(lambda: len(received) == 2, 'two images')
    assert program.wait() == 0
    for message, name in zip(received, ('a.png', 'b.png'), strict=True):
        assert message.header.frame_id == 'vorn ü'
        assert message.format == 'png'
        decoded = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)
        assert (decoded == picture(COLORS[name])).all()


def test_publishing_waits_for_all_subscribers(client, replay, folder):
    program, received = replay(folder, '--wait-for-subscribers', '2')
    topic = f'{program.namespace}/image'
    program.wait_for_line(rf'^\[INFO\] .* 2 .* {topic} \(.* 1\)')
    assert not received
    _, second = client.subscribe(Image, topic)
    client.spin_until(lambda: len(received) == 3, 'three images')
    assert program.wait() == 0
    client.node.destroy_subscription(second)


def test_publisher_has_the_reliability_of_the_option(client, replay, folder):
    for reliability in ('best_effort', 'reliable'):
        program, _ = replay(folder, '--loop', '--reliability', reliability, topic='other')
        topic = f'{program.namespace}/image'
        client.spin_until(lambda topic=topic: client.node.count_publishers(topic), 'a publisher')
        [info] = client.node.get_publishers_info_by_topic(topic)
        assert info.qos_profile.reliability == ReliabilityPolicy[reliability.upper()]
        assert info.qos_profile.durability == DurabilityPolicy.VOLATILE


def test_undecodable_images_are_logged_and_skipped(client, replay, folder, golden_messages):
    for name in ('b.png', 'a0.jpg'):
        (folder / name).write_bytes(b'not an image')
    program, received = replay(folder)
    client.spin_until(lambda: len(received) == 2, 'two decodable images')
    assert program.wait() == 1
    for severity in ('WARN', 'ERROR'):
        for line in re.findall(rf'^\[{severity}\] .*]: (.*)', program.output, re.MULTILINE):
            golden_messages.add(line)
    golden_messages.add(program.wait_for_line(SENT)[1])
    assert 'Traceback' not in program.output
    assert [pixels(message)[0, 0].tolist() for message in received] == [
        list(COLORS['a.png']),
        list(COLORS['c.bmp']),
    ]


def test_undecodable_image_is_logged_once_in_a_loop(client, replay, folder):
    (folder / 'b.png').write_bytes(b'not an image')
    program, received = replay(folder, '--loop')
    client.spin_until(lambda: len(received) >= 6, 'three rounds of two images')
    program.send(signal.SIGINT)
    assert program.wait() == 1
    assert program.count('b.png: ') == 1


def test_loop_without_a_decodable_image_ends(tmp_path):
    (tmp_path / 'a.png').write_bytes(b'not an image')
    code, output = run_replay(tmp_path, '--loop')
    assert code == 1
    assert ' 0 ' in re.search(SENT, output)[1]


def test_undecodable_video_is_refused(tmp_path, golden_messages):
    path = tmp_path / 'broken.avi'
    path.write_bytes(b'not a video')
    code, output = run_replay(path)
    assert code == 1
    golden_messages.add(re.search(r'^\[ERROR\] .*]: (.*)', output, re.MULTILINE)[1])
    assert 'Traceback' not in output


WRONG_OPTIONS = [
    [],
    ['FOLDER', 'more'],
    *(['FOLDER', '--rate', rate] for rate in ('0', '1e-10', 'nan', 'fast')),
    *(['FOLDER', '--depth', depth] for depth in ('-1', '0')),
    ['FOLDER', '--wait-for-subscribers', '-1'],
    ['FOLDER', '--encoding', 'rgb9'],
]


def test_wrong_options_are_refused(golden_messages, capsys):
    for arguments in WRONG_OPTIONS:
        with pytest.raises(SystemExit) as ended:
            replay_images._parser().parse_args(arguments)
        assert ended.value.code == 2, arguments
        # The form of the choices depends on the Python version.
        golden_messages.add(re.sub(r'(?<=\(choose from ).*?(?=\))', '…', capsys.readouterr().err))


@pytest.mark.parametrize(
    'arguments',
    [
        ('missing',),
        ('FOLDER/notes.txt',),
        ('.',),
        ('*.png',),
        ('FOLDER/*.txt',),
        ('missing.mp4',),
        ('FOLDER', '--log', 'missing/sent.jsonl'),
    ],
    ids=' '.join,
)
def test_missing_or_empty_source_is_refused(folder, arguments, golden_messages):
    code, output = run_replay(*[part.replace('FOLDER', str(folder)) for part in arguments])
    assert code == 2, output
    golden_messages.add('\n'.join(line for line in output.splitlines() if 'error: ' in line))
    assert 'Traceback' not in output


@pytest.mark.parametrize(
    'arguments', [('-r', 'image:=no name'), ('--params-file', 'missing.yaml')], ids=' '.join
)
def test_invalid_ros_arguments_are_refused(folder, arguments):
    code, output = run_replay(folder, '--ros-args', *arguments)
    assert code == 2, output
    assert arguments[1] in output
    assert 'error: ' in output
    assert 'Traceback' not in output


def test_help_lists_options_and_exit_codes():
    code, output = run_replay('--help')
    assert code == 0
    assert 'examples:' in output
    assert 'exit codes:' in output
    for option in ('--rate', '--loop', '--encoding', '--reliability', '--depth', '--frame-id'):
        assert option in output


# These tests cover every encoding in this process, because starting 20 programs takes too long.


@pytest.fixture(scope='module')
def default_context():
    rclpy.init(signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
    yield
    rclpy.shutdown()


@pytest.fixture
def gradient(tmp_path):
    """Return an image with odd sides and slowly changing channels: its path and its pixels."""
    rows, columns = np.mgrid[0:49, 0:65]
    bgr = np.dstack([40 + 3 * columns, 60 + 2 * rows, 220 - 2 * columns]).astype(np.uint8)
    path = tmp_path / 'gradient.png'
    cv2.imwrite(str(path), bgr)
    return path, bgr


@pytest.mark.parametrize('encoding', [*PIXEL_FORMATS, 'jpeg', 'png'])
def test_published_encoding_can_be_decoded(client, default_context, gradient, encoding):
    path, bgr = gradient
    parse = replay_images._parser().parse_args
    camera = replay_images.ReplayImages(parse([str(path), '--encoding', encoding]))
    compressed = encoding in ('jpeg', 'png')
    kind = CompressedImage if compressed else Image
    received, subscription = client.subscribe(
        kind, '/image/compressed' if compressed else '/image'
    )
    client.spin_until(camera._publisher.get_subscription_count, 'the subscription')
    camera._publish_next()
    client.spin_until(lambda: received, 'the image')
    assert camera.close() == 0
    client.node.destroy_subscription(subscription)
    [message] = received
    assert message.header.frame_id == 'camera'
    assert stamp_ns(message) > 0
    if compressed:
        assert message.format == encoding
        frame = frame_from_compressed(message)
        width, height = 65, 49
    else:
        pixel_format = PIXEL_FORMATS[encoding]
        width, height = 65 - pixel_format.even_width, 49 - pixel_format.even_height
        assert message.encoding == encoding
        assert message.step == width * pixel_format.bytes_per_pixel
        frame = frame_from_image(message)
    assert (frame.width, frame.height) == (width, height)
    expected = bgr[:height, :width]
    if frame.format.name in ('mono8', 'mono16'):
        expected = cv2.cvtColor(cv2.cvtColor(expected, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    difference = np.abs(frame_to_bgr(frame).astype(int) - expected)
    exact = encoding == 'png' or frame.format.name in ('bgr8', 'rgb8', 'bgra8', 'rgba8', 'mono8')
    # Pixels at the border of a Bayer image lack neighbours.
    assert difference[1:-1, 1:-1].max() <= (0 if exact and not compressed else 6)
    assert difference.mean() <= (0 if exact and encoding != 'jpeg' else 3)


@pytest.mark.parametrize('arguments', [(), ('--loop',)])
def test_full_disk_of_the_log_is_reported(folder, arguments):
    code, output = run_replay(folder, '--rate', '1000', '--log', '/dev/full', *arguments)
    assert code == 1
    assert re.search('--log /dev/full: .*: No space left on device', output)
    assert 'Traceback' not in output


FAILING_ENCODER = """
import sys
from trt_perception.ros import replay_images

def encode(*_):
    raise RuntimeError('encoding broke')

replay_images.encode_bgr = encode
sys.exit(replay_images.main(sys.argv[1:]))
"""


def test_unexpected_error_ends_the_program(folder):
    command = [sys.executable, '-c', FAILING_ENCODER, folder, '--rate', '1000', '--loop']
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 1
    assert 'encoding broke' in ended.stderr
    assert ' 0 ' in re.search(SENT, ended.stderr + ended.stdout)[1]
