# SPDX-License-Identifier: Apache-2.0
"""Tests that names beyond ASCII are drawn, or that the class id takes their place."""

import logging
import unicodedata

import cv2
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont, features

from support.optional_packages import needs
from trt_perception.images import text
from trt_perception.images.detections import Detections
from trt_perception.images.drawing import draw_class_list, draw_class_map, draw_detections
from trt_perception.images.results.class_scores import ClassScores
from trt_perception.images.text import drawable_name, put_text, text_size
from trt_perception.model.tasks.classify import Classify

LATIN = 'Roboto-Regular.ttf'
CHINESE = 'NotoSansCJK-Regular.ttc'
ARABIC = 'NotoSansArabic-Regular.ttf'
ASCII = [chr(code) for code in range(0x20, 0x7F)]
#: The characters of each font of these tests.
FONTS = {LATIN: [*ASCII, *'éßñЖабсокμΩ'], CHINESE: [*ASCII, *'犬交通é'], ARABIC: [*'كلب', ' ']}


def make_font(path, characters):
    """Write a font in which each character is a bar of another height, and others are a box."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    def shape(*boxes):
        pen = TTGlyphPen(None)
        for left, bottom, right, top in boxes:
            pen.moveTo((left, bottom))
            for point in ((left, top), (right, top), (right, bottom)):
                pen.lineTo(point)
            pen.closePath()
        return pen.glyph()

    names = {ord(char): f'glyph{index}' for index, char in enumerate(characters)}
    glyphs = {'.notdef': shape((50, 0, 450, 700), (100, 50, 400, 650))}
    for code, name in names.items():
        top = 150 + 400 * (code * 97 % 211) // 211
        glyphs[name] = shape() if code == 0x20 else shape((60, 0, 200, top), (260, 0, 420, 720))
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder(list(glyphs))
    builder.setupCharacterMap(names)
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (500, 60)))
    builder.setupHorizontalHeader(ascent=900, descent=-200)
    builder.setupNameTable({'familyName': path.stem, 'styleName': 'Regular'})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


CACHES = (text._font_files, text._font_of, text._has_glyph, text._open_font)
CACHES = (*CACHES, text._warn_of_missing_glyphs, text._can_shape)


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs fonts by name, and nothing else."""

    def put(*names):
        for cache in CACHES:
            cache.cache_clear()
        folder = tmp_path / 'truetype' / 'any'
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            make_font(folder / name, FONTS[name])
        monkeypatch.setattr(text, '_FONT_FOLDERS', (str(tmp_path), str(tmp_path / 'missing')))
        return folder

    yield put
    for cache in CACHES:
        cache.cache_clear()


def drawn(name, size=(640, 120)):
    """Return the label that is drawn for a class of this name: dark pixels of the image."""
    bgr = np.full((size[1], size[0], 3), 255, np.uint8)
    box = np.array([[20, 60, 600, 110]], np.float32)
    found = Detections(box, np.array([0.5], np.float32), np.array([7], np.int32))
    draw_detections(bgr, found, [*'abcdefg', name])
    return bgr


needs_fonttools = needs('fontTools')


@needs_fonttools
@pytest.mark.parametrize('name', ['é', 'Stoß', 'Жаба', 'собака', 'ñ 2', 'Ω', 'caf\u0065\u0301'])
def test_name_is_drawn_in_the_font_that_has_its_characters(name, install):
    folder = install(LATIN, CHINESE)

    assert drawable_name(name, 7) == name
    (width, height), _ = text_size(f'{name} 0.50', 0.45, 1)
    bgr = np.full((60, 300, 3), (10, 200, 90), np.uint8)
    put_text(bgr, f'{name} 0.50', (5, 40), 0.45, (0, 0, 0), 1)

    # Pillow draws the same text by itself.
    picture = Image.new('RGB', (300, 60), (90, 200, 10))
    font = ImageFont.truetype(str(folder / LATIN), 13)
    composed = unicodedata.normalize('NFC', f'{name} 0.50')
    ImageDraw.Draw(picture).text((5, 40), composed, fill=(0, 0, 0), font=font, anchor='ls')
    expected = np.asarray(picture)[..., ::-1]
    assert (expected != expected[0, 0]).any()
    assert np.abs(bgr.astype(int) - expected).max() <= 1
    changed = (bgr != bgr[0, 0]).any(axis=2)
    rows, columns = np.nonzero(changed)
    assert columns.max() <= 5 + width
    assert 40 - rows.min() <= height


@needs_fonttools
def test_fonts_are_mixed_within_a_name(install):
    install(LATIN, CHINESE)
    name = 'Жé 犬!'
    assert drawable_name(name, 7) == name
    assert [part for _, part in text._runs(name)] == ['Жé ', '犬!']
    assert (drawn(name) != drawn('Жé')).any()


