# SPDX-License-Identifier: Apache-2.0
"""Check that links, parameters, arguments, executables and names in README and docs exist."""

import ast
import configparser
import dataclasses
import itertools
import json
import os
import re
import subprocess
import typing
import xml.etree.ElementTree as ElementTree

import pytest
import test_imports
import yaml

from support.docs_pages import (
    ARCHITECTURE,
    ERRORS,
    INDEX,
    MANIFEST,
    OWN_MODEL,
    PACKAGE,
    PAGES,
    README,
    ROOT,
    blocks,
    calls,
    codes,
    executables,
    launch_arguments,
    page_id,
    prose,
    rows,
    section,
    sources,
)
from trt_perception.errors import OutputError, ServerError, ServerTimeoutError
from trt_perception.files.json_records import to_json
from trt_perception.images.frame import PIXEL_FORMATS
from trt_perception.model.build_record import BuildRecord, FileIdentity, PrecisionRecord
from trt_perception.model.decoders.table import DECODERS_BY_FAMILY
from trt_perception.model.manifest import Manifest, parse_manifest
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.recognise import recognise
from trt_perception.model.tasks.pose import KeypointSpec
from trt_perception.model.tasks.table import TASK_KEYS
from trt_perception.model.tensors import ModelInfo, TensorSpec
from trt_perception.parameters.camera import camera_rows
from trt_perception.parameters.values import PARAMETERS, ParameterValues
from trt_perception.process.foreign_names import FOREIGN_NAMES

#: The commands of scripts/run that replace commands of ros2.
ROS2_COMMANDS = {'lifecycle', 'param'}

# Tests of links, paths and code blocks.


def anchors(text):
    """Return the anchors that code hosts create for headings."""
    titles = re.findall(r'^#+ (.+)$', prose(text), re.MULTILINE)
    return {re.sub(r'[^\w\- ]', '', title.lower()).replace(' ', '-') for title in titles}


@pytest.mark.parametrize('page', PAGES, ids=page_id)
def test_relative_links_resolve(page):
    text = page.read_text(encoding='utf-8')
    for target in re.findall(r'\]\(([^)\s]+)\)', prose(text)):
        if target.startswith(('http://', 'https://')):
            continue
        path, _, anchor = target.partition('#')
        linked_page = page.parent / path if path else page
        assert linked_page.exists(), target
        if anchor:
            assert anchor in anchors(linked_page.read_text(encoding='utf-8')), target


def linked_files(folder, text):
    """Return the files to which a page in a folder links."""
    return {(folder / target).resolve() for target in re.findall(r'\]\(([^)#\s]+)', text)}


def test_every_page_is_linked_from_the_index():
    index = ROOT / 'docs' / 'README.md'
    linked = linked_files(index.parent, INDEX)
    examples = ROOT / 'examples'  # their index is a page of its own
    pages = [page for page in PAGES[1:] if page.parent.parent != examples]
    assert [page for page in pages if page != index and page not in linked] == []
    assert index in linked_files(ROOT, README)


@pytest.mark.parametrize(
    'path',
    [*PAGES, *sorted((ROOT / 'docs').rglob('*.json')), ROOT / 'CHANGELOG.rst'],
    ids=page_id,
)
def test_pages_contain_no_local_paths(path):
    private = r'(?<![\w~.…])/(?:work|root|tmp|home|mnt|Users|private)/\S*'
    assert re.findall(private, path.read_text(encoding='utf-8')) == []


