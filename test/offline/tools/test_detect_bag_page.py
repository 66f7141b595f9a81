# SPDX-License-Identifier: Apache-2.0
"""The page of detect_bag has the figures of the new bag, as rosbags reads it."""

import base64
import json
import re
import shlex
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from urllib.request import url2pathname

import cv2
import numpy as np
import pytest

from support.browser import open_browser
from support.detect_bags import (
    DELAY_NS,
    START_NS,
    boxes_of,
    camera_rows,
    files_of,
    messages_of,
    png_image,
    raw_image,
    run_detect_bag,
    stamp_ns_of,
    write_bag,
)
from support.models.image_models import tool_arguments
from support.models.picture_model import picture_with, write_picture_model
from support.optional_packages import needs

pytestmark = [needs(name) for name in ('onnx', 'scipy', 'rosbags', 'mcap', 'mcap_ros2')]
SECOND = 10**9
HOSTILE = '"><script>alert(1)<'
OVERFLOW = 'return document.documentElement.scrollWidth - document.documentElement.clientWidth'
DATA = "return JSON.parse(document.getElementById('data').textContent)"
#: Index of the image without objects, and of the image whose objects have low scores.
EMPTY, DOUBTFUL, CROWDED = 30, 40, 50


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    return write_picture_model(tmp_path_factory.mktemp('picture') / 'picture.onnx')


def front_boxes(number):
    """Return three objects that stand still; fewer or other ones in three images."""
    score = 0.4 if number == DOUBTFUL else 0.8
    boxes = [(10, 10, 12, 12, score), (30, 10, 12, 12, score), (50, 30, 12, 12, score, 1)]
    if number == CROWDED:
        boxes += [(10, 36, 12, 12, 0.9), (30, 36, 12, 12, 0.9)]
    return [] if number == EMPTY else boxes


@pytest.fixture(scope='module')
def bag(tmp_path_factory):
    """Return a bag of 8 s with two cameras at 10 Hz."""
    front = [picture_with(front_boxes(number)) for number in range(80)]
    rear = [picture_with([(20, 20, 10, 12, 0.6)])] * 80
    rows = camera_rows('/front/image_raw', front)
    rows += camera_rows('/rear/image_raw/compressed', rear, make=png_image)
    return write_bag(tmp_path_factory.mktemp('bags') / 'drive', sorted(rows, key=lambda r: r[1]))


def page_data(folder):
    text = (folder / 'index.html').read_text()
    (content,) = re.findall('<script type="application/json" id="data">(.*?)</script>', text)
    return json.loads(content)


def pictures(folder):
    """Return the pictures of a page, decoded."""
    text = (folder / 'index.html').read_text()
    files = re.findall('src="data:image/jpeg;base64,([^"]+)"', text)
    content = [np.frombuffer(base64.b64decode(file), np.uint8) for file in files]
    return [cv2.imdecode(each, cv2.IMREAD_COLOR) for each in content]


@pytest.fixture(scope='module')
def reported(model, bag, tmp_path_factory):
    """Return the folders of a new bag with tracks, and of its page."""
    folder = tmp_path_factory.mktemp('reported')
    words = '--output', folder / 'out', '--report', folder / 'page', '--track', '--part-s', 3
    assert run_detect_bag(model, bag, *words) == 0
    return folder / 'out', folder / 'page'


def test_counts_are_those_of_the_new_bag(reported):
    out, page = reported
    data = page_data(page)
    for camera in ('front', 'rear'):
        messages = messages_of(out, f'/{camera}/detections')
        assert sum(data['images'][camera]) == len(messages) == 80
        boxes = [box for message in messages for box in boxes_of(message)]
        assert sum(data['objects'][camera]) == len(boxes)
        names = Counter(box[0] for box in boxes)
        classes = data['classes'][camera]
        assert {name: each['objects'] for name, each in classes.items()} == names
        for name, each in classes.items():
            scores = [box[1] for box in boxes if box[0] == name]
            assert each['mean_score'] == pytest.approx(np.mean(scores))
    assert data['report']['images'] == 160
    assert data['is_complete']


def test_objects_are_counted_in_their_part_of_the_time(reported):
    out, page = reported
    data = page_data(page)
    start_ns = int(data['start_ns'])
    length = (int(data['end_ns']) - start_ns) / 120
    expected = np.zeros(120, int)
    for message in messages_of(out, '/front/detections'):
        log_ns = stamp_ns_of(message) + DELAY_NS
        expected[int((log_ns - start_ns) / length)] += len(message.detections)
    assert data['objects']['front'] == expected.tolist()