@needs_fonttools
@pytest.mark.parametrize(
    ('name', 'fonts'),
    [
        *(('é', ()), ('犬', ()), ('犬', (LATIN,)), ('Ж 犬', (LATIN,)), ('Ж', (CHINESE,))),
        *(('€', (LATIN, CHINESE)), ('🐕', (LATIN, CHINESE)), ('ถนน', (LATIN, CHINESE, ARABIC))),
    ],
)
def test_class_id_replaces_a_name_with_a_character_that_no_font_has(
    name, fonts, install, caplog, golden_messages
):
    install(*fonts)
    with caplog.at_level(logging.WARNING):
        assert drawable_name(name, 7) == '7'
        assert drawable_name(name, 8) == '8'
        assert (drawn(name) == drawn('7')).all()
    assert len(caplog.records) == 1
    golden_messages.add(caplog.records[0].getMessage())


@needs_fonttools
@pytest.mark.parametrize('can_shape', [False, True])
@pytest.mark.parametrize('name', ['كلب', 'كلب 2'])
def test_script_that_joins_characters_needs_raqm(name, can_shape, install, monkeypatch):
    if can_shape and not (features.check('raqm') and features.check('fribidi')):
        pytest.skip('Pillow has no Raqm')
    install(LATIN, ARABIC)
    monkeypatch.setattr(text, '_can_shape', lambda: can_shape)
    assert drawable_name(name, 7) == (name if can_shape else '7')
    assert (drawn(name) != 255).any()


def class_map(name):
    bgr = np.full((200, 640, 3), 90, np.uint8)
    draw_class_map(bgr, np.ones((200, 640), np.uint8), ['background', name])
    return bgr


def class_scores(name):
    bgr = np.full((200, 640, 3), 90, np.uint8)
    Classify().draw(bgr, ClassScores(np.array([0.1, 0.9], np.float32)), ['a', name])
    return bgr


@needs_fonttools
@pytest.mark.parametrize(
    'picture', [drawn, class_map, class_scores], ids=lambda each: each.__name__
)
def test_every_picture_shows_names_or_class_ids(picture, install):
    class_id = '7' if picture is drawn else '1'
    install(LATIN)
    assert (picture('犬') == picture(class_id)).all()
    assert (picture('Жаба') != picture('Жab')).any()
    assert (picture('é') != picture('ß')).any()
    assert (picture('é') != picture('??')).any()  # what OpenCV draws


@pytest.mark.parametrize('name', ['cat', '', 'a name of 40 characters, 0123456789 !?%&'])
def test_ascii_is_drawn_by_opencv_without_a_search_for_fonts(name, monkeypatch):
    monkeypatch.setattr(text, '_font_files', None)
    expected = np.full((60, 300, 3), 255, np.uint8)
    found = expected.copy()
    font, black = cv2.FONT_HERSHEY_SIMPLEX, (0, 0, 0)
    cv2.putText(expected, name, (5, 40), font, 0.45, black, 1, cv2.LINE_AA)
    put_text(found, name, (5, 40), 0.45, black, 1)
    assert (found == expected).all()
    assert text_size(name, 0.9, 2) == cv2.getTextSize(name, font, 0.9, 2)
    assert drawable_name(name, 3) == name


@needs_fonttools
@pytest.mark.parametrize('size', [(1, 1), (9, 3), (40, 20), (33000, 4)])
def test_text_outside_the_image_is_cut(size, install):
    install(LATIN)
    for place in ((-500, 10), (0, -9), (size[0], size[1]), (size[0] - 3, size[1] + 3)):
        bgr = np.zeros((size[1], size[0], 3), np.uint8)
        put_text(bgr, 'Ж' * 256, place, 20.0, (255, 255, 255), 40)
    draw_class_list(np.zeros((size[1], size[0], 3), np.uint8), ['Ж' * 256], [0])


@needs_fonttools
def test_damaged_font_is_not_used(install, caplog, monkeypatch, tmp_path_factory):
    # Pillow itself looks for fonts in this folder.
    elsewhere = tmp_path_factory.mktemp('data')
    (elsewhere / 'fonts').mkdir()
    make_font(elsewhere / 'fonts' / LATIN, FONTS[LATIN])
    monkeypatch.setenv('XDG_DATA_HOME', str(elsewhere))
    folder = install(CHINESE)
    (folder / LATIN).write_bytes(b'no font')
    with caplog.at_level(logging.WARNING):
        assert drawable_name('é', 7) == 'é'
        assert drawable_name('Ж', 7) == '7'
    assert LATIN in caplog.records[0].getMessage()


@needs_fonttools
def test_first_font_of_the_list_is_preferred(install):
    folder = install(LATIN, CHINESE)
    (folder / 'Roboto-Bold.ttf').write_bytes((folder / LATIN).read_bytes())
    assert [path.rsplit('/', 1)[1] for path in text._font_files()] == [LATIN, CHINESE]
    assert text._runs('é') == [(str(folder / LATIN), 'é')]
