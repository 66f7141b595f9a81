# SPDX-License-Identifier: Apache-2.0
"""Settings of the site, for scripts/site and rosdoc2.

The pages are the files of docs/ as a code host shows them, and some files of other folders. The
headings and links of docs/README.md are the table of contents. Both programs give Sphinx a copy of
docs/, and `add_pages` adds the files of other folders to the copy. rosdoc2 runs this file by exec,
so the checkout must be found through the call of exec. Extensions and the theme may be missing
there: the pages then lack what they add.
"""

import importlib.util
import os
import re
import sys
from hashlib import sha256
from html import escape
from pathlib import Path

_SETTINGS = Path(__file__)
_BY_EXEC = re.search(r'exec\(open\("(.+?)"\)', _SETTINGS.read_text(encoding='utf-8'))
ROOT = (Path(_BY_EXEC[1]) if _BY_EXEC else _SETTINGS).resolve().parents[1]
#: Pages of the site that are files of other folders, or whose place differs, with their files.
FILE_OF_PAGE = {
    'index': 'docs/README.md',
    'site/readme': 'README.md',
    'site/models': 'models/README.md',
    'site/demo': 'demo/README.md',
    'site/changelog': 'CHANGELOG.rst',
    'site/contributing': 'CONTRIBUTING.md',
    'site/examples': 'examples/README.md',
    **{
        f'site/example_{path.parent.name}': f'examples/{path.parent.name}/README.md'
        for path in sorted(ROOT.glob('examples/*/README.md'))
    },
}
#: Pages of the site that docs/README.md does not list, with the heading of their table there.
ONLY_IN_THE_SITE = {
    'Overview and install <site/readme>': 'Start',
    'site/api': 'Use',
    'site/models': 'Understand',
    'site/demo': 'Understand',
}
_LINK = re.compile(r'(?<=\]\()(?!\w+:|#)([^)#\s]+)')
_GROUP = re.compile(r'^## ([^\n]+)\n(.*?)(?=^## |\Z)', re.DOTALL | re.MULTILINE)
_ARRAY = re.compile(r'[~\w.]*\bndarray\[.*?\bdtype\[[~\w.]*?(\w+)\]\]')
_FENCE = re.compile(r'^```.*?^```', re.DOTALL | re.MULTILINE)


def is_installed(name):
    """Return whether the package of a module is installed."""
    return importlib.util.find_spec(name.partition('.')[0]) is not None


# Sphinx reads these names.
project = 'trt_perception'
author = 'trt_perception authors'
copyright = f'{author}. Apache-2.0'
version = release = re.search(
    '<version>(.*?)</version>', (ROOT / 'package.xml').read_text(encoding='utf-8')
)[1]
extensions = [
    name
    for name in ('myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon', 'sphinx_copybutton')
    if is_installed(name)
]
# rosdoc2 adds pages of its own, such as index.rst and a page for every module of the package.
include_patterns = ['*.md', 'site/*']
exclude_patterns = ['README.md', 'site/static']
myst_heading_anchors = 4
html_theme = next(filter(is_installed, ('furo', 'sphinx_rtd_theme')), 'alabaster')
html_title = f'trt_perception {version}'
html_static_path = ['site/static']
html_css_files = ['site.css']
html_copy_source = False
html_show_sourcelink = False
copybutton_exclude = '.linenos, .gp, .go'
autodoc_member_order = 'bysource'
autodoc_typehints = 'signature'
autodoc_type_aliases = {'_Image': 'NDArray'}
napoleon_attr_annotations = False  # the docstrings have dtypes and shapes
python_use_unqualified_type_names = True
autodoc_mock_imports = ['cv2']  # importing the package needs only NumPy and PyYAML besides
autoclass_content = 'class'
sys.path.insert(0, str(ROOT))
rosdoc2_settings = {
    'override_theme': False,
    'support_markdown': False,  # extensions has it
    'enable_autodoc': False,  # the same; True would import cv2
    'enable_intersphinx': False,
    'automatically_extend_intersphinx_mapping': False,
    'allow_other_extensions': True,
}


