# SPDX-License-Identifier: Apache-2.0
"""Pages of evaluate_engine for tasks of the whole image and for several models."""

import base64
import json
import re

import cv2
import numpy as np
import pytest

from support.browser import open_browser
from support.models.image_models import IMAGE_TASKS, NAMES, tool_arguments
from support.optional_packages import needs
from support.source_trees import ROOT
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.class_map import ClassMap
from trt_perception.offline.evaluation.image_tasks.labels import LabelledImage
from trt_perception.offline.evaluation.report.worst_results import WorstResults
from trt_perception.offline.tools.evaluate_engine import main as evaluate_engine

pytestmark = pytest.mark.unmeasured
COLORS = {'red': (0, 0, 204), 'green': (0, 204, 0), 'blue': (204, 0, 0)}


@pytest.fixture(scope='module')
def browser():
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope='module')
def scenes(tmp_path_factory):
    """Write images of one colour, and labels of which a growing part is wrong."""
    folder = tmp_path_factory.mktemp('scenes')
    for number in range(9):
        name = list(COLORS)[number % 3]
        # A third of the images is in a folder of another class.
        shelf = NAMES[(NAMES.index(name) + (number < 3)) % 3]
        for kind in ('images', 'ids', 'depth'):
            (folder / kind / shelf).mkdir(parents=True, exist_ok=True)
        place = f'{shelf}/{number}.png'
        cv2.imwrite(str(folder / 'images' / place), np.full((48, 64, 3), COLORS[name], np.uint8))
        ids = np.full((48, 64), NAMES.index(name), np.uint8)
        ids[: 5 * number] = NAMES.index('gray')
        ids[46:] = 255
        cv2.imwrite(str(folder / 'ids' / place), ids)
        depth = np.full((48, 64), 204 / 765 * 1000 / (1 + 0.05 * number), np.uint16)
        depth[:9] = 0
        cv2.imwrite(str(folder / 'depth' / place), depth)
    return folder


def evaluate(scenes, task, out, *others, labelled=True):
    """Run evaluate_engine; return the report and the text of the page."""
    model, *words = tool_arguments(task, scenes / f'{task}.onnx')
    folder = {'semantic': 'ids', 'depth': 'depth'}.get(task) if labelled else None
    words += ['--annotations', scenes / folder] if folder else []
    words = [model, *others, *words, '--images', scenes / 'images', '--json', out / 'r.json']
    assert evaluate_engine([*map(str, words), '--report', str(out / 'page')]) == 0
    page = (out / 'page' / 'index.html').read_text()
    return json.loads((out / 'r.json').read_text()), page


def embedded(page):
    return json.loads(re.search(r'<script type="application/json"[^>]*>(.*?)</script>', page)[1])


@pytest.mark.parametrize('task', IMAGE_TASKS)
def test_images_are_ordered_by_errors_that_explain_the_figures(task, scenes, tmp_path):
    report, page = evaluate(scenes, task, tmp_path)
    data = embedded(page)
    assert (
        data['report']['models'][f'{task}.onnx']['metrics']
        == (report['models'][f'{task}.onnx']['metrics'])
    )
    errors = [image['error'] for image in data['images']]
    assert errors == sorted(errors, reverse=True)
    assert min(errors) > 0  # images without an error have no picture
    figures = report['models'][f'{task}.onnx']['metrics']
    if task == 'classify':
        assert len(errors) == pytest.approx((1 - figures['top1']) * 9)
        assert 'Most frequent confusions' in page
    elif task == 'semantic':
        assert sum(errors) / 9 == pytest.approx(1 - figures['pixel_accuracy'])
    else:
        assert sum(errors) / 9 == pytest.approx(figures['AbsRel'])


def test_difference_shows_the_wrong_pixels(scenes, tmp_path):
    _, page = evaluate(scenes, 'semantic', tmp_path)
    urls = re.findall(r'part-difference"><img src="data:image/jpeg;base64,([^"]+)', page)
    pictures = [
        cv2.imdecode(np.frombuffer(base64.b64decode(url), np.uint8), cv2.IMREAD_COLOR).astype(int)
        for url in urls
    ]
    errors = [image['error'] for image in embedded(page)['images']]
    assert len(pictures) == len(errors) == 8
    for picture, error in zip(pictures, errors, strict=True):
        red = (picture[..., 2] - picture[..., 0] > 80).mean()
        assert red == pytest.approx(error * 46 / 48, abs=0.03)  # two rows are not measured


@pytest.mark.parametrize('width', [400, 1280])
def test_page_of_maps_opens_and_hides_parts(browser, scenes, tmp_path, width):
    evaluate(scenes, 'semantic', tmp_path)
    browser.set_size(width)
    browser.open(tmp_path / 'page' / 'index.html')
    assert browser.console() == []
    assert [url for url in browser.requests() if not url.startswith('data:')] == [
        (tmp_path / 'page' / 'index.html').as_uri()
    ]
    visible = (
        "return [...document.querySelectorAll('.part-label')].filter((one) =>"
        'one.offsetParent).length'
    )
    assert browser.run(visible) == 8
    browser.run("document.querySelector('[data-toggle=part-label]').click()")
    assert browser.run(visible) == 0
    assert browser.run(
        'return document.documentElement.scrollWidth <= document.documentElement.clientWidth'
    )


