# SPDX-License-Identifier: Apache-2.0
"""detect_bag writes the messages of a node, whatever the processes, interruptions and damage.

The bags are written and read by rosbags.
"""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory

from support.detect_bags import (
    DELAY_NS,
    START_NS,
    STORE,
    boxes_of,
    camera_info,
    camera_rows,
    file_image,
    files_of,
    held_detect_bag,
    messages_of,
    png_image,
    raw_image,
    read_rows,
    run_detect_bag,
    stamp_ns_of,
    write_bag,
)
from support.models.digits import DIGITS, SCENES
from support.models.image_models import tool_arguments, write_depth_anything_3
from support.models.picture_model import picture_with, write_picture_model
from support.optional_packages import needs
from support.programs import executable, small_disk
from support.waiting import DEADLINE_S, wait_until
from trt_perception.errors import WriteError
from trt_perception.offline.bags.joining import BagJoin
from trt_perception.offline.bags.records import PartReader, PartReport, PartWriter
from trt_perception.offline.bags.workers import Finished
from trt_perception.offline.tools import detect_bag, detect_images

pytestmark = [needs(name) for name in ('onnx', 'scipy', 'rosbags', 'mcap', 'mcap_ros2')]
SECOND = 10**9
STRING = 'std_msgs/msg/String'


def box(number, score=0.8):
    """Return a box that moves slowly."""
    return 20 + number % 20, 20, 10, 12, score


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    return write_picture_model(tmp_path_factory.mktemp('picture') / 'picture.onnx')


def moving(count, score=0.8):
    return [picture_with([box(number, score)]) for number in range(count)]


def two_cameras(count=30):
    rows = camera_rows('/front/image_raw', moving(count))
    rows += camera_rows('/rear/image_raw/compressed', moving(count, 0.6), make=png_image)
    return sorted(rows, key=lambda row: row[1])


@pytest.fixture(scope='module')
def bag(tmp_path_factory):
    """Return a bag of 3 s with two cameras."""
    return write_bag(tmp_path_factory.mktemp('bags') / 'drive', two_cameras())


def test_each_image_has_a_message_at_its_log_time(model, bag, tmp_path):
    assert run_detect_bag(model, bag, '--output', tmp_path / 'out') == 0
    for camera, score in (('front', 0.8), ('rear', 0.6)):
        topic = f'/{camera}/detections'
        rows = [(ns, row) for name, ns, row in read_rows(tmp_path / 'out') if name == topic]
        assert len(rows) == 30
        for number, (log_ns, message) in enumerate(rows):
            assert log_ns == stamp_ns_of(message) + DELAY_NS
            assert stamp_ns_of(message) == START_NS + number * SECOND // 10
            assert message.header.frame_id == 'camera'
            ((name, found, id_, x, y, width, height),) = boxes_of(message)
            assert (name, id_) == ('person', '')
            assert found == pytest.approx(score, abs=0.01)
            assert (x, y, width, height) == pytest.approx(box(number)[:4])


def test_detections_are_counted_by_class(model, tmp_path, capsys):
    rows = [box(0), (*box(1), 1)], [box(2)], []
    source = write_bag(
        tmp_path / 'drive', camera_rows('/image_raw', [picture_with(row) for row in rows * 4])
    )
    out = tmp_path / 'out'
    for options in ((), ('--track', '--overwrite')):
        arguments = model, source, '--output', out, '--part-s', 0.3, *options
        assert run_detect_bag(*arguments) == 0
        found = [name for row in messages_of(out, '/detections') for name, *_ in boxes_of(row)]
        assert found.count('person') == 8
        expected = {'person': 8, 'car': 4}
        assert json.loads((out / 'detect_bag.json').read_text())['detections'] == expected
        table = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert [row for row in table if row[0] in expected] == [['person', '8'], ['car', '4']]


def test_each_file_names_the_classes_and_the_threshold(model, bag, tmp_path):
    out = tmp_path / 'out'
    options = '--part-s', 1, '--confidence', 0.3
    assert run_detect_bag(model, bag, '--output', out, *options) == 0
    infos = messages_of(out, '/rear/label_info')
    assert len(infos) == 3
    for info in infos:
        assert [(each.class_id, each.class_name) for each in info.class_map] == [
            (0, 'person'),
            (1, 'car'),
        ]
        assert info.threshold == pytest.approx(0.3)


def test_complete_bag_without_one_of_its_files_is_refused(model, bag, tmp_path):
    out = tmp_path / 'out'
    arguments = model, bag, '--output', out, '--part-s', 1
    assert run_detect_bag(*arguments) == 0
    content = (out / 'out_1.mcap').read_bytes()
    (out / 'out_1.mcap').unlink()
    assert run_detect_bag(*arguments) == 2
    assert run_detect_bag(*arguments, '--dry-run') == 1
    assert run_detect_bag(*arguments, '--overwrite') == 0
    assert (out / 'out_1.mcap').read_bytes() == content