@pytest.mark.parametrize('page', PAGES, ids=page_id)
def test_code_blocks_have_valid_syntax(page):
    text = page.read_text(encoding='utf-8')
    known = {'bash', 'ini', 'json', 'mermaid', 'python', 'text', 'toml', 'xml', 'yaml'}
    assert set(re.findall(r'^```(\w+)$', text, re.MULTILINE)) <= known
    for block in blocks(text, 'yaml'):
        assert yaml.safe_load(block)
    for block in blocks(text, 'json'):
        assert json.loads(block)
    for block in blocks(text, 'xml'):
        assert ElementTree.fromstring(block) is not None
    for block in blocks(text, 'python'):
        assert ast.parse(block)
    for block in blocks(text, 'ini'):
        configparser.RawConfigParser().read_string(block)
    for block in blocks(text, 'bash'):
        checked = subprocess.run(['bash', '-n'], input=block, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize('page', PAGES, ids=page_id)
def test_pages_have_no_html_tags(page):
    # A name in angle brackets is a tag, such as <image>, so browsers do not show it.
    text = re.sub(r'`[^`]*`', '', prose(page.read_text(encoding='utf-8')))
    assert re.findall(r'<[a-zA-Z/][^>\n]*>', text) == []


def test_pictures_of_the_pages_have_at_most_300_kb():
    pictures = [path for path in (ROOT / 'docs' / 'images').iterdir() if path.is_file()]
    assert pictures
    assert [path.name for path in pictures if path.stat().st_size > 300_000] == []


# Tests of the names that pages mention.


def flatten(mapping, prefix=''):
    """Map the dotted name of each nested parameter to its value."""
    found = {}
    for key, value in mapping.items():
        nested = isinstance(value, dict)
        found.update(flatten(value, f'{prefix}{key}.') if nested else {f'{prefix}{key}': value})
    return found


@pytest.mark.parametrize('block', blocks(OWN_MODEL, 'yaml'))
def test_parameter_files_on_the_page_about_own_models_work(block):
    values = flatten(yaml.safe_load(block)['/**']['ros__parameters'])
    parameters = ParameterValues.from_values(values)
    # The parameters must give all facts that a YOLOX export with three classes does not contain.
    image = TensorSpec('images', (1, 3, 640, 640), 'float32')
    output = TensorSpec('output', (1, 8400, 8), 'float32')
    found = recognise(ModelInfo('x', (image,), (output,)), parameters.model_overrides())
    assert found.class_names == ('person', 'forklift', 'pallet')


@pytest.mark.parametrize('page', PAGES, ids=page_id)
def test_parameters_in_commands_exist(page):
    text = page.read_text(encoding='utf-8')
    known = {parameter.name for parameter in PARAMETERS}
    known |= camera_rows(['front', 'rear', 'left', 'right']).keys()
    named = re.findall(r'ros2 param \w+ /\w+ ([\w.]+)', text)
    named += re.findall(r'(?<!\w)-p ([\w.]+):=', text)
    named += re.findall(r'`(model\.\w+|image_qos\.\w+|debug_image\.\w+)', text)
    assert set(named) - {'NAME'} <= known


def test_names_of_other_packages_have_the_parameters_that_errors_name():
    page = (ROOT / 'docs' / 'coming_from.md').read_text(encoding='utf-8')
    known = {name: row.ours for row in FOREIGN_NAMES for name in row.names}
    checked = 0
    for cells in rows(page):
        for name in set(codes(cells[0])) & known.keys():
            if known[name]:
                assert known[name] in cells[1], name
                checked += 1
    assert checked > 20


def test_install_commands_of_two_pages_are_equal():
    page = (ROOT / 'docs' / 'get_started.md').read_text(encoding='utf-8')
    # The function section takes a comment of a block for a heading.
    installation = page.partition('\n## On a ROS 2 machine\n')[2].partition('\n## ')[0]
    install = [without_comments(block) for block in blocks(section(README, 'Install'), 'bash')]
    explained = [without_comments(block) for block in blocks(installation, 'bash')]
    assert len(install) > 3
    assert [block for block in install if block not in explained] == []


def without_comments(block):
    lines = [line.partition('  #')[0] for line in block.splitlines()]
    return [line for line in lines if not line.startswith('#')]


def test_readme_has_the_number_of_encodings():
    assert f'{len(PIXEL_FORMATS)} image encodings' in README


def test_launch_commands_have_known_arguments():
    known = launch_arguments('detect.launch.py')
    pages = '\n'.join(page.read_text(encoding='utf-8') for page in PAGES)
    commands = re.findall(r'ros2 launch trt_perception (\S+)((?: [\w.]+:=\S*)*)', pages)
    assert {name for name, _ in commands} == {
        'demo.launch.py',
        'detect.launch.py',
        'detections_3d.launch.py',
    }
    for name, arguments in commands:
        assert set(re.findall(r'([\w.]+):=', arguments)) <= known | launch_arguments(name)
    included = re.findall(r'<arg name="([^"]+)"', pages)
    assert included
    assert {*included, *re.findall(r'`([\w.]+):=', pages)} <= known


@pytest.mark.parametrize('page', PAGES, ids=page_id)
def test_executables_and_scripts_in_commands_exist(page):
    text = page.read_text(encoding='utf-8')
    named = re.findall(r'ros2 run trt_perception (\w+)', text)
    started = re.findall(r'scripts/run (?:--distro \w+ )?([\w./]+)', text)
    programs = {name for name in started if name.endswith('.py')}
    named += set(started) - programs - ROS2_COMMANDS
    assert set(named) - {'NAME'} <= executables()
    assert {name for name in programs if not (ROOT / name).is_file()} == set()
    # A sourced script is not executable, and python3 starts a Python program.
    for name in re.findall(r'(?<![\w/])(?<!`\. )scripts/(\w+(?:\.py)?)', text):
        mode = os.R_OK if name.endswith('.py') else os.X_OK
        assert os.access(ROOT / 'scripts' / name, mode), name
    for module in re.findall(r'python3? -m (trt_perception[\w.]*)', text):
        assert ROOT.joinpath(*module.split('.')).with_suffix('.py').exists(), module


def test_integration_runs_the_test_command_of_the_readme():
    [documented] = blocks(section(README, 'Test it'), 'bash')
    script = (ROOT / '.ci/run').read_text(encoding='utf-8')
    runs = [line.split() for line in script.splitlines() if line.startswith('scripts/test ')]
    command = documented.split()
    assert [words[: len(command)] for words in runs] == [command] * 2
    added = [' '.join(itertools.takewhile(is_option, words[len(command) :])) for words in runs]
    assert sorted(added) == ['--distro jazzy', '--distro kilted --touches-ros']


def is_option(word):
    return re.fullmatch(r'[\w-]+', word) is not None


def test_every_drop_reason_is_described():
    first = [node.args[0] for name in ('ImageError', 'drop') for node in calls(name)]
    reasons = {argument.value for argument in first if isinstance(argument, ast.Constant)}
    reasons |= {error.reason for error in (OutputError, ServerError, ServerTimeoutError)}
    frame = (ROOT / 'docs' / 'frame.md').read_text(encoding='utf-8')
    stops = rows(section(frame, 'Counting'))
    assert {code for _, cell in stops for code in codes(cell)} == reasons
    listed = [codes(cell)[0] for cell, *_ in rows(section(ERRORS, 'Drop reasons'))]
    assert sorted(listed) == sorted(reasons)


# Tests of docs/manifest.md and docs/architecture.md.


def test_manifest_example_equals_the_shipped_manifest():
    example, _ = blocks(MANIFEST, 'json')
    shipped = json.loads((ROOT / 'models' / 'digits.onnx.json').read_text(encoding='utf-8'))
    described = json.loads(example)
    assert parse_manifest(example.encode(), 'docs/manifest.md').class_names == tuple('0123456789')
    assert {**described, 'notes': None} == {**shipped, 'notes': None}
    keys = {f'preprocessing.{field.name}' for field in dataclasses.fields(Preprocessing)}
    keys |= decoder_keys()
    keys |= {f'….{key}' for key in (*described['onnx'], *described['inputs'][0])}
    keys |= {f'keypoints.{field.name}' for field in dataclasses.fields(KeypointSpec)}
    keys |= set(described) - {'preprocessing', 'decoder'} | {'build', *TASK_KEYS}
    assert {cell.strip('`') for cell, *_ in rows(section(MANIFEST, 'Schema 2'))} == keys


def decoder_keys():
    constants = set().union(*map(keys_of, DECODERS_BY_FAMILY.values()))
    return {f'decoder.{key}' for key in ('family', *constants)}


def keys_of(record):
    return {field.name for field in dataclasses.fields(record)}


def records_in(kind):
    """Return the dataclasses in a type annotation."""
    if dataclasses.is_dataclass(kind):
        return {kind}
    return set().union(*map(records_in, typing.get_args(kind)))


def test_every_key_that_a_manifest_may_have_is_described():
    described = {cell.strip('`') for cell, *_ in rows(section(MANIFEST, 'Schema 2'))}
    keys = {'schema', *TASK_KEYS} | keys_of(Manifest) - {'preprocessing', 'decoder'}
    keys |= {f'preprocessing.{key}' for key in keys_of(Preprocessing)}
    keys |= {f'keypoints.{key}' for key in keys_of(KeypointSpec)}
    keys |= decoder_keys()
    keys |= {f'….{key}' for key in keys_of(FileIdentity) | keys_of(TensorSpec)}
    assert described == keys
    described = {
        cell.strip('`'): allowed for cell, _, allowed, _ in rows(section(MANIFEST, 'Build'))
    }
    keys = keys_of(BuildRecord) - {'precision'}
    assert set(described) == keys | {f'precision.{key}' for key in keys_of(PrecisionRecord)}
    inner = {key: records_in(typing.get_type_hints(BuildRecord)[key]) for key in keys}
    assert sum(map(bool, inner.values())) > 5
    for key, records in inner.items():
        for record in records:
            assert keys_of(record) <= set(codes(described[key])), key


def test_build_section_of_the_manifest_page_is_complete():
    example, build = (json.loads(block) for block in blocks(MANIFEST, 'json'))
    whole = json.dumps({**example, 'build': build}).encode()
    assert to_json(parse_manifest(whole, 'docs/manifest.md').build) == build
    described = {cell.strip('`') for cell, *_ in rows(section(MANIFEST, 'Build'))}
    assert described == {*build, *(f'precision.{key}' for key in build['precision'])} - {
        'precision'
    }


def test_architecture_has_the_layers_that_are_enforced():
    described = {
        layer: codes(modules) for layer, modules, _ in rows(section(ARCHITECTURE, 'Layers'))
    }
    assert list(described) == list(test_imports.LAYERS)
    assert described == test_imports.LAYERS


# Tests of pages for developers. The pages name files, classes, members and functions in backticks.

SOURCES = {'.py', '.cu', '.cuh', '.yaml'}


def words_of_the_project():
    """Return every identifier in the files of the project, except its pages."""
    files = [ROOT / 'setup.py', ROOT / 'pyproject.toml']
    for folder in ('trt_perception', 'launch', 'scripts', 'test', 'config'):
        files += [path for path in (ROOT / folder).rglob('*') if path.suffix in SOURCES]
    return set(re.findall(r'\w+', ' '.join(path.read_text(encoding='utf-8') for path in files)))


def members_of_classes():
    """Map each class to the names of its members and of its base classes' members."""
    own, bases = {}, {}
    for tree in sources().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                own.setdefault(node.name, set()).update(members(node))
                bases.setdefault(node.name, set()).update(
                    base.value if isinstance(base, ast.Subscript) else base for base in node.bases
                )
    return {
        name: own[name].union(*(own.get(getattr(base, 'id', ''), ()) for base in bases[name]))
        for name in own
    }


def members(node):
    """Yield the names that a class body defines and that its methods assign."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef):
            yield each.name
        elif isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Store):
            yield getattr(each, 'id', None) or each.attr


def missing_names(text, words, classes):
    """Yield the names in a page that look like names of this project but do not exist."""
    for code in codes(prose(text)):
        name = code.split()[0] if code.startswith(FOLDERS) else code
        if code in MADE_ELSEWHERE:
            continue
        if re.fullmatch(r'[\w.][\w./-]*', name) and ('/' in name or name.endswith(SUFFIXES)):
            found = any((folder / name).exists() for folder in (ROOT, PACKAGE))
        elif match := re.fullmatch(r'([A-Z]\w+)\.(\w+)', name):
            found = match[2] in classes.get(match[1], ())
        elif re.fullmatch(r'\w*[a-z]_\w+|_\w+|[A-Z]+[a-z]\w*|[A-Z_]{4,}', name):
            found = name in words
        else:
            continue
        if not found:
            yield code


FOLDERS = ('scripts/', 'test/', '.ci/')
SUFFIXES = ('.py', '.cu', '.cuh')
MADE_ELSEWHERE = {
    *('build/coverage/report.txt', 'site_output/index.html'),
    *('jpeg_0', 'jpeg_3', 'more_decoders.py'),
}
DEVELOPERS = (
    *('architecture', 'frame', 'build_flow', 'threads'),
    *('extending', 'testing', 'reliability'),
)


def test_names_on_pages_for_developers_exist():
    words, classes = words_of_the_project(), members_of_classes()
    pages = {name: (ROOT / 'docs' / f'{name}.md').read_text('utf-8') for name in DEVELOPERS}
    missing = {name: list(missing_names(text, words, classes)) for name, text in pages.items()}
    assert {name: names for name, names in missing.items() if names} == {}
    assert sum(len(codes(text)) for text in pages.values()) > 300


def test_check_of_pages_finds_names_that_do_not_exist():
    words, classes = {'store_key'}, {'Detector': {'submit'}}
    text = '`store_key` `Detector.submit` `errors.py` `scripts/test --quick` `/diagnostics x`'
    assert list(missing_names(text, words, classes)) == []
    text = '`store_keys` `Detector.stop` `error.py` `scripts/tests` `NoClass` `ros/none.py`'
    assert list(missing_names(text, words, classes)) == codes(text)


def test_changelog_has_this_version():
    changelog = (ROOT / 'CHANGELOG.rst').read_text(encoding='utf-8')
    version = re.search(r'<version>(.*?)</version>', (ROOT / 'package.xml').read_text())[1]
    head, rule = changelog.splitlines()[1:3]
    assert head == 'Changelog for package trt_perception'
    assert set(rule) == {'^'}
    released = rf'{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)'
    assert re.search(rf'^(?:{released}|Forthcoming)\n-+$', changelog, re.MULTILINE)
