# SPDX-License-Identifier: Apache-2.0
"""Check that release tools can read package.xml, setup.py, the changelog and rosdistro's entry."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = ROOT / 'CHANGELOG.rst'
PAGE = ROOT / 'docs' / 'maintaining.md'

changelogs = pytest.importorskip('catkin_pkg.changelog', reason='needs catkin_pkg')
packages = pytest.importorskip('catkin_pkg.package', reason='needs catkin_pkg')
versions = pytest.importorskip('catkin_pkg.package_version', reason='needs catkin_pkg')
docutils_core = pytest.importorskip('docutils.core', reason='needs docutils')


def test_package_xml_is_read_without_warnings():
    warnings = []
    package = packages.parse_package(ROOT, warnings=warnings)
    package.validate(warnings=warnings)
    assert warnings == []
    assert package.get_build_type() == 'ament_python'
    [license_] = package.licenses
    assert (ROOT / license_.file).is_file()


def test_a_new_version_is_written_to_package_xml_and_setup_py(tmp_path):
    for name in ('package.xml', 'setup.py'):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copy(ROOT / 'LICENSE', tmp_path)
    old = packages.parse_package(ROOT).version
    versions.update_versions({tmp_path: packages.parse_package(tmp_path)}, '98.76.54')
    for name in ('package.xml', 'setup.py'):
        before, after = (folder.joinpath(name).read_text() for folder in (ROOT, tmp_path))
        lines = zip(before.splitlines(), after.splitlines(), strict=True)
        [(changed, new)] = [(line, new) for line, new in lines if line != new]
        assert new == changed.replace(old, '98.76.54')


def test_changelog_is_correct_restructured_text(capsys):
    docutils_core.publish_doctree(
        CHANGELOG.read_text(), settings_overrides={'report_level': 1, 'halt_level': 5}
    )
    assert capsys.readouterr().err == ''


def released(text):
    """Return the changelog as a release of 98.76.54 leaves it, and whether this adds a version."""
    label = versions.get_forthcoming_label(text)
    if label is None:
        return text, False
    assert label == 'Forthcoming'
    return versions.rename_section(text, label, '98.76.54 (2099-12-31)'), True


def test_each_version_of_the_changelog_has_items():
    text, is_new = released(CHANGELOG.read_text())
    changelog = changelogs.populate_changelog_from_rst(
        changelogs.Changelog('trt_perception'), text
    )
    found = list(changelog.foreach_version(reverse=True))
    newest = '98.76.54' if is_new else packages.parse_package(ROOT).version
    assert found[0][0] == newest
    for version, _, content in found:
        items = [
            str(item)
            for part in content
            if isinstance(part, changelogs.BulletList)
            for item in part
        ]
        assert items, version
        assert all(item.strip() for item in items)


def test_no_item_of_the_changelog_is_lost():
    text, _ = released(CHANGELOG.read_text())
    changelog = changelogs.populate_changelog_from_rst(
        changelogs.Changelog('trt_perception'), text
    )
    read = ' '.join(
        part.as_txt() if isinstance(part, changelogs.BulletList) else str(part)
        for _, _, content in changelog.foreach_version()
        for part in content
    )
    words = set(re.findall(r'\w{4,}', read))
    for line in re.findall(r'^ *\* (.*)$', text, re.M):
        assert set(re.findall(r'\w{4,}', line)) <= words, line


def rosdistro_entry():
    [text] = re.findall(r'^```yaml\n(trt_perception:.*?)^```', PAGE.read_text(), re.M | re.S)
    return text, yaml.safe_load(text)


def test_rosdistro_entry_is_sorted_and_formatted_as_rosdistro_writes_it():
    text, entry = rosdistro_entry()
    assert text == yaml.safe_dump(entry, default_flow_style=False, sort_keys=True)
    # The limits in rosdistro's .yamllint.
    assert all(len(line) <= 125 for line in text.splitlines())


def test_rosdistro_entry_names_a_public_repository_and_a_branch():
    _, entry = rosdistro_entry()
    package = packages.parse_package(ROOT)
    assert list(entry) == [package.name]
    repository = entry[package.name]
    assert set(repository) == {'doc', 'source', 'status'}
    assert repository['status'] in ('developed', 'maintained', 'end-of-life', 'unmaintained')
    assert set(repository['doc']) == {'type', 'url', 'version'}
    assert set(repository['source']) == {'test_pull_requests', 'type', 'url', 'version'}
    assert repository['source']['test_pull_requests'] is True
    for part in (repository['doc'], repository['source']):
        assert part['type'] == 'git'
        assert re.fullmatch(rf'https://github\.com/[\w-]+/{package.name}\.git', part['url'])
        # A branch: rosdistro refuses a tag as the version of a source.
        assert isinstance(part['version'], str)
        assert not re.fullmatch(r'v?\d+\.\d+\.\d+|[0-9a-f]{7,40}', part['version'])
    assert repository['doc']['url'] == repository['source']['url']


def test_package_name_follows_rep_144():
    name = packages.parse_package(ROOT).name
    assert re.fullmatch(r'[a-z][a-z0-9_]+', name)
    assert '__' not in name