def test_detections_equal_those_of_detect_images(tmp_path):
    scenes = sorted(SCENES.glob('*.jpg'))[:6]
    images = tmp_path / 'images'
    images.mkdir()
    for scene in scenes:
        (images / scene.name).symlink_to(scene)
    arguments = [str(DIGITS), '--source', str(images), '--output', str(tmp_path / 'found')]
    assert detect_images.main([*arguments, '--no-pictures']) == 0
    content = json.loads((tmp_path / 'found/detections.json').read_text())
    names = {each['id']: each['name'] for each in content['categories']}
    files = [scene.read_bytes() for scene in scenes]
    rows = camera_rows('/camera/image_raw/compressed', files, make=file_image)
    write_bag(tmp_path / 'scenes', rows)
    assert run_detect_bag(DIGITS, tmp_path / 'scenes', '--output', tmp_path / 'out') == 0
    messages = messages_of(tmp_path / 'out', '/camera/detections')
    assert len(messages) == len(content['images']) == len(scenes)
    for image, message in zip(content['images'], messages, strict=True):
        expected = [row for row in content['annotations'] if row['image_id'] == image['id']]
        assert expected
        for row, found in zip(expected, boxes_of(message), strict=True):
            name, score, _, x, y, width, height = found
            assert name == names[row['category_id']]
            assert score == pytest.approx(row['score'], abs=1e-4)
            corner = x - width / 2, y - height / 2, width, height
            assert corner == pytest.approx(row['bbox'], abs=0.01)


def test_bytes_are_the_same_with_several_processes(model, bag, tmp_path):
    options = '--part-s', 0.5, '--track'
    for name, workers in (('one', 1), ('two', 2)):
        output = tmp_path / name / 'out'
        output.parent.mkdir()
        arguments = model, bag, '--output', output, *options, '--workers', workers
        assert run_detect_bag(*arguments) == 0
    one, two = files_of(tmp_path / 'one/out'), files_of(tmp_path / 'two/out')
    assert len([name for name in one if name.endswith('.mcap')]) == 6
    assert one == two


@pytest.mark.parametrize(
    ('number', 'code', 'track'),
    [(signal.SIGKILL, -signal.SIGKILL, ('--track',)), (signal.SIGINT, 130, ())],
)
def test_ended_run_goes_on_with_the_same_bytes(model, tmp_path, number, code, track):
    rows = camera_rows('/image_raw', moving(800), hz=100)
    source = write_bag(tmp_path / 'long', rows)
    arguments = [str(model), str(source), '--part-s', '0.2', *track]
    assert run_detect_bag(*arguments, '--output', tmp_path / 'whole/out') == 0
    output = tmp_path / 'killed/out'
    # The run waits after 30 of 40 parts, so that it does not end before the signal.
    command = held_detect_bag(tmp_path / 'gate', 30, *arguments, '--output', output)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            wait_until((output / 'out_2.mcap').exists, 'the third file')
            process.send_signal(number)
            process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == code
    written = sorted(output.glob('out_*.mcap'))
    assert 3 <= len(written) < 40
    for path in written:
        assert decoded_by_mcap(path, '/detections')  # each file is readable by itself
    # The last file may not have been entered into the ledger.
    first = {name: (output / name).stat().st_mtime_ns for name in ('out_0.mcap', 'out_1.mcap')}
    assert run_detect_bag(*arguments, '--output', output) == 0
    assert {name: (output / name).stat().st_mtime_ns for name in first} == first
    assert files_of(output) == files_of(tmp_path / 'whole/out')
    assert not (output / '.parts').exists()


def test_tracks_have_ids_over_parts(model, bag, tmp_path):
    out = tmp_path / 'out'
    options = '--track', '--part-s', 0.5
    assert run_detect_bag(model, bag, '--output', out, *options) == 0
    for camera in ('front', 'rear'):
        ids = [boxes_of(message)[0][2] for message in messages_of(out, f'/{camera}/detections')]
        # A track is confirmed by its second detection. The box jumps back after 20 images.
        assert ids[:20] == ['', *['1'] * 19]


def test_camera_has_its_own_threshold(model, bag, tmp_path):
    file = tmp_path / 'cameras.yaml'
    file.write_text(
        '/**:\n  ros__parameters:\n    cameras: [front, rear]\n    use_sim_time: true\n'
        '    camera:\n      rear:\n        confidence_threshold: 0.7\n'
    )
    out = tmp_path / 'out'
    assert run_detect_bag(model, bag, '--output', out, '--params-file', file) == 0
    assert {len(row.detections) for row in messages_of(out, '/front/detections')} == {1}
    assert {len(row.detections) for row in messages_of(out, '/rear/detections')} == {0}
    assert messages_of(out, '/rear/label_info')[0].threshold == pytest.approx(0.7)
    again = tmp_path / 'again'
    option = '--param', 'camera.rear.confidence_threshold=0.5'
    assert run_detect_bag(model, bag, '--output', again, '--params-file', file, *option) == 0
    assert {len(row.detections) for row in messages_of(again, '/rear/detections')} == {1}


