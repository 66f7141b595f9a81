# SPDX-License-Identifier: Apache-2.0
"""The page of evaluate_engine in a browser shows the figures of its JSON, and of other runs."""

import json

import cv2
import numpy as np
import pytest

from support.browser import open_browser
from support.models.tiny_model import CLASS_NAMES, expected_detections, write_tiny_model
from support.optional_packages import needs
from support.oracles.evaluation_support import truth, written
from support.source_trees import ROOT
from trt_perception.offline.tools import evaluate_engine

pytestmark = [needs('pycocotools'), pytest.mark.unmeasured]

KINDS = ['right', 'wrong class', 'duplicate', 'wrong place', 'background', 'missed']
HOSTILE = [
    '<script>alert(1)</script>',
    '"\'><img src=x onerror=alert(1)>',
    '<\u200f!--',
    'שלום עולם',
    'x' * 240,
]
#: Elements that are wider than the page, unless they scroll on their own.
OVERFLOW = """
const wide = document.documentElement.clientWidth;
const found = [...document.querySelectorAll('main *, header *')].filter((one) =>
  one.getBoundingClientRect().right > wide + 1 && !one.closest('.scroll, .picture'));
const texts = found.map((one) => one.outerHTML.slice(0, 100));
return [document.documentElement.scrollWidth - wide, texts];
"""
SET_THRESHOLD = """
const slider = document.getElementById('threshold');
slider.value = arguments[0];
slider.dispatchEvent(new Event('input'));
return document.getElementById('threshold-text').textContent;
"""
#: Texts of the cells of the counts, for each model: figure -> text.
COUNTS = """
const rows = {};
for (const cell of document.querySelectorAll('[data-figure]')) {
  (rows[cell.dataset.model] ??= {})[cell.dataset.figure] = cell.textContent;
}
return rows;
"""
ROWS = """
return [...document.getElementById(arguments[0]).tBodies[0].rows].map((row) =>
  [...row.cells].map((cell) => cell.textContent));
"""
BOXES = """
const counts = {};
for (const box of document.querySelectorAll('#gallery rect')) {
  const kind = box.classList[1];
  counts[kind] = (counts[kind] || 0) + 1;
}
return counts;
"""


def run(*arguments):
    assert evaluate_engine.main([str(argument) for argument in arguments]) == 0


@pytest.fixture(scope='module')
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope='module')
def digits(tmp_path_factory):
    """Return the arguments of a run on 20 scenes, and the folder of its results."""
    folder = tmp_path_factory.mktemp('digits')
    images = folder / 'images'
    images.mkdir()
    for path in sorted(ROOT.glob('demo/scenes/*.jpg'))[30:50]:
        (images / path.name).symlink_to(path)
    usual = [ROOT / 'models' / 'digits.onnx', '--images', images, '--allow-missing']
    usual += ['--annotations', ROOT / 'demo' / 'truth.json']
    run(*usual, '--report', folder / 'report', '--json', folder / 'r.json')
    return usual, folder


@pytest.fixture
def page(browser, digits):
    browser.set_size(1280)
    browser.open(digits[1] / 'report' / 'index.html')
    return browser


def embedded(browser):
    return json.loads(browser.run("return document.getElementById('data').textContent"))


def shown(figure):
    return '–' if figure is None else f'{figure:.3f}'


def test_page_opens_without_an_error_or_a_request(page, digits):
    assert page.console() == []
    address = (digits[1] / 'report' / 'index.html').resolve().as_uri()
    assert {url for url in page.requests() if not url.startswith('data:')} == {address}
    assert (digits[1] / 'report' / 'index.html').stat().st_size < 3_000_000
    assert [path.name for path in (digits[1] / 'report').iterdir()] == ['index.html']


def test_page_has_the_figures_of_the_json_file(page, digits):
    report = json.loads((digits[1] / 'r.json').read_text())
    data = embedded(page)
    (model,) = report['models'].values()
    (own,) = data['report']['models'].values()
    for key, value in own['metrics'].items():
        assert model['metrics'][key] == value
    cells = page.run(
        "return [...document.querySelectorAll('#section-1 td')].map((cell) => cell.textContent)"
    )
    names = 'mAP', 'mAP50', 'mAP75', 'mAP_small', 'mAP_medium', 'mAP_large', 'AR100'
    at_threshold = model['at_threshold']['precision'], model['at_threshold']['recall']
    expected = [*(model['metrics'][name] for name in names), *at_threshold]
    assert cells[:9] == [shown(value) for value in expected]
    rows = {row[0]: row[1:4] for row in page.run(ROWS, 'classes')}
    assert rows == {
        name: [str(one['objects']), shown(one['AP']), shown(one['AP50'])]
        for name, one in model['metrics']['classes'].items()
    }


