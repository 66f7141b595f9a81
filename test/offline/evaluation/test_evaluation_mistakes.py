# SPDX-License-Identifier: Apache-2.0
"""Tests of correct, wrong, false and missed detections, and of their drawings."""

import cv2
import numpy as np
import pytest
from PIL import Image

from support.optional_packages import needs
from support.oracles.evaluation_support import CLASSES, SIZE_WH, found, pictures
from trt_perception.errors import ConfigError, WriteError
from trt_perception.images import text
from trt_perception.offline.evaluation.coco.annotations import AnnotatedObject
from trt_perception.offline.evaluation.coco.classes import ClassMap
from trt_perception.offline.evaluation.dataset import DatasetImage
from trt_perception.offline.evaluation.metrics.average_precision import ClassMetrics, Metrics
from trt_perception.offline.evaluation.metrics.mistakes import count_mistakes, match_detections
from trt_perception.offline.evaluation.report.plots import plot_accuracy
from trt_perception.offline.evaluation.report.worst_images import (
    LEGEND_COLORS,
    draw_mistakes,
    write_worst_images,
)

CAT, DOG = 0, 17  # 0 is a valid category number
MAP = ClassMap((CAT, DOG), {CAT: 'cat', DOG: 'dog'})
BOX = (100, 100, 100, 100)
NEAR = (120, 100, 100, 100)  # IoU 2/3 with BOX
FAR = (150, 100, 100, 100)  # IoU 1/3
ELSEWHERE = (0, 0, 50, 50)


def true(category, xywh=BOX, crowd=False):
    return AnnotatedObject(category, xywh, xywh[2] * xywh[3], crowd)


@pytest.mark.parametrize(
    ('detections', 'truth', 'right', 'wrong', 'false', 'missed'),
    [
        ([], [], [], [], [], []),
        ([], [true(CAT)], [], [], [], [0]),
        ([('cat', 0.9, BOX)], [], [], [], [0], []),
        ([('cat', 0.9, BOX)], [true(CAT)], [(0, 0)], [], [], []),
        ([('cat', 0.9, NEAR)], [true(CAT)], [(0, 0)], [], [], []),
        ([('cat', 0.9, FAR)], [true(CAT)], [], [], [0], [0]),
        ([('dog', 0.9, NEAR)], [true(CAT)], [], [(0, 0)], [], []),
        # A second detection of a found object is false, even if its class is right.
        ([('cat', 0.9, BOX), ('cat', 0.8, BOX)], [true(CAT)], [(0, 0)], [], [1], []),
        ([('cat', 0.9, BOX), ('dog', 0.8, BOX)], [true(CAT)], [(0, 0)], [], [1], []),
        # The detection of the right class gets the object, even with a lower score.
        ([('dog', 0.9, BOX), ('cat', 0.8, NEAR)], [true(CAT)], [(1, 0)], [], [0], []),
        # As in COCO, the higher score gets the object, even with a smaller overlap.
        ([('cat', 0.9, NEAR), ('cat', 0.8, BOX)], [true(CAT)], [(0, 0)], [], [1], []),
        # A detection gets the object with the larger overlap.
        ([('cat', 0.9, BOX)], [true(CAT, NEAR), true(CAT)], [(0, 1)], [], [], [0]),
    ],
)
def test_detections_and_objects_are_right_wrong_false_or_missed(
    detections, truth, right, wrong, false, missed
):
    mistakes = match_detections(found(*detections), truth, MAP)
    assert list(mistakes.right) == right
    assert list(mistakes.wrong_class) == wrong
    assert list(mistakes.false) == false
    assert list(mistakes.missed) == missed
    assert mistakes.ignored == ()
    assert len(mistakes) == len(wrong) + len(false) + len(missed)


def test_detections_inside_a_crowd_are_not_mistakes():
    crowd = true(CAT, (0, 0, 300, 200), crowd=True)
    detections = found(('cat', 0.9, BOX), ('cat', 0.8, NEAR), ('dog', 0.7, ELSEWHERE))
    mistakes = match_detections(detections, [crowd], MAP)
    assert mistakes.ignored == (0, 1)
    assert mistakes.false == (2,)  # the dog is false, because the crowd consists of cats
    assert mistakes.missed == ()
    # At least half of the detection must be inside the crowd.
    for left, expected in ((250, (0,)), (260, ())):
        mistakes = match_detections(found(('cat', 0.9, (left, 0, 100, 100))), [crowd], MAP)
        assert mistakes.ignored == expected


