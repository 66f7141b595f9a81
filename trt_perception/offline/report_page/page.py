# SPDX-License-Identifier: Apache-2.0
"""A report page: one HTML file that works from disk, without any other file or request.

A tool adds sections of ``markup`` and ``charts``, pictures, and data for its script. The security
policy of the page allows only the page's own script and style, and no connections.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib import resources
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt

from trt_perception.files.atomic_files import make_folder, write_atomically
from trt_perception.offline.report_page.markup import Markup, element

#: Largest size of a page in bytes, unless the user asks for a number of pictures.
MAX_PAGE_BYTES: Final = 3_000_000
PAGE_NAME: Final = 'index.html'
_JPEG_QUALITY: Final = 80


class Page:
    """A report page that a tool fills.

    Args:
        title: title of the page.
        lead: lines below the title.
        scripts: names of further scripts in this package, which run after ``page.js``.

    Attributes:
        data: JSON content for the scripts and for other programs, in the element ``data``.
        controls: controls that stay visible above the sections; empty for none.
    """

    def __init__(self, title: str, lead: list[object], scripts: tuple[str, ...] = ()) -> None:
        self.data: dict[str, Any] = {}
        self.controls = Markup()
        self._title = title
        self._lead = lead
        self._scripts = scripts
        self._sections: list[tuple[str, str, Markup]] = []

    def add(self, title: str, *content: object) -> None:
        """Add a section with a heading."""
        key = f'section-{len(self._sections) + 1}'
        heading = element('h2', title, id=f'{key}-title')
        section = element('section', heading, *content, id=key, aria_labelledby=f'{key}-title')
        self._sections.append((key, title, section))

    def html(self) -> str:
        """Return the text of the file."""
        script = '\n'.join(_resource(name) for name in ('page.js', *self._scripts))
        style = _resource('page.css')
        policy = (
            f"default-src 'none'; img-src data:; script-src '{_hash(script)}'; "
            f"style-src '{_hash(style)}'; base-uri 'none'; form-action 'none'"
        )
        links = [
            element('li', element('a', title, href=f'#{key}')) for key, title, _ in self._sections
        ]
        head = element(
            'head',
            element('meta', charset='utf-8'),
            element('meta', http_equiv='Content-Security-Policy', content=policy),
            element('meta', name='viewport', content='width=device-width, initial-scale=1'),
            element('meta', name='color-scheme', content='light dark'),
            element('title', self._title),
            element('style', Markup(style)),
        )
        switch = element('button', 'Dark', id='dark', type='button', aria_pressed='false')
        header = element(
            'header',
            element('h1', self._title),
            switch,
            *(element('p', line) for line in self._lead),
            element('nav', element('ul', *links), aria_label='Sections'),
        )
        no_script = 'Without JavaScript, this page lacks pictures, and figures at a threshold.'
        body = element(
            'body',
            header,
            element('noscript', element('p', no_script)),
            element('main', self.controls, *(section for _, _, section in self._sections)),
            element('script', Markup(json_text(self.data)), type='application/json', id='data'),
            element('script', Markup(script)),
        )
        return f'<!DOCTYPE html>\n{element("html", head, body, lang="en")}\n'

    def write(self, folder: Path) -> str:
        """Write the page into a folder, and return a message that says where.

        Raises:
            ConfigError: the folder cannot be made.
            WriteError: the file cannot be written.
        """
        make_folder(folder)
        path = folder / PAGE_NAME
        write_atomically({path: self.html().encode()})
        return f'saved {path}'


def picture_url(bgr: npt.NDArray[np.uint8], longest_side: int = 480) -> str:
    """Return a picture as a data URL of a JPEG.

    Args:
        bgr: uint8 (height, width, 3), BGR.
        longest_side: maximum of width and height in pixels. A larger picture is reduced.
    """
    height, width = bgr.shape[:2]
    scale = min(1.0, longest_side / max(height, width))
    if scale < 1:
        size = max(1, round(width * scale)), max(1, round(height * scale))
        bgr = cv2.resize(bgr, size, interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
    content = cv2.imencode('.jpg', bgr, [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY])[1].tobytes()
    return f'data:image/jpeg;base64,{base64.b64encode(content).decode()}'


def json_text(content: object) -> str:
    """Return JSON without white space and without the characters that end a script element."""
    text = json.dumps(content, allow_nan=False, separators=(',', ':'))
    for character in '<>&':
        text = text.replace(character, f'\\u{ord(character):04x}')
    return text


def _resource(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding='utf-8')


def _hash(text: str) -> str:
    return f'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'