@pytest.mark.parametrize('confidence', ['0.1', '0.25', '0.6'])
def test_slider_shows_the_figures_of_a_run_at_that_threshold(page, digits, tmp_path, confidence):
    usual, _ = digits
    run(*usual, '--confidence', confidence, '--json', tmp_path / 'r.json')
    (model,) = json.loads((tmp_path / 'r.json').read_text())['models'].values()
    expected = model['at_threshold']
    assert page.run(SET_THRESHOLD, round(float(confidence) * 100)) == f'{float(confidence):.2f}'
    cells = page.run(COUNTS)['0']
    assert cells['precision'] == shown(expected['precision'])
    assert cells['recall'] == shown(expected['recall'])
    right, wrong, missed = expected['right'], expected['wrong_class'], expected['missed']
    assert [int(cells[kind]) for kind in ('right', 'wrong class', 'missed')] == [
        right,
        wrong,
        missed,
    ]
    false = sum(int(cells[kind]) for kind in ('duplicate', 'wrong place', 'background'))
    assert false == expected['false']
    matrix = page.run(
        "return [...document.querySelectorAll('#confusions tbody tr')]"
        '.map((row) => [...row.cells].slice(1).map((cell) => Number(cell.textContent)))'
    )
    assert sum(row[index] for index, row in enumerate(matrix[:-1])) == right
    assert sum(row[-1] for row in matrix[:-1]) == missed
    assert sum(matrix[-1]) == false
    classes = page.run(ROWS, 'classes')
    assert sum(int(row[7]) for row in classes) == wrong + missed
    assert sum(int(row[2]) for row in page.run(ROWS, 'sizes')) == right


def test_every_threshold_shows_the_counts_of_the_json(page):
    data = embedded(page)
    counts = data['models'][0]['counts']
    for index, threshold in enumerate(data['thresholds']):
        assert page.run(SET_THRESHOLD, index) == f'{threshold:.2f}'
        cells = page.run(COUNTS)['0']
        assert {kind: int(cells[kind]) for kind in KINDS} == {
            kind: counts[kind][index] for kind in KINDS
        }
    assert len(data['thresholds']) == 101


def test_pictures_show_all_mistakes_and_boxes_switch_them(page):
    counts = embedded(page)['models'][0]['counts']
    node = 25
    page.run(SET_THRESHOLD, node)
    drawn = page.run(BOXES)
    # Every image with a mistake has a picture. Images without mistakes have right boxes, too.
    wrong = {kind.replace(' ', '-'): counts[kind][node] for kind in KINDS[1:]}
    assert {kind: drawn.get(kind, 0) for kind in wrong} == wrong
    assert sum(wrong.values()) > 5
    assert 0 < drawn['right'] <= counts['right'][node]
    for kind in ('right', 'missed', 'wrong-class'):
        page.run(
            "document.querySelector(`input[value='${arguments[0]}']`).click()",
            kind.replace('-', ' '),
        )
        drawn.pop(kind)
        assert page.run(BOXES) == drawn
    page.run(SET_THRESHOLD, 100)
    page.run("document.querySelector(`input[value='missed']`).click()")
    assert set(page.run(BOXES)) == {'missed'}


