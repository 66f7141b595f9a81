"""The camera made of pictures: what it sends, when it ends, and what it says."""

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
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.ros import replay_images
from trt_perception.ros.camera.messages import frame_from_compressed, frame_from_image
from trt_perception.stages.host_preprocess import frame_to_bgr

pytest_plugins = ['support.nodes.graph_fixtures']

COLORS = {'a.png': (10, 20, 30), 'b.png': (200, 40, 90), 'c.bmp': (0, 255, 128)}
#: Fast enough not to wait, and deep enough to keep all until everybody has met.
QUICKLY = ('--rate', '100', '--depth', '1000')
#: The line of the log with how many were sent.
SENT = r'\]: (\w+ \d+ .*) in [0-9.]+ s'
_numbers = itertools.count()


def picture(bgr, size_wh=(64, 48)):
    image = np.empty((size_wh[1], size_wh[0], 3), np.uint8)
    image[...] = bgr
    return image


@pytest.fixture
def folder(tmp_path):
    """A folder of three pictures and of things that are none."""
    folder = tmp_path / 'pictures'
    folder.mkdir()
    for name, bgr in COLORS.items():
        cv2.imwrite(str(folder / name), picture(bgr))
    (folder / 'notes.txt').write_text('not a picture')
    (folder / 'folder').mkdir()
    return folder


@pytest.fixture
def replay(client):
    """Start replay_images with a subscriber; return the program and what it hears."""
    with contextlib.ExitStack() as stack:

        def start(*arguments, kind=Image, topic='image', ros_arguments=()):
            namespace = f'/replay_{os.getpid()}_{next(_numbers)}'
            heard, subscription = client.subscribe(
                kind, f'{namespace}/{topic}', QoSProfile(depth=1000)
            )
            stack.callback(client.node.destroy_subscription, subscription)
            ros = ['--ros-args', '-r', f'__ns:={namespace}', *ros_arguments]
            wait = ['--wait-for-subscribers', '1']
            program = Program([executable('replay_images'), *QUICKLY, *wait, *arguments, *ros])
            program.namespace = namespace
            stack.callback(program.close)
            return program, heard

        yield start


def run(*arguments):
    """Run to the end, without a subscriber; return exit code and output."""
    ended = forked.run([executable('replay_images'), *arguments], timeout=DEADLINE_S)
    return ended.returncode, ended.stdout + ended.stderr


def pixels(message):
    return np.frombuffer(message.data, np.uint8).reshape(message.height, message.width, 3)


def stamp_ns(message):
    return message.header.stamp.sec * 10**9 + message.header.stamp.nanosec


def test_folder(client, replay, folder, tmp_path, golden_messages):
    log = tmp_path / 'sent.jsonl'
    program, heard = replay(folder, '--log', log)
    client.spin_until(lambda: len(heard) == 3, 'three images')
    assert program.wait() == 0
    golden_messages.add(program.wait_for_line(SENT)[1])
    for message, bgr in zip(heard, COLORS.values(), strict=True):
        assert (message.encoding, message.width, message.height) == ('bgr8', 64, 48)
        assert message.step == 3 * 64
        assert (pixels(message) == picture(bgr)).all()
        assert message.header.frame_id == 'camera'
    stamps = [stamp_ns(message) for message in heard]
    assert stamps == sorted(set(stamps))
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry['name'] for entry in entries] == list(COLORS)
    assert [entry['stamp_ns'] for entry in entries] == stamps


def test_video(client, replay, tmp_path):
    path = tmp_path / 'drive.avi'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*'MJPG'), 25, (64, 48))
    levels = [20, 80, 140, 200]
    for level in levels:
        writer.write(picture((level, level, level)))
    writer.release()
    log = tmp_path / 'sent.jsonl'
    program, heard = replay(path, '--log', log)
    client.spin_until(lambda: len(heard) == 4, 'four images')
    assert program.wait() == 0
    assert [pixels(message).mean() for message in heard] == pytest.approx(levels, abs=3)
    names = [json.loads(line)['name'] for line in log.read_text().splitlines()]
    assert names == [f'drive.avi#{index:06d}' for index in range(4)]