def test_models_are_compared_without_labels(scenes, tmp_path):
    other = tool_arguments('semantic', tmp_path / 'other.onnx')[0]
    limit = ['--max-accuracy-drop', '0.5']
    report, page = evaluate(scenes, 'semantic', tmp_path, other, *limit, labelled=False)
    data = embedded(page)
    assert data['verdicts'] == report['verdicts']
    assert data['verdicts']['other.onnx']['within']
    assert data['images'] == []  # equal models have no differences


def test_only_the_worst_images_are_kept():
    results = WorstResults(3, {'a': NAMES}, {})
    rng = np.random.default_rng(0)
    bgr = rng.integers(0, 256, (12, 16, 3), np.uint8)
    shares = [0.5, 0.1, 0.0, 0.9, 0.5, 0.7]
    for number, share in enumerate(shares):
        label = np.zeros((12, 16), np.uint8)
        label.ravel()[: round(share * label.size)] = 1
        found = fixed_class_map(np.zeros((12, 16), np.uint8))
        image = LabelledImage(ROOT / f'{number}.png')
        results.add(image, bgr, label, {'a': found})
    assert [image.name for image in results.images] == ['3.png', '5.png', '0.png']


def fixed_class_map(ids):
    """Return a ClassMap whose network output has a pixel for each pixel of the image."""
    size = ids.shape[1], ids.shape[0]
    return ClassMap(ids, Letterbox.fit(size, size, 'stretch'))


@needs('pycocotools')
def test_page_of_two_models_shows_the_chosen_model_and_the_verdict(browser, tmp_path):
    images = tmp_path / 'images'
    images.mkdir()
    for path in sorted(ROOT.glob('demo/scenes/*.jpg'))[30:36]:
        (images / path.name).symlink_to(path)
    names = ['digits.onnx', 'digits_obb.onnx']
    words = [ROOT / 'models' / name for name in names]
    words += ['--boxes-only', '--images', images, '--allow-missing', '--report', tmp_path / 'page']
    words += ['--annotations', ROOT / 'demo' / 'truth.json', '--max-accuracy-drop', '0.9']
    words += ['--json', tmp_path / 'r.json']
    assert evaluate_engine(list(map(str, words))) == 0
    report = json.loads((tmp_path / 'r.json').read_text())
    browser.set_size(1280)
    browser.open(tmp_path / 'page' / 'index.html')
    assert browser.console() == []
    table = "return [...document.querySelectorAll('#section-1 table')].map((one) => one.innerText)"
    compared, figures = browser.run(table)
    loss = report['models'][names[1]]['drop']
    words = f'{"loses" if loss >= 0 else "gains"} {abs(loss):.4f} mAP50'
    assert f'within the limit 0.9: {words}' in compared
    assert all(name in figures for name in names)
    for index, name in enumerate(names):
        browser.run(
            "const model = document.getElementById('model'); model.value = arguments[0];"
            "model.dispatchEvent(new Event('change'))",
            index,
        )
        counts = report['models'][name]['at_threshold']
        shown = browser.run(
            "return ['right', 'wrong class', 'missed'].map((kind) =>"
            'Number(document.querySelector(`[data-total="${kind}"]`).textContent))'
        )
        assert shown == [counts['right'], counts['wrong_class'], counts['missed']]
        matrix = browser.run(
            "return [...document.querySelectorAll('#confusions tbody td.right')].map((cell) =>"
            'Number(cell.textContent))'
        )
        assert sum(matrix) == counts['right']


def test_page_without_annotations_compares_the_models(browser, tmp_path):
    images = tmp_path / 'images'
    images.mkdir()
    for path in sorted(ROOT.glob('demo/scenes/*.jpg'))[30:32]:
        (images / path.name).symlink_to(path)
    words = [ROOT / 'models' / name for name in ('digits.onnx', 'digits_obb.onnx')]
    words += ['--boxes-only', '--images', images, '--report', tmp_path / 'page']
    assert evaluate_engine([*map(str, words), '--json', str(tmp_path / 'r.json')]) == 0
    report = json.loads((tmp_path / 'r.json').read_text())
    browser.set_size(400)
    browser.open(tmp_path / 'page' / 'index.html')
    assert browser.console() == []
    agreement = report['models']['digits_obb.onnx']['agreement']
    text = browser.run("return document.getElementById('section-1').innerText")
    assert f'{agreement["F1"]:.4f}' in text
    loss = f'{1 - agreement["F1"]:.4f} F1 of the agreement'
    assert loss in text