def test_ignored_classes_and_categories_are_not_mistakes():
    only_dogs = ClassMap((None, DOG), {DOG: 'dog'}, ('cat',), ('cat',))
    mistakes = match_detections(
        found(('cat', 0.9, BOX), ('dog', 0.8, BOX)), [true(CAT)], only_dogs
    )
    assert (mistakes.ignored, mistakes.false, mistakes.missed) == ((0,), (1,), ())


def test_mistakes_are_counted_by_class():
    cases = [
        (found(('dog', 0.9, BOX)), [true(CAT)]),
        (found(('dog', 0.9, BOX)), [true(CAT), true(DOG, ELSEWHERE)]),
        (found(('cat', 0.9, BOX), ('cat', 0.8, ELSEWHERE)), [true(DOG)]),
        (found(('cat', 0.9, BOX)), [true(CAT)]),
    ]
    mistakes = count_mistakes([(match_detections(*case, MAP), *case) for case in cases], MAP)
    assert mistakes.confusions == (('cat', 'dog', 2), ('dog', 'cat', 1))
    assert mistakes.precision == 1 / 5
    assert mistakes.recall == 1 / 5
    assert mistakes.as_dict()['confusions'][0] == {'is': 'cat', 'taken_for': 'dog', 'count': 2}
    nothing = count_mistakes([], MAP)
    assert (nothing.precision, nothing.recall) == (None, None)


def shows_color(picture, color):
    return (np.abs(picture.astype(int) - color).max(axis=2) < 8).any()


def test_kinds_of_mistakes_are_drawn_in_different_colours():
    grey = np.full((SIZE_WH[1] * 2, SIZE_WH[0] * 2, 3), 128, np.uint8)
    cases = {
        'right': ([('cat', 0.9, BOX)], [true(CAT)]),
        'wrong class': ([('dog', 0.9, BOX)], [true(CAT)]),
        'false': ([('dog', 0.9, BOX)], []),
        'missed': ([], [true(CAT)]),
    }
    for kind, (rows, truth) in cases.items():
        detections = found(*rows)
        mistakes = match_detections(detections, truth, MAP)
        drawn = draw_mistakes(grey, mistakes, detections, truth, CLASSES, MAP.categories)
        height = grey.shape[0]
        assert drawn.shape[0] > height  # the legend
        shown = [
            name for name, color in LEGEND_COLORS.items() if shows_color(drawn[:height], color)
        ]
        assert shown == [kind]
        assert all(shows_color(drawn[height:], color) for color in LEGEND_COLORS.values())
    assert (grey == 128).all()


def test_class_and_category_ids_replace_names_that_no_font_can_draw(monkeypatch):
    monkeypatch.setattr(text, '_runs', lambda _: None)
    grey = np.full((SIZE_WH[1] * 2, SIZE_WH[0] * 2, 3), 128, np.uint8)
    for rows, truth in (([('dog', 0.9, BOX)], [true(CAT)]), ([], [true(CAT)])):
        detections = found(*rows)
        mistakes = match_detections(detections, truth, MAP)
        pictures = []
        for names, categories in (
            (['犬'] * len(CLASSES), dict.fromkeys(MAP.categories, '犬')),
            (
                [str(number) for number in range(len(CLASSES))],
                {key: str(key) for key in MAP.categories},
            ),
        ):
            pictures.append(draw_mistakes(grey, mistakes, detections, truth, names, categories))
        assert (pictures[0] == pictures[1]).all()


@pytest.mark.parametrize('size', [(2, 3), (100, 5000), (6000, 4000)])
def test_images_of_any_size_are_drawn_legibly(size):
    detections = found(('cat', 0.9, (0, 0, *size)))
    picture = np.zeros((size[1], size[0], 3), np.uint8)
    mistakes = match_detections(detections, [], MAP)
    drawn = draw_mistakes(picture, mistakes, detections, [], CLASSES, MAP.categories)
    assert max(drawn.shape[:2]) <= 1280 + 28
    assert shows_color(drawn, LEGEND_COLORS['false'])