def test_loop_until_a_signal(client, replay, folder):
    program, heard = replay(folder, '--loop')
    client.spin_until(lambda: len(heard) >= 8, 'eight images of three pictures')
    program.send(signal.SIGINT)
    assert program.wait() == 0
    assert 'Traceback' not in program.output
    means = [pixels(message).mean() for message in heard[:6]]
    assert means[:3] == means[3:]
    stamps = [stamp_ns(message) for message in heard]
    assert stamps == sorted(set(stamps))


def test_signals_in_the_end_of_the_interpreter_change_nothing(folder):
    program = Program([*script('nodes/late_signal_node.py'), 'replay_images', folder, '--loop'])
    program.wait_for_line(r'^\[INFO\]')
    program.send(signal.SIGTERM)
    assert program.wait() == 0
    assert 'Traceback' not in program.output


def test_glob_as_compressed_images_on_a_remapped_topic(client, replay, folder):
    program, heard = replay(
        f'{folder}/*.png',
        '--encoding',
        'png',
        '--frame-id',
        'vorn ü',
        kind=CompressedImage,
        topic='front/image_raw/compressed',
        ros_arguments=('-r', 'image:=front/image_raw'),
    )
    client.spin_until(lambda: len(heard) == 2, 'two images')
    assert program.wait() == 0
    for message, name in zip(heard, ('a.png', 'b.png'), strict=True):
        assert message.header.frame_id == 'vorn ü'
        assert message.format == 'png'
        decoded = cv2.imdecode(np.frombuffer(message.data, np.uint8), cv2.IMREAD_COLOR)
        assert (decoded == picture(COLORS[name])).all()


def test_waits_for_all_subscribers(client, replay, folder):
    program, heard = replay(folder, '--wait-for-subscribers', '2')
    topic = f'{program.namespace}/image'
    program.wait_for_line(rf'^\[INFO\] .* 2 .* {topic} \(.* 1\)')
    assert not heard
    _, second = client.subscribe(Image, topic)
    client.spin_until(lambda: len(heard) == 3, 'three images')
    assert program.wait() == 0
    client.node.destroy_subscription(second)


def test_reliability(client, replay, folder):
    for reliability in ('best_effort', 'reliable'):
        program, _ = replay(folder, '--loop', '--reliability', reliability, topic='other')
        topic = f'{program.namespace}/image'
        client.spin_until(lambda topic=topic: client.node.count_publishers(topic), 'a publisher')
        [info] = client.node.get_publishers_info_by_topic(topic)
        assert info.qos_profile.reliability == ReliabilityPolicy[reliability.upper()]
        assert info.qos_profile.durability == DurabilityPolicy.VOLATILE


def test_undecodable_pictures_are_named_counted_and_left_out(
    client, replay, folder, golden_messages
):
    for name in ('b.png', 'a0.jpg'):
        (folder / name).write_bytes(b'no picture')
    program, heard = replay(folder)
    client.spin_until(lambda: len(heard) == 2, 'the two pictures that are left')
    assert program.wait() == 1
    for severity in ('WARN', 'ERROR'):
        for line in re.findall(rf'^\[{severity}\] .*]: (.*)', program.output, re.MULTILINE):
            golden_messages.add(line)
    golden_messages.add(program.wait_for_line(SENT)[1])
    assert 'Traceback' not in program.output
    assert [pixels(message)[0, 0].tolist() for message in heard] == [
        list(COLORS['a.png']),
        list(COLORS['c.bmp']),
    ]


def test_undecodable_pictures_are_named_once_in_a_loop(client, replay, folder):
    (folder / 'b.png').write_bytes(b'no picture')
    program, heard = replay(folder, '--loop')
    client.spin_until(lambda: len(heard) >= 6, 'three rounds of two pictures')
    program.send(signal.SIGINT)
    assert program.wait() == 1
    assert program.count('b.png: ') == 1