def replace_links(text, docname, source_folder):
    """Return a page whose relative links lead to the places of files in the site.

    Args:
        text: the page, as the repository has it.
        docname: name of the page in Sphinx, such as ``site/models``.
        source_folder: the folder docs, or rosdoc2's copy.
    """
    pages = {
        ROOT / path: source_folder / f'{name}{Path(path).suffix}'
        for name, path in FILE_OF_PAGE.items()
    }
    written_in = (ROOT / FILE_OF_PAGE.get(docname, f'docs/{docname}')).parent

    def replace(match):
        target = Path(os.path.normpath(written_in / match[1]))
        place = pages.get(target, target)
        if place.is_relative_to(ROOT / 'docs'):
            place = source_folder / place.relative_to(ROOT / 'docs')
        return os.path.relpath(place, (source_folder / docname).parent)

    # Links in code blocks stay.
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(replace, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return ''.join([*parts, _LINK.sub(replace, text[end:])])


def groups_of_pages(text):
    """Return the pages of each group: the links below each heading of docs/README.md.

    A page that several groups link is in the first of them.
    """
    placed = {f'../{path}': name for name, path in FILE_OF_PAGE.items()}
    groups, listed = {}, set()
    for title, rows in _GROUP.findall(text):
        links = [placed.get(link, link.removesuffix('.md')) for link in _LINK.findall(rows)]
        links += [name for name, heading in ONLY_IN_THE_SITE.items() if heading == title]
        groups[title] = [name for name in dict.fromkeys(links) if name not in listed]
        listed |= set(links)
    return groups


def add_pages(app):
    """Write the pages whose files are not in docs/ into the copy of docs/ that Sphinx reads."""
    source_folder = Path(app.srcdir).resolve()
    if source_folder == ROOT / 'docs':
        raise SystemExit('docs/conf.py: Sphinx must read a copy of docs/: run scripts/site')
    for name, path in FILE_OF_PAGE.items():
        place = source_folder / f'{name}{Path(path).suffix}'
        place.parent.mkdir(exist_ok=True)
        place.write_bytes((ROOT / path).read_bytes())


def read_page(app, docname, source):
    """Replace the links of a page that Sphinx has read, and append the table of contents."""
    text = source[0]
    if docname == 'index':
        for title, names in groups_of_pages(text).items():
            text += toctree(names, f':caption: {title}')
    if docname == 'site/examples':
        text += toctree(f'/{name}' for name in FILE_OF_PAGE if name.startswith('site/example_'))
    source[0] = replace_links(text, docname, Path(app.srcdir))


def toctree(names, *options):
    """Return the directive that makes pages the children of the page that has it."""
    return '\n'.join(['', '```{toctree}', ':hidden:', *options, '', *names, '```', ''])


def draw_diagrams(app, doctree):
    """Draw the mermaid diagrams of a page into SVG files, so that the site needs no script.

    Without mermaidx, their text is shown.
    """
    from docutils import nodes

    for block in list(doctree.findall(nodes.literal_block)):
        if block.get('language') != 'mermaid':
            continue
        block['language'] = 'text'
        if not is_installed('mermaidx'):
            continue
        from mermaidx import render

        text = block.astext()
        name = f'diagram_{sha256(text.encode()).hexdigest()[:12]}.svg'
        folder = Path(app.outdir) / '_images'
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(render(text).svg(), encoding='utf-8')
        to_root = '../' * app.env.docname.count('/')
        html = (
            f'<div class="diagram"><img src="{to_root}_images/{name}" alt="Diagram"></div>'
            '<details class="diagram-text"><summary>The diagram as text</summary>'
            f'<pre>{escape(text)}</pre></details>'
        )
        block.replace_self(nodes.raw('', html, format='html'))


def shorten_arrays(app, what, name, obj, options, signature, returned):  # noqa: ARG001
    """Return the signature of a function and its return type with short types of arrays."""
    return tuple(text and _ARRAY.sub(r'NDArray[\1]', text) for text in (signature, returned))


def setup(app):
    """Connect the functions above with Sphinx."""
    app.connect('builder-inited', add_pages)
    app.connect('source-read', read_page)
    app.connect('doctree-read', draw_diagrams)
    app.connect('autodoc-process-signature', shorten_arrays)
    return {'parallel_read_safe': True, 'parallel_write_safe': True}