def test_worst_mistakes_are_listed_with_links_to_their_pictures(page, digits):
    page.run(SET_THRESHOLD, 25)
    rows = page.run(ROWS, 'worst-detections')
    scores = [float(row[0]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert {row[2] for row in rows} <= set(KINDS[1:-1])
    for table in ('worst-detections', 'worst-missed'):
        links = page.run(
            'return [...document.querySelectorAll(`#${arguments[0]} a:has(bdi)`)].map((link) =>'
            '[link.textContent, document.querySelector(`${link.getAttribute("href")} bdi`)'
            '.textContent])',
            table,
        )
        assert links
        assert all(caption == name for name, caption in links)


def test_order_of_pictures_follows_the_selection(page):
    page.run(
        "const order = document.getElementById('order'); order.value = 'name';"
        "order.dispatchEvent(new Event('change'))"
    )
    script = "return [...document.querySelectorAll('#gallery figure')].map((one) => {}one)"
    names = page.run(script.replace('{}one', "one.querySelector('bdi').textContent"))
    assert names == sorted(names)
    page.run(
        "const order = document.getElementById('order'); order.value = 'mistakes';"
        "order.dispatchEvent(new Event('change'))"
    )
    mistakes = page.run(script.replace('{}one', 'Number(one.dataset.mistakes)'))
    assert mistakes == sorted(mistakes, reverse=True)


def test_keyboard_moves_the_slider_and_focus_is_visible(page):
    page.run("document.getElementById('threshold').focus()")
    page.press('\ue014', '\ue014', '\ue012')  # right, right, left
    assert page.run("return document.getElementById('threshold-text').textContent") == '0.26'
    page.press('\ue004', '\ue007')  # tab to the button, enter
    assert page.run('return document.activeElement.id') == 'node-threshold'
    style = page.run('return getComputedStyle(document.activeElement).outlineStyle')
    assert style == 'solid'
    assert page.run("return document.getElementById('threshold-text').textContent") == '0.25'


def test_switch_and_system_choose_dark_or_light(page, digits):
    color = 'return getComputedStyle(document.body).backgroundColor'
    light = page.run(color)
    page.run("document.getElementById('dark').click()")
    dark = page.run(color)
    assert light == 'rgb(255, 255, 255)' != dark
    page.set_size(1280, dark=True)
    page.open(digits[1] / 'report' / 'index.html')
    assert page.run(color) == dark


@pytest.mark.parametrize('width', [400, 1280, 1920])
def test_nothing_is_wider_than_the_page(page, width):
    page.set_size(width)
    assert page.run(OVERFLOW) == [0, []]


def test_inputs_have_labels_and_tables_have_headers(page):
    without = page.run(
        "return [...document.querySelectorAll('input, select')]"
        '.filter((one) => !one.labels.length).map((one) => one.outerHTML)'
    )
    assert without == []
    tables = page.run(
        "return [...document.querySelectorAll('table')].map((one) => [one.caption?.textContent,"
        "one.querySelectorAll('thead th[scope=col]').length])"
    )
    assert len(tables) >= 6
    assert all(caption and heads for caption, heads in tables)


def test_page_can_be_printed(page):
    assert page.print_pdf().startswith(b'%PDF')


@pytest.fixture(scope='module')
def hostile(tmp_path_factory):
    """Return the page of a run whose names of classes, images and folders are hostile."""
    folder = tmp_path_factory.mktemp('hostile')
    images = folder.joinpath('images', *(f'{word:x<200}'.replace('/', ':') for word in HOSTILE))
    images.mkdir(parents=True)
    boxes, files = [], []
    names = [name.replace('\u200f', '') for name in HOSTILE[:3]]
    for number, word in enumerate(HOSTILE):
        rgb = [(255, 0, 0), (0, 255, 128), (0, 0, 255)][number % 3]
        picture = np.full((240, 320, 3), rgb[::-1], np.uint8)
        # Annotations refuse control characters. Folders may have them.
        files.append(f'{word.replace("/", ":")}.png'.replace('\u200f', ''))
        assert cv2.imwrite(str(images / files[-1]), picture)
        for name, _, (x, y, width, height) in expected_detections(rgb, (320, 240)):
            # A wrong category, so that each image has mistakes.
            wrong = names[(CLASS_NAMES.index(name) + 1) % 3]
            boxes.append((number, wrong, (x - width / 2, y - height / 2, width, height)))
    content = truth(boxes, images=len(files), categories=names)
    for image, name in zip(content['images'], files, strict=True):
        image['file_name'] = name
    model = write_tiny_model(folder / "'quote' <b>.onnx")
    manifest = model.with_name(f'{model.name}.json')
    described = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**described, 'class_names': names}))
    usual = [model, '--images', images, '--annotations', written(folder, content)]
    run(*usual, '--report', folder / '"report"')
    return folder / '"report"' / 'index.html'


@pytest.mark.parametrize('width', [400, 1280])
def test_hostile_names_do_nothing(browser, hostile, width):
    browser.set_size(width)
    browser.open(hostile)
    for threshold in (0, 25, 40):
        browser.run(SET_THRESHOLD, threshold)
    assert browser.console() == []
    assert {url for url in browser.requests() if not url.startswith('data:')} == {
        hostile.resolve().as_uri()
    }
    assert browser.run(OVERFLOW) == [0, []]
    counts = browser.run(
        "return ['script', 'img[onerror]', 'b'].map("
        '(one) => document.querySelectorAll(one).length)'
    )
    assert counts == [2, 0, 0]
    assert len({row[5] for row in browser.run(ROWS, 'worst-detections')}) == len(HOSTILE)
    text = browser.run('return document.body.innerText')
    assert HOSTILE[0] in text
    assert '\u200f' not in text


def test_page_keeps_its_size_limit_unless_a_number_of_pictures_is_given(digits, tmp_path):
    usual, _ = digits
    rng = np.random.default_rng(0)
    images = tmp_path / 'noise'
    images.mkdir()
    content = json.loads((ROOT / 'demo' / 'truth.json').read_text())
    content['images'] = content['images'][:40]
    kept = {image['id'] for image in content['images']}
    content['annotations'] = [one for one in content['annotations'] if one['image_id'] in kept]
    for image in content['images']:  # noise has no small JPEG
        size = image['height'], image['width'], 3
        cv2.imwrite(str(images / image['file_name']), rng.integers(0, 256, size, np.uint8))
    arguments = [usual[0], '--images', images, '--annotations', written(tmp_path, content)]
    sizes = []
    for more in ((), ('--report-images', 30), ('--report-images', 2)):
        run(*arguments, '--report', tmp_path / 'report', *more)
        page = (tmp_path / 'report' / 'index.html').read_text()
        sizes.append((len(page.encode()), page.count(' data-image="')))
    assert 2_000_000 < sizes[0][0] <= 3_000_000
    assert sizes[0][1] < 30 == sizes[1][1]
    assert sizes[1][0] > 3_000_000
    assert sizes[2][1] == 2