def test_only_listed_and_enabled_cameras_are_processed(model, bag, tmp_path):
    file = tmp_path / 'one.yaml'
    file.write_text('/detector:\n  ros__parameters:\n    cameras: [rear]\n')
    assert run_detect_bag(model, bag, '--output', tmp_path / 'a', '--params-file', file) == 0
    option = '--param', 'camera.front.enabled=false'
    assert run_detect_bag(model, bag, '--output', tmp_path / 'b', *option) == 0
    for name in ('a', 'b'):
        assert {topic for topic, _, _ in read_rows(tmp_path / name)} == {
            '/rear/detections',
            '/rear/label_info',
        }


def test_span_of_time_is_processed(model, bag, tmp_path):
    spans = {
        'relative': ('--start', 1, '--end', 1.5),
        'absolute': ('--start', START_NS / 1e9 + 1, '--end', START_NS / 1e9 + 1.5),
    }
    for name, options in spans.items():
        assert run_detect_bag(model, bag, '--output', tmp_path / name, *options) == 0
        stamps = [stamp_ns_of(row) for row in messages_of(tmp_path / name, '/front/detections')]
        numbers = [(stamp - START_NS) * 10 // SECOND for stamp in stamps]
        assert numbers == [10, 11, 12, 13, 14]


def test_raw_or_compressed_images_as_the_node(model, tmp_path):
    rows = camera_rows('/image_raw', moving(5, 0.8))
    rows += camera_rows('/image_raw/compressed', moving(5, 0.6), make=png_image)
    source = write_bag(tmp_path / 'both', sorted(rows, key=lambda row: row[1]))
    for transport, score in (('raw', 0.8), ('compressed', 0.6), ('auto', 0.8)):
        out = tmp_path / transport
        option = '--param', f'image_transport={transport}'
        assert run_detect_bag(model, source, '--output', out, *option) == 0
        found = [boxes_of(row)[0][1] for row in messages_of(out, '/detections')]
        assert found == pytest.approx([score] * 5, abs=0.01)


def test_depth_and_results_are_no_cameras(model, tmp_path, capsys):
    depth = np.zeros((48, 64), np.uint16)
    rows = camera_rows('/front/image_raw', moving(3))
    rows += camera_rows(
        '/front/depth', [depth] * 3, make=lambda a, t: raw_image(a, t, '', '16UC1')
    )
    rows += camera_rows('/front/masks', moving(3))
    rows += [('/front/label_info', START_NS, label_info())]
    source = write_bag(tmp_path / 'mixed', sorted(rows, key=lambda row: row[1]))
    assert run_detect_bag(model, source, '--output', tmp_path / 'out') == 0
    assert {topic for topic, _, _ in read_rows(tmp_path / 'out')} == {
        '/front/detections',
        '/front/label_info',
    }
    said = capsys.readouterr().err
    assert '/front/depth' in said
    assert '/front/masks' in said


def label_info():
    from support.detect_bags import TYPES, header

    kind = 'vision_msgs/msg/LabelInfo'
    return kind, TYPES[kind](header=header(START_NS), class_map=[], threshold=0.0)


def test_unreadable_images_are_counted_and_others_go_on(model, tmp_path, capsys, golden_messages):
    pictures = moving(20)
    rows = camera_rows('/image_raw/compressed', pictures, make=png_image)
    for number in (3, 4, 11):
        topic, log_ns, (kind, message) = rows[number]
        message.data = message.data[: len(message.data) // 2]
        rows[number] = topic, log_ns, (kind, message)
    topic, log_ns, (kind, _) = rows[15]
    rows[15] = topic, log_ns, (kind, b'\0\1\0\0\0')
    source = write_bag(tmp_path / 'damaged', rows)
    out = tmp_path / 'out'
    assert run_detect_bag(model, source, '--output', out, '--part-s', 0.5) == 1
    golden_messages.add(capsys.readouterr().err)
    assert len(messages_of(out, '/detections')) == 16
    parts = json.loads((out / 'detect_bag.json').read_text())['parts']
    assert [part['unread'] for part in parts] == [
        {'not_decodable': 2},
        {},
        {'not_decodable': 1},
        {'bad_message': 1},
    ]
    # The same command reports the same again.
    assert run_detect_bag(model, source, '--output', out, '--part-s', 0.5) == 1


def test_damaged_bag_is_read_as_far_as_possible(model, tmp_path):
    source = write_bag(tmp_path / 'cut', camera_rows('/image_raw', moving(60)))
    file = next(source.glob('*.mcap'))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    out = tmp_path / 'out'
    assert run_detect_bag(model, source, '--output', out, '--part-s', 1) == 1
    found = messages_of(out, '/detections')
    assert 0 < len(found) < 60
    losses = [
        loss
        for part in json.loads((out / 'detect_bag.json').read_text())['parts']
        for loss in part['losses']
    ]
    assert losses
    assert losses[0]['file'] == file.name
    other = tmp_path / 'other/out'
    other.parent.mkdir()
    arguments = model, source, '--output', other, '--part-s', 1, '--workers', 2
    assert run_detect_bag(*arguments) == 1
    assert files_of(other) == files_of(out)


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_copy_keeps_all_messages_of_the_input(model, tmp_path, storage):
    rows = camera_rows('/front/image_raw', moving(20))
    text = STORE.types[STRING](data='hello')
    rows += [('/chatter', START_NS + number * SECOND // 7, (STRING, text)) for number in range(14)]
    rows.sort(key=lambda row: row[1])
    source = write_bag(tmp_path / 'drive', rows)
    out = tmp_path / 'out'
    options = '--copy', '--storage', storage, '--part-s', 1
    assert run_detect_bag(model, source, '--output', out, *options) == 0
    found = read_rows(out)
    copied = [(name, ns) for name, ns, _ in found if name in ('/front/image_raw', '/chatter')]
    assert copied == [(name, ns) for name, ns, _ in rows]
    assert {row.data for name, _, row in found if name == '/chatter'} == {'hello'}
    images = [row for name, _, row in found if name == '/front/image_raw']
    for image, picture in zip(images, moving(20), strict=True):
        assert np.array_equal(image.data.reshape(picture.shape), picture)
    assert sum(name == '/front/detections' for name, _, _ in found) == 20


def test_copy_is_refused_if_the_results_exist(model, tmp_path, capsys):
    source = write_bag(tmp_path / 'drive', camera_rows('/front/image_raw', moving(5)))
    assert run_detect_bag(model, source, '--output', tmp_path / 'once', '--copy') == 0
    assert run_detect_bag(model, tmp_path / 'once', '--output', tmp_path / 'b', '--copy') == 1
    assert '/front/detections' in capsys.readouterr().err
    # Without the input's messages, or with another name, there is no conflict.
    assert run_detect_bag(model, tmp_path / 'once', '--output', tmp_path / 'c') == 0
    options = '--copy', '--camera', 'other=/front/image_raw'
    assert run_detect_bag(model, tmp_path / 'once', '--output', tmp_path / 'd', *options) == 0
    assert len(messages_of(tmp_path / 'd', '/other/detections')) == 5


def test_mcap_ros2_support_decodes_the_results(model, bag, tmp_path):
    out = tmp_path / 'out'
    assert run_detect_bag(model, bag, '--output', out) == 0
    (file,) = out.glob('*.mcap')
    decoded = decoded_by_mcap(file, '/front/detections')
    for one, other in zip(decoded, messages_of(out, '/front/detections'), strict=True):
        assert boxes_of(one) == boxes_of(other)


def decoded_by_mcap(path, topic):
    """Return the messages of a topic, as mcap and mcap-ros2-support read them."""
    with path.open('rb') as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        return [message for *_, message in reader.iter_decoded_messages([topic])]


def test_several_bags_have_folders_of_their_own(model, bag, tmp_path, capsys):
    other = write_bag(tmp_path / 'other', camera_rows('/image', moving(4)))
    gone = tmp_path / 'gone'
    out = tmp_path / 'out'
    assert run_detect_bag(model, bag, gone, other, '--output', out) == 1
    assert len(messages_of(out / 'drive', '/rear/detections')) == 30
    assert len(messages_of(out / 'other', '/detections')) == 4
    table = capsys.readouterr().out
    assert str(gone) in table


def test_bag_in_the_current_folder_is_read(model, tmp_path, monkeypatch):
    (source,) = write_short_bags(tmp_path, 1)
    monkeypatch.chdir(source)
    out = tmp_path / 'out'
    assert run_detect_bag(model, '.', '--output', out) == 0
    assert len(messages_of(out, '/front/detections')) == 2


def write_named_bags(folder, *paths):
    """Return equal bags of two images, at paths below a folder. A path with a suffix is a file."""
    (source,) = write_short_bags(folder, 1)
    (file,) = source.glob('*.mcap')
    for path in paths:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix:
            shutil.copy(file, target)
        else:
            shutil.copytree(source, target)
    return [folder / path for path in paths]


@pytest.mark.parametrize(
    'names',
    [
        {'monday/front': 'monday_front', 'tuesday/front': 'tuesday_front', 'monday/rear': 'rear'},
        {'a/x/front': 'a_x_front', 'b/x/front': 'b_x_front', 'c/front': 'c_front'},
        {'a/front': 'bags_a_front', 'b/front': 'b_front', 'c/a_front': 'c_a_front'},
        {'a/drive.mcap': 'drive_mcap', 'a/drive': 'drive', 'a/other.mcap': 'other'},
        {'a/drive.mcap': 'a_drive', 'b/drive': 'b_drive'},
    ],
    ids=['days', 'two_levels', 'taken', 'suffix', 'file_and_folder'],
)
def test_bags_with_equal_names_get_the_folders_above_them(
    model, tmp_path, monkeypatch, capsys, names
):
    root = tmp_path / 'bags'
    root.mkdir()
    bags = write_named_bags(root, *names)
    out = tmp_path / 'out'
    assert run_detect_bag(model, *bags, '--output', out, '--report', tmp_path / 'report') == 0
    for folder, others in ((out, []), (tmp_path / 'report', ['index.html'])):
        found = sorted(path.name for path in folder.iterdir())
        assert found == sorted([*names.values(), *others])
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    for bag, name in zip(bags, names.values(), strict=True):
        assert [row[-1] for row in table if row[:1] == [str(bag)]] == [str(out / name)]
    # The order of the bags and the working directory have no effect.
    before = files_of(out)
    monkeypatch.chdir(root)
    assert run_detect_bag(model, *list(names)[::-1], '--output', out, '--dry-run') == 0
    with monkeypatch.context() as patch:
        patch.setattr(detect_bag, 'run_parts', runs_nothing)
        assert run_detect_bag(model, *list(names)[::-1], '--output', out) == 0
    assert files_of(out) == before


def runs_nothing(parts, *_):
    """Yield no events, and check that no part is missing."""
    assert not parts
    yield from ()


def test_interrupted_bags_with_equal_names_go_on(model, tmp_path, monkeypatch):
    bags = write_named_bags(tmp_path, 'monday/front', 'tuesday/front')
    out = tmp_path / 'out'
    run_parts = detect_bag.run_parts

    def run_one_part(*arguments):
        with contextlib.closing(run_parts(*arguments)) as events:
            for event in events:
                yield event
                if isinstance(event, Finished):
                    raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(detect_bag, 'run_parts', run_one_part)
        assert run_detect_bag(model, *bags, '--output', out) == 130
    file = out / 'monday_front/monday_front_0.mcap'
    written_ns = file.stat().st_mtime_ns
    assert run_detect_bag(model, *bags[::-1], '--output', out) == 0
    assert file.stat().st_mtime_ns == written_ns
    assert len(messages_of(out / 'tuesday_front', '/front/detections')) == 2


def test_bags_whose_names_stay_equal_are_refused(model, tmp_path):
    bags = write_named_bags(tmp_path, 'a/b/front', 'c/b/front', 'a_b/front')
    assert run_detect_bag(model, *bags, '--output', tmp_path / 'out') == 2
    assert run_detect_bag(model, *bags[:2], '--output', tmp_path / 'out') == 0


def test_bag_given_twice_is_refused(model, tmp_path):
    (bag,) = write_named_bags(tmp_path, 'monday/front')
    (tmp_path / 'link').symlink_to(bag)
    for again in (bag, tmp_path / 'link', bag / '../front'):
        assert run_detect_bag(model, bag, again, '--output', tmp_path / 'out') == 2
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('name', [b'\xff', b'x' * 250])
def test_bag_with_a_name_that_no_file_can_have_does_not_stop_the_others(model, tmp_path, name):
    bags = write_short_bags(tmp_path, 2)
    impossible = tmp_path / os.fsdecode(name)
    shutil.copytree(bags[0], impossible)
    out = tmp_path / 'out'
    assert run_detect_bag(model, impossible, *bags, '--output', out) == 1
    assert sorted(path.name for path in out.iterdir()) == [bag.name for bag in bags]
    assert all(messages_of(out / bag.name, '/front/detections') for bag in bags)


def test_raw_results_next_to_a_complete_bag_are_removed(model, bag, tmp_path):
    """A process that is killed between the last two steps leaves them."""
    out = tmp_path / 'out'
    assert run_detect_bag(model, bag, '--output', out) == 0
    (out / '.parts').mkdir()
    (out / '.parts/000000.raw').write_text('raw')
    before = files_of(out)
    assert run_detect_bag(model, bag, '--output', out) == 0
    assert files_of(out) == before
    assert not (out / '.parts').exists()


def test_dry_run_writes_nothing(model, bag, tmp_path, capsys):
    out = tmp_path / 'out'
    options = '--output', out, '--part-s', 0.5, '--dry-run'
    assert run_detect_bag(model, bag, *options) == 0
    assert not out.exists()
    said = capsys.readouterr().out
    for words in ('60 images', '2 cameras', '6 parts', '/front/image_raw', '0 of 6 parts'):
        assert words in said


def test_dry_run_of_several_bags_has_one_row_each(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_bag(tmp_path / 'short', camera_rows('/front/image_raw', moving(2)))
    write_bag(tmp_path / 'long', camera_rows('/front/image_raw', moving(30)))
    write_bag(tmp_path / 'other', camera_rows('/front/image_raw', moving(2)))
    arguments = '--output', 'out', '--part-s', 1
    assert run_detect_bag(model, 'short', '--output', 'out/short', '--part-s', 1) == 0
    assert run_detect_bag(model, 'other', '--output', 'out/other') == 0
    capsys.readouterr()
    bags = 'short', 'long', 'other', 'gone'
    assert run_detect_bag(model, *bags, *arguments, '--dry-run') == 1
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ['bag', 'images']
    rows = {line.split()[0]: line.split() for line in lines[:4]}
    assert [rows[name][1:4] for name in ('short', 'long')] == [
        ['2', '1/1', '0.1'],
        ['30', '0/3', '2.9'],
    ]
    assert [rows[name][-1] for name in bags[:2]] == ['out/short', 'out/long']
    assert rows['other'][-1] != 'out/other'  # has results of another --part-s
    for name in bags[:3]:
        size = sum(file.stat().st_size for file in (tmp_path / name).glob('*.mcap'))
        number, unit = rows[name][5:7]
        assert float(number) == pytest.approx(size / {'KiB': 2**10, 'MiB': 2**20}[unit], abs=0.06)
    assert len(rows['gone']) == 2
    total = lines[4].replace('1 of 4 bags complete', '').split()
    assert total[:2] == ['34', '1/5']
    # All folders could be replaced, and nothing was written.
    assert not (tmp_path / 'out/long').exists()
    assert run_detect_bag(model, *bags[:3], *arguments, '--dry-run', '--overwrite') == 0


def test_other_results_are_kept_unless_overwritten(model, bag, tmp_path):
    out = tmp_path / 'out'
    assert run_detect_bag(model, bag, '--output', out) == 0
    before = files_of(out)
    changed = '--confidence', 0.7
    assert run_detect_bag(model, bag, '--output', out, *changed) == 2
    assert files_of(out) == before
    (out / 'mine.txt').write_text('keep')
    assert run_detect_bag(model, bag, '--output', out, *changed, '--overwrite') == 1
    assert files_of(out) == {**before, 'mine.txt': b'keep'}
    (out / 'mine.txt').unlink()
    assert run_detect_bag(model, bag, '--output', out, *changed, '--overwrite') == 0
    assert {len(row.detections) for row in messages_of(out, '/rear/detections')} == {0}


def write_short_bags(folder, count):
    """Return bags of two images each, from a camera front."""
    rows = camera_rows('/front/image_raw', moving(2))
    return [write_bag(folder / f'drive_{number}', rows) for number in range(count)]


def test_refusal_names_all_bags_with_other_results(model, tmp_path, capsys, golden_messages):
    bags = write_short_bags(tmp_path, 8)
    out = tmp_path / 'out'
    assert run_detect_bag(model, *bags[:7], '--output', out) == 0
    before = [files_of(out / bag.name) for bag in bags[:7]]
    capsys.readouterr()
    changed = '--output', out, '--confidence', 0.7
    assert run_detect_bag(model, *bags, *changed) == 2
    golden_messages.add(capsys.readouterr().err)
    (out / 'drive_7').mkdir()
    (out / 'drive_7/mine.txt').write_text('keep')
    assert run_detect_bag(model, *bags, *changed) == 2
    golden_messages.add(capsys.readouterr().err)
    assert run_detect_bag(model, *bags[5:], *changed, '--dry-run') == 1
    _, *rows, _, former, foreign = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == [str(bag) for bag in bags[5:]]
    golden_messages.add(f'{former}\n{foreign}')
    assert [files_of(out / bag.name) for bag in bags[:7]] == before
    # A bag without other results is processed alone.
    (out / 'drive_7/mine.txt').unlink()
    assert run_detect_bag(model, bags[7], '--output', out / 'drive_7', '--confidence', 0.7) == 0


def test_table_ends_with_a_total_and_the_failures(
    model, tmp_path, capsys, monkeypatch, golden_messages
):
    monkeypatch.chdir(tmp_path)  # the width of a column depends on the lengths of paths
    bags = [path.name for path in write_short_bags(tmp_path, 2)]
    arguments = model, 'gone', *bags, '--output', 'out'
    assert run_detect_bag(*arguments) == 1
    *table, rate, failure = capsys.readouterr().out.splitlines()
    golden_messages.add('\n'.join([*table, failure]))
    assert float(re.search(r'([0-9.]+) images/s', rate)[1]) > 0
    # The same command runs nothing, so it has no rate.
    assert run_detect_bag(*arguments) == 1
    golden_messages.add(capsys.readouterr().out)
    # With a further bag, only this bag has new results.
    shutil.copytree(bags[0], 'later')
    assert run_detect_bag(model, *bags, 'later', '--output', 'out') == 0
    *table, _ = capsys.readouterr().out.splitlines()
    golden_messages.add('\n'.join(table))
    # Replaced results are new.
    assert run_detect_bag(model, bags[0], '--output', f'out/{bags[0]}', '--overwrite') == 0
    *table, _ = capsys.readouterr().out.splitlines()
    golden_messages.add('\n'.join(table))


@pytest.mark.parametrize('options', [(), ('--dry-run',)], ids=['run', 'dry_run'])
def test_name_with_a_line_end_stays_on_its_line(model, tmp_path, capsys, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    said = []
    for end in ('x', '\n', '\x1b[2J'):
        (first,) = write_short_bags(tmp_path, 1)
        shutil.copytree(first, f'one{end}bag', dirs_exist_ok=True)
        shutil.copytree(first, f'two{end}bag', dirs_exist_ok=True)
        bags = f'one{end}bag', f'two{end}bag', f'gone{end}bag'
        arguments = model, *bags, '--output', tmp_path / f'out_{len(said)}'
        assert run_detect_bag(*arguments, *options) == 1
        output = capsys.readouterr()
        assert '\x1b' not in output.out + output.err
        said.append((output.out.count('\n'), output.err.count('\n')))
        shutil.rmtree(first)
    assert len(set(said)) == 1


@pytest.mark.parametrize(('highest', 'code'), [(4096, 0), (80, 1)])
def test_more_bags_than_open_files(model, tmp_path, highest, code):
    (first,) = write_short_bags(tmp_path, 1)
    bags = [shutil.copytree(first, tmp_path / f'copy_{number}') for number in range(80)]
    command = [executable('detect_bag'), model, *bags, '--output', tmp_path / 'out']
    limits = 80, highest
    ended = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits),
    )
    assert ended.returncode == code, ended.stderr
    assert 'Traceback' not in ended.stderr
    assert len(list((tmp_path / 'out').glob('*/*.mcap'))) == (0 if code else 80)


@pytest.mark.parametrize(
    ('options', 'end', 'code'),
    [
        ((), KeyboardInterrupt(), 130),
        (('--overwrite',), KeyboardInterrupt(), 130),
        ((), WriteError('out', 'cannot be written: No space left on device'), 1),
    ],
    ids=['new', 'overwrite', 'full_disk'],
)
def test_interruption_says_what_is_done(
    model, tmp_path, capsys, monkeypatch, golden_messages, options, end, code
):
    bags = write_short_bags(tmp_path, 1)
    bags.append(write_bag(tmp_path / 'long', camera_rows('/front/image_raw', moving(30))))
    out = tmp_path / 'out'
    arguments = model, *bags, '--output', out, '--part-s', 1
    run_parts = detect_bag.run_parts

    def run_two_parts(*arguments):
        finished = 0
        with contextlib.closing(run_parts(*arguments)) as events:
            for event in events:
                yield event
                finished += isinstance(event, Finished)
                if finished == 2:
                    raise end

    with monkeypatch.context() as patch:
        patch.setattr(detect_bag, 'run_parts', run_two_parts)
        assert run_detect_bag(*arguments, *options) == code
    golden_messages.add(capsys.readouterr().err)
    kept = [out / 'drive_0/drive_0_0.mcap', out / 'long/long_0.mcap']
    times = [path.stat().st_mtime_ns for path in kept]
    # Without --overwrite, as the message says.
    assert run_detect_bag(*arguments) == 0
    assert [path.stat().st_mtime_ns for path in kept] == times
    assert len(messages_of(out / 'long', '/front/detections')) == 30


def test_foreign_folder_is_never_removed(model, bag, tmp_path):
    folder = write_bag(tmp_path / 'precious', camera_rows('/image', moving(2)))
    before = files_of(folder)
    for options in ((), ('--overwrite',)):
        assert run_detect_bag(model, bag, '--output', folder, *options) != 0
        assert run_detect_bag(model, folder, '--output', folder, *options) == 2
    assert files_of(folder) == before


def test_results_never_replace_the_bag_that_is_read(model, tmp_path):
    source = write_bag(tmp_path / 'drive', camera_rows('/front/image_raw', moving(3)))
    out = tmp_path / 'out'
    assert run_detect_bag(model, source, '--output', out, '--copy') == 0
    before = files_of(out)
    links = tmp_path / 'links'
    links.mkdir()
    (links / 'drive.mcap').symlink_to(out / 'out_0.mcap')
    for again in (out / 'out_0.mcap', links, links / 'drive.mcap'):
        assert run_detect_bag(model, again, '--output', out, '--overwrite') == 2
        assert files_of(out) == before
    arguments = model, source, links, '--output', tmp_path, '--overwrite'
    assert run_detect_bag(*arguments) == 2
    assert files_of(out) == before


def test_raw_results_that_do_not_belong_to_their_part_are_refused(
    model, bag, tmp_path, monkeypatch
):
    out = tmp_path / 'out'
    arguments = model, bag, '--output', out, '--part-s', 1

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BagJoin, '_join', stop)
        assert run_detect_bag(*arguments) == 130
    file = out / '.parts/000000.raw'
    whole = file.read_bytes()
    with PartReader(file) as reader:
        found = list(reader)
    for change in ({'camera': 'other'}, {'log_ns': START_NS + 5 * SECOND}, {'log_ns': 5}):
        with PartWriter(file) as writer:
            writer.add(replace(found[0], **change))
            writer.finish(PartReport(1))
        assert run_detect_bag(*arguments) == 1
    file.write_bytes(whole)
    assert run_detect_bag(*arguments) == 0
    assert len(messages_of(out, '/front/detections')) == 30


def test_maps_have_the_calibration_of_the_bag(tmp_path):
    arguments = tool_arguments('depth', tmp_path / 'depth.onnx')
    picture = np.full((96, 128, 3), 90, np.uint8)
    rows = camera_rows('/front/image_raw', [picture] * 6)
    rows += [('/front/camera_info', START_NS + SECOND // 4, camera_info(START_NS, (128, 96), 100))]
    source = write_bag(tmp_path / 'drive', sorted(rows, key=lambda row: row[1]))
    out = tmp_path / 'out'
    arguments[1:1] = [source, '--output', out]
    assert run_detect_bag(*arguments, '--param', 'map_size=64x48') == 0
    infos = messages_of(out, '/front/depth/camera_info')
    assert len(infos) == 6
    assert {(info.width, info.height, info.k[0]) for info in infos} == {(64, 48, 50.0)}
    for depth in messages_of(out, '/front/depth'):
        assert (depth.width, depth.height, depth.encoding) == (64, 48, '32FC1')


def test_focal_length_comes_from_the_bag(tmp_path):
    values = write_depth_anything_3(tmp_path / 'depth.onnx')
    path = values.pop('engine_path')
    model = [word for name, each in values.items() for word in ('--param', f'{name}={each}')]
    pictures = [np.full((48, 64, 3), value, np.uint8) for value in (60, 120, 180)]
    rows = camera_rows('/front/image_raw', pictures)
    plain = write_bag(tmp_path / 'plain', rows)
    # The calibration is recorded after the first image.
    info = '/front/camera_info', START_NS + SECOND // 20, camera_info(START_NS, (64, 48), 100)
    calibrated = write_bag(tmp_path / 'calibrated', sorted([*rows, info], key=lambda row: row[1]))
    runs = {
        'given': (plain, '--param', 'model.focal_length=100'),
        'found': (calibrated,),
        'unknown': (plain,),
    }
    for name, arguments in runs.items():
        assert run_detect_bag(path, *arguments, *model, '--output', tmp_path / name) == 0
    given, found = (messages_of(tmp_path / name, '/front/depth') for name in ('given', 'found'))
    assert len(given) == len(found) == 3
    for one, other in zip(given, found, strict=True):
        assert np.array_equal(one.data, other.data)
    assert not messages_of(tmp_path / 'unknown', '/front/depth')
    assert len(messages_of(tmp_path / 'unknown', '/front/relative_depth')) == 3


@pytest.mark.parametrize('largest', [2000, 6000])
def test_full_disk_ends_the_run_and_the_next_run_goes_on(model, bag, tmp_path, largest):
    output = tmp_path / 'out'
    command = [executable('detect_bag'), str(model), str(bag), '--output', str(output)]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, **small_disk(largest)
    )
    assert ended.returncode == 1
    assert 'Traceback' not in ended.stderr
    assert ended.stderr.count('File too large') == 1
    assert not list(output.glob('*.mcap'))
    assert run_detect_bag(*command[1:]) == 0
    assert len(messages_of(output, '/front/detections')) == 30


def test_worker_that_dies_is_replaced(model, tmp_path):
    """A process that the system kills costs nothing but time."""
    source = write_bag(tmp_path / 'long', camera_rows('/image_raw', moving(2000), hz=100))
    output = tmp_path / 'out'
    # The run waits after 10 of 20 parts, so that its worker does not end before it is killed.
    gate = tmp_path / 'gate'
    arguments = model, source, '--part-s', '1', '--output', output
    with subprocess.Popen(
        held_detect_bag(gate, 10, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            wait_until((output / 'out_1.mcap').exists, 'the second file')
            for child in children_of(process.pid):
                os.kill(child, signal.SIGKILL)
            gate.touch()
            process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 0
    assert len(messages_of(output, '/detections')) == 2000


def children_of(pid):
    """Return the processes that a process has started and that run Python's spawn."""
    with open(f'/proc/{pid}/task/{pid}/children') as file:
        children = [int(word) for word in file.read().split()]
    found = []
    for child in children:
        with open(f'/proc/{child}/cmdline') as file:
            if 'spawn_main' in file.read():
                found.append(child)
    assert found
    return found