def test_images_with_most_mistakes_come_first(tmp_path):
    paths = pictures(tmp_path, 4)
    rows = [
        [('cat', 0.9, BOX)],
        [],
        [('cat', 0.9, BOX), ('cat', 0.8, ELSEWHERE)],
        [('cat', 0.9, BOX)],
    ]
    entries = [
        (DatasetImage(id_, path, None), match_detections(found(*row), [], MAP), found(*row), [])
        for id_, (path, row) in enumerate(zip(paths, rows, strict=True))
    ]
    written = write_worst_images(tmp_path / 'a' / 'b', entries, CLASSES, MAP.categories, 2)
    assert [path.name for path in written] == ['montage.jpg', '01_002.jpg', '02_000.jpg']
    assert all(cv2.imread(str(path)) is not None for path in written)
    # The next run removes only these files.
    folder = tmp_path / 'a' / 'b'
    (folder / '03_mine.jpg').write_text('kept')
    again = write_worst_images(folder, entries, CLASSES, MAP.categories, 1)
    kept = {'pictures.json', 'montage.jpg', '03_mine.jpg', again[1].name}
    assert {path.name for path in folder.iterdir()} == kept
    assert write_worst_images(folder, [], CLASSES, MAP.categories, 1) == []
    assert {path.name for path in folder.iterdir()} == {'03_mine.jpg'}
    assert write_worst_images(tmp_path / 'none', entries[1:2], CLASSES, MAP.categories, 2) == []
    assert not (tmp_path / 'none').exists()


@pytest.mark.parametrize('annotated', [(640, 480), (480, 640)])
def test_image_with_exif_orientation_is_drawn_as_annotated(tmp_path, annotated):
    path = tmp_path / 'turned.jpg'
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    Image.new('RGB', (640, 480)).save(path, exif=exif)
    detections = found(('cat', 0.9, BOX))
    entry = DatasetImage(1, path, annotated), match_detections(detections, [], MAP), detections, []

    drawn = cv2.imread(str(write_worst_images(tmp_path, [entry], CLASSES, MAP.categories, 1)[1]))

    assert drawn.shape[1] == annotated[0]
    assert drawn.shape[0] > annotated[1]  # the legend is below the image


@pytest.mark.parametrize('content', ['[', '[]', '{"files": ["../a.jpg", "mine.jpg", 3]}'])
def test_file_list_removes_only_own_images(tmp_path, content):
    folder = tmp_path / 'worst'
    folder.mkdir()
    for path in (tmp_path / 'a.jpg', folder / 'mine.jpg'):
        path.write_text('kept')
    (folder / 'pictures.json').write_text(content)
    if content == '[':
        with pytest.raises(ConfigError, match=r'pictures.json: is not JSON'):
            write_worst_images(folder, [], CLASSES, MAP.categories, 1)
    else:
        write_worst_images(folder, [], CLASSES, MAP.categories, 1)
    assert (tmp_path / 'a.jpg').is_file()
    assert (folder / 'mine.jpg').is_file()


@needs('matplotlib')
@pytest.mark.parametrize(('count', 'classes'), [(1, 0), (1, 30), (2, 1), (2, 30)])
def test_plot_is_written_for_any_number_of_models_and_categories(tmp_path, count, classes):
    recalls = np.linspace(0, 1, 101)
    names = [f'category {number}' for number in range(classes)]
    metrics = Metrics(
        images=1,
        objects=classes,
        figures={'mAP50': 0.5 if classes else None},
        classes={
            **{name: ClassMetrics(1, 1, 0.5, n / 40) for n, name in enumerate(names)},
            'nothing': ClassMetrics(0, 0, None, None),
        },
        recalls=recalls,
        precisions50=dict.fromkeys(names, 1 - recalls),
    )
    path = tmp_path / 'plot.svg'
    plot_accuracy(path, {f'model {number}': metrics for number in range(count)})
    assert path.read_text().rstrip().endswith('</svg>')
    with pytest.raises(WriteError, match=r'gone/plot\.png: '):
        plot_accuracy(tmp_path / 'gone' / 'plot.png', {'model': metrics})