def test_tracks_have_the_lengths_of_their_ids(reported):
    out, page = reported
    data = page_data(page)
    tracks = {}
    for camera in ('front', 'rear'):
        for message in messages_of(out, f'/{camera}/detections'):
            for box in boxes_of(message):
                if box[2]:
                    tracks.setdefault((camera, box[2]), []).append(stamp_ns_of(message))
    assert len(tracks) > 3
    assert sum(data['track_lengths']) == len(tracks)
    longest = {(each['camera'], each['id']): each for each in data['longest_tracks']}
    assert longest.keys() == tracks.keys()
    for key, stamps in tracks.items():
        assert longest[key]['images'] == len(stamps)
        assert longest[key]['first_ns'] == str(stamps[0] + DELAY_NS)
        assert longest[key]['last_ns'] == str(stamps[-1] + DELAY_NS)


@pytest.mark.parametrize(
    ('reason', 'number', 'value'),
    [
        ('many objects', CROWDED, 5),
        ('low scores', DOUBTFUL, 0.4),
        ('loss of objects', EMPTY, 3),
    ],
)
def test_most_striking_image_of_each_reason_is_found(reported, reason, number, value):
    moment = next(each for each in page_data(reported[1])['moments'] if each['reason'] == reason)
    assert moment['camera'] == 'front'
    assert moment['value'] == pytest.approx(value, abs=0.01)
    stamp_ns = START_NS + number * SECOND // 10
    assert moment['log_ns'] == str(stamp_ns + DELAY_NS)
    assert moment['stamp'] == [*divmod(stamp_ns, SECOND)]
    assert f'front, {number / 10:.3f} s' in (reported[1] / 'index.html').read_text()


