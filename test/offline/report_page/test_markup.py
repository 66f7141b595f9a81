# SPDX-License-Identifier: Apache-2.0
"""Text from files never becomes HTML, and never ends an element or attribute."""

import json
from html.parser import HTMLParser

import numpy as np
import pytest

from trt_perception.offline.report_page.charts import Bar, bar_chart, line_chart
from trt_perception.offline.report_page.markup import element, name, table
from trt_perception.offline.report_page.page import Page, json_text, picture_url

HOSTILE = [
    '<script>alert(1)</script>',
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    '</script><script>alert(1)</script>',
    '</title><!--',
    '\u202egnp.exe',
    'א' * 30,
    'x' * 4096,
    '&lt;b&gt;',
    '\ud800 half of a pair',
    '\x00\x1b[31m',
]


class Reader(HTMLParser):
    """Collects tags, attributes and text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.texts = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        self.texts.append(data)


def parsed(markup):
    reader = Reader()
    reader.feed(str(markup))
    reader.close()
    return reader


@pytest.mark.parametrize('text', HOSTILE)
def test_text_stays_text(text):
    reader = parsed(element('p', text, title=text))
    assert reader.tags == ['p']
    ((key, value),) = reader.attributes
    assert key == 'title'
    assert ''.join(reader.texts) == value
    if text.isprintable():
        assert value == text
    assert not any(ord(char) < 32 or char in '\u202e\ud800' for char in value)


@pytest.mark.parametrize('text', HOSTILE)
def test_charts_and_tables_add_no_elements_for_a_name(text):
    for made in (
        lambda word: table(word, [word], [[word]]),
        lambda word: line_chart(word, {word: [(0, 0)], 'b': [(1, 1)]}, word, word),
        lambda word: bar_chart(word, [Bar(word, [(0, 1, 0)], word)], word, [word, 'b']),
    ):
        assert parsed(made(text)).tags == parsed(made('a')).tags


def test_long_name_is_shortened_and_complete_in_its_title():
    reader = parsed(name('a' * 4000 + 'end'))
    assert reader.tags == ['bdi']
    assert len(reader.texts[0]) == 60
    assert reader.texts[0].endswith('aend')
    assert dict(reader.attributes)['title'] == 'a' * 4000 + 'end'
    assert parsed(name('short')).attributes == []


@pytest.mark.parametrize('text', HOSTILE)
def test_json_cannot_end_its_script(text):
    content = json_text({text: [text]})
    assert not set(content) & set('<>&')
    assert content.isascii()
    assert json.loads(content) == {text: [text]}


@pytest.mark.parametrize('text', HOSTILE)
def test_page_has_only_its_own_scripts(text):
    page = Page(text, [text])
    page.data = {'name': text}
    page.add(text, text)
    reader = parsed(page.html())
    assert reader.tags.count('script') == 2  # the data and the page's script
    assert reader.tags.count('title') == reader.tags.count('h1') == 1
    assert not [key for key, _ in reader.attributes if key.startswith('on')]
    page.html().encode()


def test_picture_is_reduced_to_480_pixels():
    import base64

    import cv2

    bgr = np.full((700, 1400, 3), (10, 120, 240), np.uint8)
    kind, _, content = picture_url(bgr).partition(',')
    assert kind == 'data:image/jpeg;base64'
    decoded = cv2.imdecode(np.frombuffer(base64.b64decode(content), np.uint8), cv2.IMREAD_COLOR)
    assert decoded.shape == (240, 480, 3)
    assert np.abs(decoded.astype(int) - bgr[0, 0]).max() < 8
    small = picture_url(bgr[:2, :3]).partition(',')[2]
    decoded = cv2.imdecode(np.frombuffer(base64.b64decode(small), np.uint8), cv2.IMREAD_COLOR)
    assert decoded.shape == (2, 3, 3)
