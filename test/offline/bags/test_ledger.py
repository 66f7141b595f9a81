# SPDX-License-Identifier: Apache-2.0
"""Tests of the ledger of an output bag: foreign files stay, and edited ledgers are refused."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from trt_perception.bags.bag import BagLoss
from trt_perception.errors import ConfigError
from trt_perception.offline.bags.ledger import (
    LEDGER_FILE,
    Ledger,
    check_unchanged,
    read_ledger,
    remove_leftovers,
    remove_results,
)
from trt_perception.offline.bags.plan import BagPlan, OutputOptions
from trt_perception.offline.bags.records import PartReport

INPUTS = {'bag': 'hash'}


def plan(folder, parts=2):
    options = OutputOptions(part_ns=1)
    return BagPlan('in', folder, options, (), (4, 4), 0, parts, inputs=INPUTS)


def results(folder):
    """Return a folder with the files of a complete bag of two parts."""
    folder.mkdir()
    for name in (f'{folder.name}_0.mcap', f'{folder.name}_1.mcap', 'metadata.yaml'):
        (folder / name).write_text('content')
    report = PartReport(3, {'bad_step': 1}, {'bad_step': 'a'}, 0, [BagLoss('a', 5, None, 'cut')])
    Ledger(INPUTS, None, [report, PartReport(2)], 2, True, Counter(person=4)).save(folder)
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize('name', ['out', 'out[1]', '*', 'a\nb'])
def test_all_results_are_removed_whatever_the_name_of_the_folder(tmp_path, name):
    folder = results(tmp_path / name)
    (folder / '.parts').mkdir()
    (folder / '.parts/000000.raw').write_text('raw')
    (folder / '.parts/.000001.raw.77').write_text('of a killed process')
    (folder / f'.{name}_2.mcap.part').write_text('of a killed process')
    remove_results(folder)
    assert names(folder) == []


def test_results_in_the_working_folder_are_removed(tmp_path, monkeypatch):
    folder = results(tmp_path / 'out')
    monkeypatch.chdir(folder)
    remove_results(type(folder)('.'))
    assert names(folder) == []


@pytest.mark.parametrize(
    'name', ['out_best.mcap', 'out_1.mcap.bak', 'out_01.mcap', 'other_0.mcap', '.parts/mine.txt']
)
def test_foreign_files_are_never_removed(tmp_path, name):
    folder = results(tmp_path / 'out')
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text('precious')
    before = names(folder)
    with pytest.raises(ConfigError):
        remove_results(folder)
    assert names(folder) == before
    assert (folder / name).read_text() == 'precious'


def test_foreign_files_next_to_raw_results_stay(tmp_path):
    parts = tmp_path / '.parts'
    parts.mkdir()
    for name in ('000000.raw', '.000001.raw.5', 'notes.txt', '.hidden'):
        (parts / name).write_text('content')
    remove_leftovers(tmp_path, keeps_raw=True)
    assert names(parts) == ['.hidden', '000000.raw', 'notes.txt']
    remove_leftovers(tmp_path, keeps_raw=False)
    assert names(parts) == ['.hidden', 'notes.txt']


def test_ledger_that_a_killed_process_began_is_removed(tmp_path):
    folder = results(tmp_path / 'out')
    (folder / '.parts').mkdir()
    before = names(folder)
    (folder / f'.{LEDGER_FILE}.a1b2c3d4').write_text('{')
    remove_leftovers(folder, keeps_raw=True)
    assert names(folder) == before


def test_folder_with_foreign_parts_is_no_unfinished_result(tmp_path):
    (tmp_path / 'out/.parts').mkdir(parents=True)
    (tmp_path / 'out/.parts/mine.txt').write_text('precious')
    with pytest.raises(ConfigError):
        read_ledger(plan(tmp_path / 'out'))


def test_saved_ledger_is_read_back(tmp_path):
    folder = results(tmp_path / 'out')
    ledger = read_ledger(plan(folder))
    assert ledger is not None
    assert (ledger.is_complete, ledger.files, ledger.total.images) == (True, 2, 5)
    assert ledger.detections == {'person': 4}


@pytest.mark.parametrize(
    ('keys', 'value'),
    [
        (['files'], -1),
        (['files'], 3),
        (['files'], '2'),
        (['is_complete'], False),
        (['is_complete'], 'yes'),
        (['parts'], []),
        (['facts'], {}),
        (['detections'], 4),
        (['detections'], {'person': 'many'}),
        (['parts', 0, 'images'], 'many'),
        (['parts', 0, 'images'], -5),
        (['parts', 0, 'unread'], []),
        (['parts', 0, 'unread'], {'bad_step': 'x'}),
        (['parts', 0, 'examples'], {'bad_step': 3}),
        (['parts', 0, 'losses', 0, 'start_ns'], 'early'),
        (['parts', 0, 'losses', 0, 'file'], 1),
    ],
)
def test_edited_ledger_is_refused(tmp_path, keys, value):
    folder = results(tmp_path / 'out')
    content = json.loads((folder / LEDGER_FILE).read_text())
    *way, last = keys
    place = content
    for key in way:
        place = place[key]
    place[last] = value
    (folder / LEDGER_FILE).write_text(json.dumps(content))
    before = names(folder)
    with pytest.raises(ConfigError):
        read_ledger(plan(folder))
    assert names(folder) == before


@pytest.mark.parametrize('name', ['out_1.mcap', 'metadata.yaml'])
def test_complete_bag_without_a_file_is_refused(tmp_path, name):
    folder = results(tmp_path / 'out')
    (folder / name).unlink()
    with pytest.raises(ConfigError):
        read_ledger(plan(folder))


@pytest.mark.parametrize(
    'changed', ['parameters', 'span', 'bag cameras image_wh span', 'bag model parameters']
)
def test_refusal_names_the_inputs_that_the_user_changed(tmp_path, changed, golden_messages):
    inputs = dict.fromkeys(
        ('bag', 'cameras', 'image_wh', 'span', 'options', 'model', 'masks', 'parameters'), 'hash'
    )
    folder = tmp_path / 'out'
    folder.mkdir()
    Ledger(inputs).save(folder)
    same = replace(plan(folder), inputs=inputs)
    assert read_ledger(same) == Ledger(inputs)
    with golden_messages.raises(ConfigError):
        read_ledger(replace(same, inputs=inputs | dict.fromkeys(changed.split(), 'other')))


def test_changes_by_another_process_are_noticed(tmp_path):
    folder = results(tmp_path / 'out')
    mine = Ledger(INPUTS, None, [PartReport()], 1)
    mine.save(folder)
    check_unchanged(plan(folder), mine)
    for other in (
        Ledger('other', None, [PartReport()], 1),
        Ledger(INPUTS, None, [], 0),
        Ledger(INPUTS, None, [PartReport(), PartReport()], 2, True),
    ):
        other.save(folder)
        with pytest.raises(ConfigError):
            check_unchanged(plan(folder), mine)
    remove_results(folder)
    with pytest.raises(ConfigError):
        check_unchanged(plan(folder), mine)
    check_unchanged(plan(folder), Ledger(INPUTS))