def test_a_loop_over_broken_pictures_ends(tmp_path):
    (tmp_path / 'a.png').write_bytes(b'no picture')
    code, output = run(tmp_path, '--loop')
    assert code == 1
    assert ' 0 ' in re.search(SENT, output)[1]


def test_undecodable_video(tmp_path, golden_messages):
    path = tmp_path / 'broken.avi'
    path.write_bytes(b'no video')
    code, output = run(path)
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


def test_wrong_options(golden_messages, capsys):
    for arguments in WRONG_OPTIONS:
        with pytest.raises(SystemExit) as ended:
            replay_images._parser().parse_args(arguments)
        assert ended.value.code == 2, arguments
        # Python's releases show choices in two ways.
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
def test_wrong_usage(folder, arguments, golden_messages):
    code, output = run(*[part.replace('FOLDER', str(folder)) for part in arguments])
    assert code == 2, output
    golden_messages.add('\n'.join(line for line in output.splitlines() if 'error: ' in line))
    assert 'Traceback' not in output


@pytest.mark.parametrize(
    'arguments', [('-r', 'image:=no name'), ('--params-file', 'missing.yaml')], ids=' '.join
)
def test_what_ros_refuses(folder, arguments):
    code, output = run(folder, '--ros-args', *arguments)
    assert code == 2, output
    assert arguments[1] in output
    assert 'error: ' in output
    assert 'Traceback' not in output


def test_help():
    code, output = run('--help')
    assert code == 0
    assert 'examples:' in output
    assert 'exit codes:' in output
    for option in ('--rate', '--loop', '--encoding', '--reliability', '--depth', '--frame-id'):
        assert option in output


# Every encoding, in this process: twenty starts would take most of the suite's time.


@pytest.fixture(scope='module')
def default_context():
    rclpy.init(signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
    yield
    rclpy.shutdown()


@pytest.fixture
def gradient(tmp_path):
    """A picture with odd sides in which every channel changes slowly."""
    rows, columns = np.mgrid[0:49, 0:65]
    bgr = np.dstack([40 + 3 * columns, 60 + 2 * rows, 220 - 2 * columns]).astype(np.uint8)
    path = tmp_path / 'gradient.png'
    cv2.imwrite(str(path), bgr)
    return path, bgr


@pytest.mark.parametrize('encoding', [*PIXEL_FORMATS, 'jpeg', 'png'])
def test_encoding_arrives_decodable(client, default_context, gradient, encoding):
    path, bgr = gradient
    parse = replay_images._parser().parse_args
    camera = replay_images.ReplayImages(parse([str(path), '--encoding', encoding]))
    compressed = encoding in ('jpeg', 'png')
    kind = CompressedImage if compressed else Image
    heard, subscription = client.subscribe(kind, '/image/compressed' if compressed else '/image')
    client.spin_until(camera._publisher.get_subscription_count, 'the subscription')
    camera._publish_next()
    client.spin_until(lambda: heard, 'the image')
    assert camera.close() == 0
    client.node.destroy_subscription(subscription)
    [message] = heard
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
    # The border of a Bayer picture lacks neighbours.
    assert difference[1:-1, 1:-1].max() <= (0 if exact and not compressed else 6)
    assert difference.mean() <= (0 if exact and encoding != 'jpeg' else 3)


@pytest.mark.parametrize('arguments', [(), ('--loop',)])
def test_a_log_on_a_full_disk(folder, arguments):
    code, output = run(folder, '--rate', '1000', '--log', '/dev/full', *arguments)
    assert code == 1
    assert re.search('--log /dev/full: .*: No space left on device', output)
    assert 'Traceback' not in output


BROKEN = """
import sys
from trt_perception.ros import replay_images

def encode(*_):
    raise RuntimeError('encoding broke')

replay_images.encode_bgr = encode
sys.exit(replay_images.main(sys.argv[1:]))
"""


def test_an_error_that_nobody_expected_ends_it(folder):
    command = [sys.executable, '-c', BROKEN, folder, '--rate', '1000', '--loop']
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode == 1
    assert 'encoding broke' in ended.stderr
    assert ' 0 ' in re.search(SENT, ended.stderr + ended.stdout)[1]
