# SPDX-License-Identifier: Apache-2.0
"""Check docs/conf.py, the settings of the site: links, table of contents, and a run by rosdoc2."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import trt_perception
from support.docs_pages import INDEX, PAGES, ROOT

DOCS = ROOT / 'docs'


def settings(path=DOCS / 'conf.py', text=None):
    """Run conf.py as Sphinx does, and return its names."""
    names = {'__file__': str(path)}
    exec(text or path.read_text(encoding='utf-8'), names)
    return names


@pytest.fixture(scope='module')
def conf():
    return settings()


@pytest.mark.parametrize(
    ('docname', 'link', 'expected'),
    [
        ('own_model', 'manifest.md#schema-2', 'manifest.md#schema-2'),
        ('own_model', 'images/demo.jpg', 'images/demo.jpg'),
        ('own_model', '../examples/webcam/webcam.py', '../examples/webcam/webcam.py'),
        ('own_model', '../models/README.md', 'site/models.md'),
        ('get_started', '../README.md#install', 'site/readme.md#install'),
        ('testing', 'README.md', 'index.md'),
        ('index', '../examples/README.md', 'site/examples.md'),
        ('site/examples', 'nav2/README.md', 'example_nav2.md'),
        ('site/example_nav2', '../../docs/topics.md', '../topics.md'),
        ('site/example_nav2', 'costmap.yaml', '../../examples/nav2/costmap.yaml'),
        ('site/readme', 'docs/topics.md#results', '../topics.md#results'),
        ('site/readme', 'docs/images/demo.jpg', '../images/demo.jpg'),
        ('site/readme', 'CHANGELOG.rst', 'changelog.rst'),
        ('site/readme', 'LICENSE', '../../LICENSE'),
        ('site/api', '../python.md', '../python.md'),
        ('own_model', 'https://docs.ros.org', 'https://docs.ros.org'),
        ('own_model', '#export', '#export'),
    ],
)
def test_links_lead_to_places_in_the_site(conf, docname, link, expected):
    assert conf['replace_links'](f'a [b]({link}) c', docname, DOCS) == f'a [b]({expected}) c'


def test_links_in_code_blocks_stay(conf):
    link, block = '[a](../README.md)', '\n```text\n[a](../README.md)\n```\n'
    replaced = conf['replace_links'](f'{link}{block}{link}', 'launch', DOCS)
    assert replaced == f'[a](site/readme.md){block}[a](site/readme.md)'


def test_each_page_is_in_one_group_of_the_table_of_contents(conf):
    groups = conf['groups_of_pages'](INDEX)
    assert list(groups) == ['Start', 'Use', 'Tune', 'Understand', 'Develop']
    listed = [name for names in groups.values() for name in names]
    listed = [re.sub(r'.* <(.+)>', r'\1', name) for name in listed]  # without their titles
    assert len(listed) == len(set(listed))
    pages = {path.stem for path in PAGES if path.parent == DOCS} - {'README'}
    pages |= {'site/api', *conf['FILE_OF_PAGE']} - {'index'}
    # The examples are below their own page.
    pages = {name for name in pages if not name.startswith('site/example_')}
    assert set(listed) == pages


def test_pages_of_other_folders_are_added_to_a_copy_of_the_pages(conf, tmp_path):
    app = SimpleNamespace(srcdir=str(tmp_path))
    conf['add_pages'](app)
    added = {
        path.relative_to(tmp_path).with_suffix('').as_posix(): path.read_bytes()
        for path in tmp_path.rglob('*.*')
    }
    assert added == {
        name: (ROOT / path).read_bytes() for name, path in conf['FILE_OF_PAGE'].items()
    }
    examples = {f'site/example_{path.parent.name}' for path in (ROOT / 'examples').glob('*/*.md')}
    assert len(examples) > 5
    assert examples <= added.keys()


def test_pages_are_not_added_to_the_checkout(conf):
    with pytest.raises(SystemExit):
        conf['add_pages'](SimpleNamespace(srcdir=str(DOCS)))
    assert not (DOCS / 'index.md').exists()


def test_page_of_the_python_api_has_all_public_names():
    page = (DOCS / 'site' / 'api.md').read_text(encoding='utf-8')
    named = re.findall(r'^\.\. (?:auto)?(?:function|class|data):: (\w+)$', page, re.MULTILINE)
    assert sorted(named) == sorted(trt_perception.__all__)


@pytest.mark.parametrize(
    ('signature', 'expected'),
    [
        (
            '(scores: ~numpy.ndarray[tuple[int, ...], ~numpy.dtype[~numpy.float32]] | None)',
            '(scores: NDArray[float32] | None)',
        ),
        (
            'tuple[ndarray[tuple[Any, ...], dtype[int64]], ndarray[tuple[int], dtype[int32]]]',
            'tuple[NDArray[int64], NDArray[int32]]',
        ),
        (None, None),
    ],
)
def test_types_of_arrays_are_short(conf, signature, expected):
    found = conf['shorten_arrays'](None, 'class', 'a', None, None, signature, signature)
    assert found == (expected, expected)


def test_settings_work_where_rosdoc2_runs_them(tmp_path):
    """rosdoc2 copies docs/, and its own conf.py in the copy runs ours by exec."""
    copy = tmp_path / 'wrapped' / 'conf.py'
    copy.parent.mkdir()
    wrapper = f'exec(open("{DOCS / "conf.py"}").read())\n'
    copy.write_text(wrapper)
    names = settings(copy, wrapper)
    assert names['ROOT'] == ROOT
    assert names['version'] == trt_perception.__version__
    link = names['replace_links']('[a](../examples/webcam/webcam.py)', 'view', copy.parent)
    target = re.search(r'\((.+)\)', link)[1]
    assert (copy.parent / target).resolve() == ROOT / 'examples' / 'webcam' / 'webcam.py'
    assert names['replace_links']('[a](topics.md)', 'view', copy.parent) == '[a](topics.md)'


def test_pages_need_no_extension_or_theme_that_is_missing(monkeypatch):
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    assert settings()['html_theme'] == 'alabaster'
    assert settings()['extensions'] == []


@pytest.fixture
def page_with_diagram(tmp_path):
    """Return the arguments of draw_diagrams: an application, and a page that has a diagram."""
    nodes = pytest.importorskip('docutils.nodes', reason='needs docutils')
    page = pytest.importorskip('docutils.utils').new_document('page')
    block = nodes.literal_block('', 'flowchart TD\n  a["<b>x</b>"] --> b', language='mermaid')
    other = nodes.literal_block('', 'ros2 topic list', language='bash')
    page += [block, other]
    env = SimpleNamespace(docname='site/page')
    return SimpleNamespace(outdir=str(tmp_path), env=env), page


def test_diagrams_become_files_beside_their_text(conf, page_with_diagram, monkeypatch, tmp_path):
    drawn = SimpleNamespace(svg=lambda: '<svg/>')
    monkeypatch.setitem(sys.modules, 'mermaidx', SimpleNamespace(render=lambda text: drawn))
    monkeypatch.setitem(conf, 'is_installed', lambda name: True)
    app, page = page_with_diagram
    conf['draw_diagrams'](app, page)
    raw, other = page.children
    [picture] = re.findall(r'<img src="(.+?)"', raw.astext())
    assert (tmp_path / 'site' / picture).resolve().read_text() == '<svg/>'
    assert '&lt;b&gt;x&lt;/b&gt;' in raw.astext()
    assert other['language'] == 'bash'


def test_diagrams_are_shown_as_text_without_mermaidx(conf, page_with_diagram, monkeypatch):
    monkeypatch.setitem(conf, 'is_installed', lambda name: False)
    app, page = page_with_diagram
    conf['draw_diagrams'](app, page)
    assert [block['language'] for block in page.children] == ['text', 'bash']
    assert page.children[0].astext().startswith('flowchart')


def run_site(*arguments):
    return subprocess.run([ROOT / 'scripts' / 'site', *arguments], capture_output=True, text=True)


def test_script_shows_its_help():
    shown = run_site('--help')
    assert shown.returncode == 0
    assert 'usage: scripts/site' in shown.stdout


@pytest.mark.parametrize('arguments', [['--open'], ['one', 'two']])
def test_script_refuses_wrong_arguments(arguments):
    assert run_site(*arguments).returncode == 2


def test_script_refuses_a_folder_with_other_files(tmp_path):
    (tmp_path / 'notes.txt').write_text('mine')
    refused = run_site(str(tmp_path))
    assert refused.returncode == 2
    assert str(tmp_path) in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ['notes.txt']