def test_pictures_are_the_images_with_their_objects(model, tmp_path):
    picture = np.full((240, 320, 3), 90, np.uint8)
    picture[:5] = picture_with([(32, 24, 20, 16, 0.9)])[:1].repeat(5, axis=0).repeat(5, axis=1)
    blue = picture.copy()
    blue[100:] = 200, 20, 20
    write_bag(tmp_path / 'drive', camera_rows('/image_raw', [picture, blue]))
    words = '--output', tmp_path / 'out', '--report', tmp_path / 'page', '--report-images', 4
    assert run_detect_bag(model, tmp_path / 'drive', *words) == 0
    moments, drawn = page_data(tmp_path / 'page')['moments'], pictures(tmp_path / 'page')
    assert moments
    assert len(drawn) == len(moments)
    shown = dict(zip((each['stamp'][1] for each in moments), drawn, strict=True))
    for stamp, image in ((0, picture), (SECOND // 10, blue)):
        assert shown[stamp].shape == (360, 480, 3)
        assert np.abs(shown[stamp][300, 20].astype(int) - image[200, 13]).max() < 12


def test_report_changes_no_byte_of_the_bags(model, bag, reported, tmp_path):
    out, page = reported
    words = '--output', tmp_path / 'out', '--track', '--part-s', 3
    before = files_of(bag)
    assert run_detect_bag(model, bag, *words) == 0
    plain = files_of(tmp_path / 'out')
    assert sorted(plain.values()) == sorted(files_of(out).values())
    # The bag is complete, so only the page is written.
    assert run_detect_bag(model, bag, *words, '--report', tmp_path / 'page') == 0
    assert files_of(tmp_path / 'out') == plain
    assert files_of(bag) == before
    late, first = page_data(tmp_path / 'page'), page_data(page)
    assert late.pop('command') != first.pop('command')
    assert late == first


def test_each_of_several_bags_has_its_page(model, bag, tmp_path):
    other = write_bag(tmp_path / 'other', camera_rows('/image_raw', [picture_with([])] * 3))
    words = '--output', tmp_path / 'out', '--report', tmp_path / 'page'
    # A shell adds the slash if the user writes */ for all folders.
    assert run_detect_bag(model, f'{bag}/', other, *words) == 0
    assert page_data(tmp_path / 'page/drive')['report']['images'] == 160
    assert page_data(tmp_path / 'page/other')['report']['images'] == 3
    # The command on a page names its own bag, so that a thousand bags do not fill each page.
    command = ['detect_bag', model, other, '...', *words]
    assert page_data(tmp_path / 'page/other')['command'] == shlex.join(map(str, command))


def file_of(address):
    """Return the path of a URL of a file."""
    return Path(url2pathname(urlsplit(address).path))


def links_of(page):
    """Return the target of each link to another file by its text."""
    found = {}

    class Parser(HTMLParser):
        target = None

        def handle_starttag(self, tag, attributes):
            if tag == 'a':
                self.target = urljoin(page.as_uri(), dict(attributes)['href'])

        def handle_endtag(self, tag):
            self.target = None if tag == 'a' else self.target

        def handle_data(self, data):
            if self.target and '#' not in self.target:
                found[data] = file_of(self.target)

    Parser().feed(page.read_text())
    return found


def test_index_page_lists_the_bags_with_links_to_their_pages(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # long paths would be shortened
    names = 'plain', 'a b?#%&<i>', 'javascript:alert(1)'
    pictures = [picture_with([(20, 20, 10, 12, 0.6)])] * 3
    for name in names:
        write_bag(tmp_path / name, camera_rows('/image_raw', pictures))
    page = tmp_path / 'page'
    for _ in range(2):  # the second command finds all results
        assert run_detect_bag(model, *names, 'gone', '--output', 'out', '--report', page) == 1
        targets = {name: page / name / 'index.html' for name in names}
        assert links_of(page / 'index.html') == targets
        assert all(target.is_file() for target in targets.values())
        data = page_data(page)
        assert list(data['failures']) == ['gone']
        assert [row['bag'] for row in data['bags']] == list(names)
        for row in data['bags']:
            found = messages_of(Path(row['output']), '/detections')
            assert row['images'] == len(found) == 3
            assert row['detections'] == {'person': sum(len(each.detections) for each in found)}
            assert row['is_complete']
        text = (page / 'index.html').read_text()
        assert data['failures']['gone'] in text
        assert '<i>' not in text
        shutil.rmtree(page)


def test_only_the_row_of_a_bag_has_its_link(model, tmp_path, monkeypatch):
    """The names of these bags are also in the titles and in the row with the totals."""
    monkeypatch.chdir(tmp_path)
    names = 'bag', '2 of 2 bags complete'
    for name in names:
        write_bag(tmp_path / name, camera_rows('/image_raw', [picture_with([])] * 3))
    assert run_detect_bag(model, *names, '--output', 'out', '--report', 'page') == 0
    text = (tmp_path / 'page/index.html').read_text()
    assert len(re.findall('<a href="[^#]', text)) == len(names)
    assert links_of(tmp_path / 'page/index.html').keys() == set(names)


def test_several_bags_with_the_name_of_a_page_are_refused(model, tmp_path):
    bags = [
        write_bag(tmp_path / name, camera_rows('/image_raw', [picture_with([])] * 3))
        for name in ('index.html', 'plain')
    ]
    words = '--output', tmp_path / 'out', '--report', tmp_path / 'page'
    assert run_detect_bag(model, *bags, *words) == 2
    assert not (tmp_path / 'out').exists()
    assert run_detect_bag(model, bags[0], *words) == 0


def test_bag_without_a_page_has_no_link(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bags = 'one', 'two'
    for name in bags:
        write_bag(tmp_path / name, camera_rows('/image_raw', [picture_with([])] * 3))
    page = tmp_path / 'page'
    page.mkdir()
    (page / 'two').write_text('a file, where the folder would be')
    assert run_detect_bag(model, *bags, '--output', tmp_path / 'out', '--report', page) == 1
    assert links_of(page / 'index.html') == {'one': page / 'one/index.html'}


@pytest.mark.unmeasured
@pytest.mark.parametrize('width', [390, 1280])
def test_index_page_opens_in_a_browser(model, tmp_path, width):
    rows = camera_rows('/image_raw', [picture_with([])] * 3)
    bags = [write_bag(tmp_path / name, rows) for name in (HOSTILE, 'plain')]
    page = tmp_path / 'page'
    words = '--output', tmp_path / 'out', '--report', page
    assert run_detect_bag(model, *bags, *words) == 0
    with open_browser() as browser:
        browser.set_size(width)
        browser.open(page / 'index.html')
        assert browser.console() == []
        assert browser.run(OVERFLOW) == 0
        assert browser.run(DATA) == page_data(page)
        browser.open(file_of(browser.run("return document.querySelector('main a').href")))
        assert HOSTILE in browser.run("return document.querySelector('h1').innerText")


def test_page_of_a_tracker_without_tracks_has_the_part_about_tracks(model, tmp_path):
    source = write_bag(tmp_path / 'drive', camera_rows('/image_raw', [picture_with([])] * 3))
    for options, has_part in (((), False), (('--track',), True)):
        page = tmp_path / f'page{len(options)}'
        words = '--output', tmp_path / f'out{len(options)}', '--report', page
        assert run_detect_bag(model, source, *words, *options) == 0
        assert ('>Tracks</h2>' in (page / 'index.html').read_text()) is has_part


def noise(count):
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (count, 480, 640, 3), np.uint8)
    for image in images:
        image[:10] = picture_with([(32, 24, 20, 16, 0.9)])[:1].repeat(10, 0).repeat(10, 1)
    return images


def test_page_is_limited_in_bytes_or_pictures(model, tmp_path):
    write_bag(tmp_path / 'drive', camera_rows('/image_raw', noise(60)))
    words = model, tmp_path / 'drive', '--output', tmp_path / 'out', '--report'
    assert run_detect_bag(*words, tmp_path / 'small') == 0
    assert 2_000_000 < (tmp_path / 'small/index.html').stat().st_size <= 3_000_000
    assert run_detect_bag(*words, tmp_path / 'few', '--report-images', 5) == 0
    assert len(pictures(tmp_path / 'few')) == 5


def test_problems_are_on_the_page(model, tmp_path):
    rows = camera_rows('/image_raw', [picture_with(front_boxes(0))] * 20)
    bad = raw_image(picture_with([]), START_NS + SECOND, encoding='<b>8UC9')
    rows[5] = (*rows[5][:2], bad)
    source = write_bag(tmp_path / 'drive', rows, 'SQLITE3')
    words = '--output', tmp_path / 'out', '--report', tmp_path / 'page', '--confidence', 0.3
    assert run_detect_bag(model, source, *words) == 1
    data = page_data(tmp_path / 'page')
    assert (data['report']['images'], sum(data['report']['unread'].values())) == (19, 1)
    text = (tmp_path / 'page/index.html').read_text()
    assert '&lt;b&gt;8UC9' in text
    assert '<b>8UC9' not in text


@pytest.mark.unmeasured
@pytest.mark.parametrize('width', [390, 1280])
def test_page_opens_in_a_browser(model, tmp_path, width):
    source = write_bag(tmp_path / HOSTILE, camera_rows('/image_raw', noise(3)))
    words = '--output', tmp_path / 'out', '--report', tmp_path / 'page', '--track'
    assert run_detect_bag(model, source, *words) == 0
    page = tmp_path / 'page/index.html'
    with open_browser() as browser:
        browser.set_size(width)
        browser.open(page)
        assert browser.console() == []
        other = [url for url in browser.requests() if not url.startswith('data:image/jpeg;')]
        assert other == [page.resolve().as_uri()]
        assert browser.run(OVERFLOW) == 0
        assert HOSTILE in browser.run("return document.querySelector('h1').innerText")
        assert browser.run("return document.querySelectorAll('script').length") == 2
        assert browser.run(DATA) == page_data(tmp_path / 'page')
        loaded = 'return [...document.images].map((one) => one.naturalWidth)'
        assert set(browser.run(loaded)) == {480}


def test_model_of_the_whole_image_has_a_page_of_its_images(tmp_path):
    arguments = tool_arguments('depth', tmp_path / 'depth.onnx')
    rows = camera_rows('/image_raw', [np.full((96, 128, 3), 90, np.uint8)] * 4)
    source = write_bag(tmp_path / 'drive', rows)
    arguments[1:1] = [source, '--output', tmp_path / 'out', '--report', tmp_path / 'page']
    assert run_detect_bag(*arguments) == 0
    data = page_data(tmp_path / 'page')
    assert sum(data['images']['']) == 4
    assert 'moments' not in data


@pytest.mark.parametrize('place', ['out', 'out/page', 'drive/page'])
def test_page_inside_a_bag_is_refused(model, tmp_path, place):
    write_bag(tmp_path / 'drive', camera_rows('/image_raw', [picture_with([])]))
    (tmp_path / 'out').mkdir()
    words = '--output', tmp_path / 'out', '--report', tmp_path / place
    assert run_detect_bag(model, tmp_path / 'drive', *words) == 2
    assert not (tmp_path / place / 'index.html').exists()
