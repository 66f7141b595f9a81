# SPDX-License-Identifier: Apache-2.0
"""Check that the figures in the pages equal the recorded figures in docs/data."""

import functools
import itertools
import json
import operator
import re
import statistics

from support.docs_pages import BENCHMARKS, README, ROOT, TRANSPORT, prose, rows, section
from trt_perception.parameters.rules import MAX_CAMERAS

DATA = ROOT / 'docs' / 'data'


#: The heading of the section about many cameras.
ONE_NODE_OR_ONE_EACH = 'One node for all cameras, or one each?'


def load(name):
    """Return the recorded figures of one file below docs/data."""
    return json.loads((DATA / name).read_text(encoding='utf-8'))


def table(title):
    """Map the first cell of each row below a heading of the benchmarks to its other cells."""
    return {head: cells for head, *cells in rows(section(BENCHMARKS, title))}


# Tests of the figures in README.md.

#: A number with the unit of a measurement. Versions have no unit. Sizes of downloads are in GB.
UNITS = r'frames/s|images per second|ms\b|s\b|MiB|GiB|% CPU|% lost images|times\b|cameras'
FIGURE = rf'\d[\d.,]* (?:{UNITS})'


def readme_figures(text):
    """Return each figure of a text with its unit. `A instead of B UNIT` has two figures."""
    text = ' '.join(prose(text).split())
    text = re.sub(
        r'([\d.,]+) (instead of [\d.,]+ (GiB|% CPU|% lost images|ms))', r'\1 \3 \2', text
    )
    return re.findall(FIGURE, text)


#: The rows of peers.json that the summary of the section compares.
PYTHON_SIDES = 'ours_python', 'onnxruntime_yolo11n', 'ultralytics_square'


def recorded_for_the_readme():
    """Return the figures of README.md, made of the records."""
    sixteen = next(
        case['rounds']
        for case in load('benchmarks/gpu/cameras.json')['cases']
        if (case['count'], case['timing']) == (16, 'random')
    )

    def median(side, key):
        return statistics.median(figures[key] for figures in sixteen[side])

    sides = 'ours', 'ultralytics', 'onnxruntime'
    one, four = (case['medians'] for case in load('benchmarks/gpu/peers_dds.json')['cases'])
    rounds, seconds = node_rounds()
    published = [each['received'] / seconds for each in rounds['one']]
    limit = min(*load('benchmarks/gpu/jpeg_cameras.json')['limit_images_per_s'], *published)

    def lost(side):
        return sum(each['lost'] for each in rounds[side]) / sum(
            each['sent'] for each in rounds[side]
        )

    return [
        f'{MAX_CAMERAS} cameras',
        f'{round(limit, -2):,.0f} images per second',
        *(f'{four[side]["p50_ms"]:.1f} ms' for side in sides),
        *(f'{four[side]["cpu_ms"]:.1f} ms' for side in sides),
        *(f'{four[side]["gpu_mib"]:.0f} MiB' for side in sides),
        *(f'{one[side]["gpu_mib"]:.0f} MiB' for side in sides),
        *(f'{100 * lost(side):.0f} % lost images' for side in ('two', 'one')),
        *(
            f'{statistics.median(each["p99_ms"] for each in rounds[side]):.1f} ms'
            for side in ('two', 'one')
        ),
        *(f'{median(side, "gpu_mib") / 1024:.1f} GiB' for side in ('one', 'many')),
        *(f'{median(side, "cpu_percent"):.0f} % CPU' for side in ('one', 'many')),
        *(f'{median(side, "p99_ms"):.1f} ms' for side in ('one', 'many')),
    ]


def test_figures_of_the_readme_equal_the_recorded_figures():
    """A figure without a record is not in the list, so it fails."""
    assert readme_figures(README) == recorded_for_the_readme()
    text = section(README, 'Measured')
    assert [row for row in rows(text) if not readme_figures(' '.join(row))] == []
    # The record of the first table is above it, the others are in the last column.
    *above, _, last = text.split('\n\n|')
    listed = [row[-1] for row in rows('|' + last)]
    links = [re.findall(r'\]\((docs/data/[^)]*)\)', part) for part in (*above, *listed)]
    assert all(links)
    assert [path for found in links for path in found if not (ROOT / path).is_file()] == []


def test_reader_of_figures_finds_every_unit():
    text = 'A node makes 84 frames/s, 11.8 ms per frame, with 174 instead of 193 % CPU and 2 GiB.'
    assert readme_figures(text) == ['84 frames/s', '11.8 ms', '174 % CPU', '193 % CPU', '2 GiB']


def frame_path_ratios(name):
    """Return the ratio of all rounds, of the best and of the worst round."""
    record = load(f'benchmarks/{name}.json')
    rounds = zip(record['figures']['node'], record['figures']['bare'], strict=True)
    ratios = [node['cpu_ms'] / bare['cpu_ms'] for node, bare in rounds]
    return record['ratio'], min(ratios), max(ratios)


def test_frame_path_equals_the_recorded_figure():
    text = ' '.join(section(BENCHMARKS, 'Receiving an image').split())
    ratio, low, high = frame_path_ratios('frame_path')
    assert f'**{ratio:.2f}**' in text
    assert f'({low:.2f} to {high:.2f} in seven rounds)' in text
    assert ratio <= 0.80
    text = ' '.join(section(BENCHMARKS, 'Receiving an image on a busy machine').split())
    assert f'was {ratio:.2f}.' in text
    ratio, low, high = frame_path_ratios('frame_path_busy')
    assert f'had {ratio:.2f} ({low:.2f} to {high:.2f})' in text


def test_transport_figures_equal_the_recorded_figures():
    transport = load('benchmarks/transport.json')
    table = rows(section(TRANSPORT, 'Profile for raw images'))
    described = {cell: figures for cell, *figures in table}
    assert set(described) == set(transport['medians'])
    for case, row in transport['medians'].items():
        assert described[case] == [
            f'{100 * row["arrived"]:.0f} %',
            *(f'{row[key]:.1f} ms' for key in ('p50_ms', 'cpu_ms')),
        ]
    page = (ROOT / 'docs' / 'cameras.md').read_text(encoding='utf-8')
    text = ' '.join(section(page, 'Large images').split())
    effort, reliable = (
        f'{100 * (1 - transport["medians"][f"default, {qos}"]["arrived"]):.0f} %'
        for qos in ('best_effort', 'reliable')
    )
    assert f'a loss of {effort} with best effort, and of {reliable} with reliable' in text


def test_figures_of_discovery_equal_the_recorded_figures():
    text = ' '.join(section(TRANSPORT, 'Many programs on one machine').split())
    record = load('benchmarks/discovery.json')
    count, seen = record['processes'], record['processes_by_nodes_seen']
    (few, late), (everything, early) = seen['localhost'].items()
    assert everything == str(count)
    assert f'of {count} programs on Jazzy, {early} saw all {count}, and {late} saw {few}.' in text
    assert seen['localhost_all_peers'] == seen['no_range'] == {str(count): count}


def test_picture_of_a_cameras_milliseconds_has_the_recorded_figures():
    cases = load('benchmarks/camera.json')['cases']
    picture = (ROOT / 'docs' / 'images' / 'camera_milliseconds.svg').read_text(encoding='utf-8')
    parts_ms = [list(case['parts_ms'].values()) for case in cases]
    shown = re.findall(r'>(\d+\.\d\d)( ms)?<', picture)
    assert [figure for figure, unit in shown if unit] == [f'{sum(row):.2f}' for row in parts_ms]
    labels = [figure for figure, unit in shown if not unit]
    assert len(labels) > 8
    assert set(labels) <= {f'{part:.2f}' for row in parts_ms for part in row}


def test_time_with_the_interpreter_lock_equals_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, "Where a camera's milliseconds go").split())
    raw = [case for case in load('benchmarks/camera.json')['cases'] if case['kind'] == 'raw']
    # The middleware, and the copy out of it, do not hold the lock.
    ours, rclpy = (
        sum(ms for part, ms in case['parts_ms'].items() if part not in ('middleware', 'copied'))
        for case in raw
    )
    assert f'(GIL) for {ours:.2f} ms, with `image_intake:=rclpy` for {rclpy:.2f} ms.' in text


def test_accuracy_figures_equal_the_recorded_figures():
    text = (ROOT / 'docs' / 'calibration.md').read_text(encoding='utf-8')
    models = load('accuracy/digits_cpu.json')['models']
    figures = rows(section(text, 'The digits detector'))
    described = {f'digits_{name.strip("`")}.onnx': row for name, *row in figures}
    assert set(described) == set(models)
    for name, (m_ap, m_ap50, f1) in described.items():
        metrics, agreement = models[name]['metrics'], models[name].get('agreement')
        assert [m_ap, m_ap50] == [f'{metrics[key]:.3f}' for key in ('mAP', 'mAP50')]
        assert f1 == (f'{agreement["F1"]:.4f}' if agreement else '')


#: The measures of each row in the tables of calibration methods, and their decimal places.
_MEASURES = (('metrics', 'mAP', 3), ('metrics', 'mAP50', 3), ('agreement', 'F1', 4))


def trained_yolox_figures():
    """Return FP32's figures, and the figures of each set by method and number of images."""
    found, fp32 = {}, []
    for count in (100, 300):
        record = load(f'accuracy/yolox_cpu_{count}.json')
        assert (record['calibration_images'], record['images']) == (count, 300)
        fp32.append(record['models'].pop(record['reference']))
        for name, figures in record['models'].items():
            found.setdefault((name.partition('_')[0], count), []).append(figures)
    for part in ('metrics', 'at_threshold'):
        assert fp32[0][part] == fp32[1][part]
    assert {len(sets) for sets in found.values()} == {3}
    return fp32[0], found


def test_accuracy_of_the_trained_yolox_equals_the_recorded_figures():
    text = (ROOT / 'docs' / 'calibration.md').read_text(encoding='utf-8')
    fp32, found = trained_yolox_figures()
    expected = [['`fp32`', '', *(f'{fp32["metrics"][key]:.3f}' for key in ('mAP', 'mAP50')), '']]
    for method in ('minmax', 'percentile', 'entropy'):
        for count in (100, 300):
            row = [f'`int8_{method}`', str(count)]
            for part, key, digits in _MEASURES:
                values = [figures[part][key] for figures in found[method, count]]
                figures = (f'{f(values):.{digits}f}' for f in (statistics.median, min, max))
                row.append('{} ({}–{})'.format(*figures))
            expected.append(row)
    assert rows(section(text, 'A trained YOLOX')) == expected


def test_calibration_methods_differ_on_the_trained_yolox_as_the_page_says():
    page = (ROOT / 'docs' / 'calibration.md').read_text(encoding='utf-8')
    text = ' '.join(section(page, 'A trained YOLOX').split())
    fp32, found = trained_yolox_figures()

    def values(method, part, key):
        return [figures[part][key] for count in (100, 300) for figures in found[method, count]]

    minmax, percentile, entropy = (
        values(method, 'metrics', 'mAP') for method in ('minmax', 'percentile', 'entropy')
    )
    higher = [one > other for one, other in zip(minmax, percentile, strict=True)]
    lost = fp32['metrics']['mAP'] - min(minmax)
    assert f'with {sum(higher)} of the {len(higher)} sets, but lost {lost:.3f} with' in text
    assert not higher[minmax.index(min(minmax))]
    assert f'its mAP differs by at most {max(percentile) - min(percentile):.3f}' in text
    false = values('percentile', 'at_threshold', 'false')
    assert f'{min(false)} to {max(false)} false boxes' in text
    assert f'FP32 finds {fp32["at_threshold"]["false"]}' in text
    assert min(values('percentile', 'metrics', 'mAP50')) > fp32['metrics']['mAP50']
    assert max(entropy) < min(minmax + percentile)
    agreement = [values(method, 'agreement', 'F1') for method in ('minmax', 'percentile')]
    assert max(values('entropy', 'agreement', 'F1')) < min(map(min, agreement))


def test_accuracy_on_a_gpu_equals_the_recorded_figure():
    text = (ROOT / 'docs' / 'calibration.md').read_text(encoding='utf-8')
    models = {}
    for file in ('digits_gpu', 'digits_gpu_tf32'):
        models |= load(f'accuracy/{file}.json')['models']
    losses = [
        models['digits_fp32.onnx']['metrics']['mAP50'] - model['metrics']['mAP50']
        for model in models.values()
    ]
    assert f'lost at most {max(losses):.3f} mAP50' in ' '.join(text.split())


def recorded(name):
    """Return one run of benchmark_engine with the reference model."""
    return load(f'benchmarks/gpu/reference_fp16_{name}.json')['models'][0]


def test_gpu_figures_equal_the_recorded_figures():
    described = table('GPU pipeline')
    runs = [recorded('run1'), recorded('run2')]
    text = ' '.join(section(BENCHMARKS, 'GPU pipeline').split())

    def median(*keys):
        return statistics.median(functools.reduce(operator.getitem, keys, run) for run in runs)

    for index, depth in ((0, '1'), (2, '3 (default)'), (4, '8')):
        pipeline = ('pipelines', index)
        assert described[depth] == [
            f'{median(*pipeline, "frames_per_s"):.0f}',
            *(
                f'{median(*pipeline, kind, "p50"):.2f} ms'
                for kind in ('latency_ms', 'busy_latency_ms')
            ),
            f'{median(*pipeline, "device_memory_bytes") / 2**20:.0f} MiB',
        ]
    graph, enqueue = (
        median('stages', name, 'mean_ms') for name in ('engine_graph', 'engine_enqueue')
    )
    assert f'takes {graph:.3f} ms by graph replay, and {enqueue:.3f} ms by plain enqueue' in text


def test_figures_in_python_equal_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'Against other ways').split())
    medians = load('benchmarks/gpu/peers.json')['medians']
    rates = (medians[side]['frames_per_s'] for side in PYTHON_SIDES)
    ours, onnxruntime, ultralytics = map('{:.0f}'.format, rates)
    assert f"processes {ours} frames/s, Ultralytics' predictor {ultralytics}, and" in text
    assert f'ONNX Runtime with OpenCV {onnxruntime}.' in text


def test_same_engine_in_a_simple_program_is_slower_as_the_page_says():
    text = ' '.join(section(BENCHMARKS, 'Against other ways').split())
    rates = {
        name: found['frames_per_s']
        for name, found in load('benchmarks/gpu/peers.json')['medians'].items()
    }
    ratio = rates['ours_python'] / rates['tensorrt']
    assert f'`tp.load` is {ratio:.1f} times as fast as a simple program' in text
    others = [rate for name, rate in rates.items() if not name.startswith(('ours', 'limit'))]
    assert max(others) < rates['ours_python'] < rates['ours_8']
    assert f'{rates["ours_8"]:.0f} frames/s with eight' in text


def test_first_table_of_the_page_equals_the_recorded_figures():
    four = load('benchmarks/gpu/peers_dds.json')['cases'][1]['medians']
    expected = [
        [f'{found["p50_ms"]:.1f}', f'{found["cpu_ms"]:.1f}', f'{found["gpu_mib"]:.0f}']
        for found in (four[side] for side in ('ours', 'ultralytics', 'onnxruntime'))
    ]
    assert [cells[2:] for cells in rows(BENCHMARKS[: BENCHMARKS.index('So one node')])] == expected


def test_odd_figures_of_other_ways_equal_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'Odd figures').split())
    names = 'peers', 'peers_ultralytics', 'peers_300_boxes', 'peers_trained'
    records = [load(f'benchmarks/gpu/{name}.json') for name in names]
    first, second, *later = records

    def rounds(side):
        rates = [each['frames_per_s'] for each in first['sides'][side]['rounds']]
        return f'{min(rates):.0f} to {max(rates):.0f}'

    words = 'equal within the rounds: {} and {}.'
    assert words.format(*map(rounds, ('ours_8_locked', 'limit_8'))) in text
    start_s = first['sides']['ours_1']['facts']['first_results_s']
    assert f'first results took {start_s:.1f} s' in text
    host = [each['medians']['ours_1']['host_mib'] for each in (first, *later)]
    eight = first['medians']['ours_8']['host_mib']
    assert f'{host[0]:.0f} MiB of host memory, eight in flight only {eight:.0f} |' in text
    assert f'full from the start: {host[1]:.0f} and {host[2]:.0f} MiB' in text
    single = [each['sides']['tensorrt'] for each in records]
    assert {f'{each["medians"]["tensorrt"]["host_mib"] / 1024:.1f}' for each in records} == {'1.4'}
    starts_s = [each['facts']['first_results_s'] for each in single]
    assert f'took {min(starts_s):.0f} to {max(starts_s):.0f} s in each run' in text
    both, square, default = (
        record['sides'][side]['gpu_mib']
        for record, side in (
            *((first, 'ultralytics_square'), (second, 'ultralytics_square')),
            (second, 'ultralytics'),
        )
    )
    assert both == square + default
    words = 'has {:.0f} MiB for it and {:.0f} MiB for square input, together {:.0f}'
    assert words.format(default, square, both) in text


def test_odd_figures_of_rclpy_nodes_equal_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'Odd figures').split())
    one, four = (case['sides'] for case in load('benchmarks/gpu/peers_dds.json')['cases'])
    counts = [four['ours']['rounds'][0]['objects'][f'camera_{index}'] for index in range(4)]
    assert 'finds {}, {}, {} and {} boxes in the four pictures'.format(*counts) in text
    assert counts[0] == one['ours']['rounds'][0]['objects']['camera_0']
    python = load('benchmarks/gpu/peers.json')['medians']
    longer = [
        load('benchmarks/gpu/peers_dds.json')['cases'][0]['medians'][side]['p50_ms']
        - python[name]['p50_ms']
        for side, name in (('ultralytics', 'ultralytics_square'), ('ours', 'ours_python'))
    ]
    words = 'Ultralytics is {:.0f} ms longer than in Python, that of this package {:.1f} ms'
    assert words.format(*longer) in text


def test_figures_of_both_paddings_equal_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'All figures of the other ways').split())
    medians = load('benchmarks/gpu/peers_ultralytics.json')['medians']
    sides = 'ultralytics', 'ultralytics_square', 'ours_python', 'ours_8_locked'
    padded, square, ours, locked = (f'{medians[side]["frames_per_s"]:.0f}' for side in sides)
    assert padded == square
    words = f'{square} frames/s each, against {ours} with `tp.load` and {locked} with page-locked'
    assert words in text


def test_other_sides_with_300_boxes_differ_as_the_page_says():
    """The table is generated from the record."""
    record = load('benchmarks/gpu/peers_300_boxes.json')
    sides, medians = record['sides'], record['medians']
    others = [name for name in sides if not name.startswith(('ours', 'limit'))]
    slowest = min(medians[name]['frames_per_s'] for name in sides if name.startswith('ours'))
    assert max(medians[name]['frames_per_s'] for name in others) < slowest
    memory = {name: sides[name]['gpu_mib'] for name in others}
    assert max(memory.values()) < sides['ours_python']['gpu_mib']
    assert min(memory, key=memory.get) == 'tensorrt'
    assert memory['tensorrt'] < sides['ours_1']['gpu_mib']
    text = ' '.join(section(BENCHMARKS, 'With 300 boxes').split())
    ordinary, locked = (medians[name]['frames_per_s'] for name in ('ours_8', 'ours_8_locked'))
    assert round(locked / ordinary) == 7
    assert 'seven times as many frames/s' in text
    same = sides['tensorrt']['agreement']
    assert (same['boxes'] - same['pairs'], same['reference_boxes'] - same['pairs']) == (1, 0)
    assert {len(side['rounds']) for side in sides.values()} == {2}


def trained_sides():
    """Return the sides with trained weights, and their medians."""
    record = load('benchmarks/gpu/peers_trained.json')
    assert {len(side['rounds']) for side in record['sides'].values()} == {3}
    assert not record['failures']
    return record['sides'], record['medians']


def test_boxes_with_trained_weights_agree_as_the_page_says():
    sides, _ = trained_sides()
    text = ' '.join(section(BENCHMARKS, 'With trained weights').split())
    same = {name: side['agreement'] for name, side in sides.items()}
    boxes = {found['reference_boxes'] for found in same.values()}
    assert boxes == {88}
    assert 'The model finds 88 boxes' in text
    fp32, fp16 = 'onnxruntime_yolo11n_trained', 'onnxruntime_yolo11n_trained_fp16'
    assert same[fp16]['share'] == same['tensorrt']['share'] == 1
    square, single = (88 - same[name]['pairs'] for name in ('ultralytics_square', fp32))
    assert f'other boxes for {square} of 88, and ONNX Runtime in FP32 for {single}.' in text
    assert same['ultralytics']['share'] < min(same[name]['share'] for name in (fp32, fp16))


def test_memory_with_trained_weights_equals_the_recorded_figures():
    sides, _ = trained_sides()
    text = ' '.join(section(BENCHMARKS, 'With trained weights').split())
    mib = {name: side['gpu_mib'] for name, side in sides.items()}
    others = [name for name in mib if not name.startswith(('ours', 'limit'))]
    assert max(mib[name] for name in others) < mib['ours_python']
    bare, *rest = sorted(others, key=mib.get)
    assert bare == 'tensorrt'
    words = 'with OpenCV {:.0f}, Ultralytics {:.0f} and {:.0f}, ONNX Runtime {:.0f} and {:.0f} MiB'
    assert f'{words}.'.format(*(mib[name] for name in (bare, *rest))) in text
    assert f'need less than `tp.load` ({mib["ours_python"]:.0f} MiB)' in text
    assert f'one frame in flight needs {mib["ours_1"]:.0f} MiB.' in text


def test_speed_with_trained_weights_equals_the_recorded_figures():
    sides, medians = trained_sides()
    text = ' '.join(section(BENCHMARKS, 'With trained weights').split())
    rates = {name: found['frames_per_s'] for name, found in medians.items()}
    others = [rates[name] for name in rates if not name.startswith(('ours', 'limit'))]
    ratio = rates['ours_python'] / max(others)
    assert f'`tp.load` is {ratio:.1f} times as fast as the fastest other program.' in text
    ordinary, locked = (f'{rates[name]:.0f}' for name in ('ours_8', 'ours_8_locked'))
    assert f'hardly help: {rates["ours_python"]:.0f} and {ordinary} frames/s.' in text
    share = rates['ours_8_locked'] / rates['limit_8']
    assert f'reaches {locked} frames/s, {share:.2f} of the limit.' in text
    rounds = {
        name: sorted(each['frames_per_s'] for each in sides[name]['rounds'])
        for name in ('ultralytics', 'ours_8')
    }
    low, middle, high = (f'{rate:.0f}' for rate in rounds['ultralytics'])
    assert f'three rounds had {low}, {middle} and {high} frames/s' in text
    low, _, high = (f'{rate:.0f}' for rate in rounds['ours_8'])
    assert f'eight in flight {low} to {high}.' in text


def test_figures_of_bare_loops_equal_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'The GPU pipeline and its limit').split())
    runs, later = (
        load(f'benchmarks/gpu/reference_fp16_{name}.json') for name in ('streams', 'streams_later')
    )
    shares = [run['ratios']['whole'] for run in runs + later]
    assert f'reaches {min(shares):.2f} to {max(shares):.2f} of a bare loop' in text
    first, second = (run['pipeline']['frames_per_s'] for run in later)
    assert f'with a depth of 3 made {first:.0f} and {second:.0f} frames/s' in text
    rates = [
        run['pipeline']['frames_per_s']
        for run in load('benchmarks/gpu/reference_fp16_batches.json')
        if run['depth'] == 4
    ]
    assert [f'four in flight it makes {rate:.0f} frames/s' in text for rate in rates] == [True]


def test_time_of_a_start_equals_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'The GPU pipeline and its limit').split())
    median_s = load('benchmarks/gpu/start_time.json')['median_s']
    assert f'starts in {median_s["none"]:.1f} s without the caches' in text
    assert f'and in {median_s["all"]:.2f} s with them' in text


def test_figures_of_tasks_equal_the_recorded_figures():
    models = load('benchmarks/gpu/tasks.json')['models']
    stages = {task: model['stages'] for task, model in models.items()}
    detect, *others = (whole['upload_graph']['alone_ms']['p50'] for whole in stages.values())
    text = ' '.join(section(BENCHMARKS, 'The GPU pipeline and its limit').split())
    words = 'oriented boxes {:.2f} times, 17 keypoints {:.2f} times, masks {:.2f} times.'
    assert list(models) == ['detect', 'obb', 'pose', 'segment']
    assert words.format(*(other / detect for other in others)) in text
    assert f'takes {stages["segment"]["masks"]["mean_ms"]:.3f} ms of the GPU' in text


def test_figures_of_jpeg_cameras_equal_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'One node for many cameras').split())
    short = ' '.join(section(BENCHMARKS, ONE_NODE_OR_ONE_EACH).split())
    jpeg = load('benchmarks/gpu/jpeg_cameras.json')
    assert f'{jpeg["count"]} random JPEG cameras ({jpeg["count"] * jpeg["rate_hz"]} images' in text
    latency = ', '.join(f'{name} {jpeg[f"{name}_ms"]:.1f}' for name in ('p50', 'p95', 'p99'))
    assert f'{latency} ms, CPU {jpeg["cpu_percent"]} %, and no image lost' in text
    assert not jpeg['lost']
    low, high = jpeg['limit_images_per_s']
    for words in (text, short):
        assert f'to about {low:,} to {high:,} images per second' in words
    words = 'had a p50 of {p50_ms:.1f} ms and a p99 of {p99_ms:.1f} ms, and no image was lost'
    assert words.format(**jpeg) in short
    assert f'{jpeg["count"]} random JPEG cameras ({jpeg["count"] * jpeg["rate_hz"]} ' in short


def test_sizes_of_engines_equal_the_recorded_sizes():
    page = (ROOT / 'docs' / 'building.md').read_text(encoding='utf-8')
    sizes = load('benchmarks/engine_sizes.json')
    int8, fp16 = (f'{sizes[f"{name}_size_bytes"] / 2**20:.1f} MiB' for name in ('int8', 'fp16'))
    assert f"the digits' engine has {int8}, in FP16 {fp16}" in page
    assert re.search(rf'^build +ok +0.6 s  {re.escape(fp16)}$', page, re.MULTILINE)


def test_figures_over_dds_equal_the_recorded_figures():
    over_dds = load('benchmarks/gpu/over_dds.json')
    cases = load('benchmarks/gpu/cameras.json')['cases']
    kinds = {'raw': 'raw', 'JPEG, decoded by nvJPEG': 'jpeg'}
    one_camera = [
        [title, *(_range(over_dds['detector'][kind], key) for key in ('p50_ms', 'cpu_ms'))]
        for title, kind in kinds.items()
    ]
    recorded = [row for case in cases for row in _camera_rows(case)]
    assert rows(section(BENCHMARKS, 'One camera over DDS')) == one_camera
    assert rows(section(BENCHMARKS, 'One node for many cameras')) == recorded
    without_p95 = [[*row[:3], *row[4:]] for row in recorded]
    assert rows(section(BENCHMARKS, ONE_NODE_OR_ONE_EACH)) == without_p95
    assert not any(
        each['lost'] for case in cases for side in case['rounds'].values() for each in side
    )


def test_summary_of_one_node_for_many_cameras_follows_from_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, ONE_NODE_OR_ONE_EACH).split())
    cases = load('benchmarks/gpu/cameras.json')['cases']

    def percents(key, count):
        """Return by how many percent one node differs from a node each, in each case."""
        return [
            100 * statistics.median(first[key] / second[key] for first, second in pairs) - 100
            for case in cases
            if case['count'] == count
            for pairs in (list(zip(case['rounds']['one'], case['rounds']['many'], strict=True)),)
        ]

    less = sorted(-found for found in percents('cpu_percent', 16))
    longer = sorted(percents('p99_ms', 16))
    assert '{:.0f} to {:.0f} % less CPU time'.format(*less) in text
    assert 'its p99 is {:.0f} to {:.0f} % longer'.format(*longer) in text
    assert 'its p99 is {:.0f} % longer.'.format(*percents('p99_ms', 8)) in text
    assert 'a sixteenth of the GPU memory of sixteen nodes' in text
    assert [round(100 / (100 + found)) for found in percents('gpu_mib', 16)] == [16, 16]
    assert [round(100 / (100 + found)) for found in percents('gpu_mib', 8)] == [8]
    assert max(map(abs, percents('p50_ms', 16))) < 6


def test_memory_of_one_node_is_a_fifth_of_sixteen_nodes():
    text = section(BENCHMARKS, 'One node for many cameras')
    assert 'needed a fifth of the host memory (PSS) of sixteen' in text
    assert 'a fifth of their host memory' in section(BENCHMARKS, ONE_NODE_OR_ONE_EACH)
    cases = load('benchmarks/gpu/cameras.json')['cases']
    for rounds in [case['rounds'] for case in cases if case['count'] == 16]:
        one, many = (
            statistics.median(each['pss_mib'] for each in rounds[side]) for side in ('one', 'many')
        )
        assert round(one / many, 2) == 0.20


def test_latency_of_maps_over_dds_equals_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'Times of maps').split())
    classes, *depth = load('benchmarks/gpu/maps_over_dds.json')['runs']

    def p50_ms(runs, side):
        return statistics.median(each['p50_ms'] for run in runs for each in run[side])

    node, relay = (
        [p50_ms(runs, side) for runs in ([classes], depth)] for side in ('node', 'relay')
    )
    assert 'was {:.1f} ms for a class map and {:.1f} ms for depth'.format(*node) in text
    assert 'a model, had {:.1f} and {:.1f} ms.'.format(*relay) in text


def node_rounds():
    """Return the rounds of one node and of two nodes, and the length of a round in seconds."""
    record = load('benchmarks/gpu/nodes.json')
    (case,) = record['cases']
    assert (case['image'], case['count'], record['rate_hz']) == ('jpeg', 48, 30)
    return case['rounds'], record['seconds']


_NODE_FIGURES = {'p50_ms': 1, 'p99_ms': 1, 'cpu_percent': 0, 'gpu_mib': 0}


def test_figures_of_one_and_two_nodes_equal_the_recorded_figures():
    rounds, seconds = node_rounds()
    expected = [
        [
            *(side, str(number)),
            f'{100 * each["lost"] / each["sent"]:.0f}',
            f'{each["received"] / seconds:.0f}',
            *(f'{each[key]:.1f}' for key in ('p50_ms', 'p99_ms')),
            *(f'{each[key]:.0f}' for key in ('cpu_percent', 'gpu_mib')),
        ]
        for side, found in rounds.items()
        for number, each in enumerate(found, 1)
    ]
    assert rows(section(BENCHMARKS, 'Two nodes for many cameras')) == expected
    medians = [
        [
            side,
            f'{statistics.median(100 * each["lost"] / each["sent"] for each in found):.0f}',
            f'{statistics.median(each["received"] / seconds for each in found):.0f}',
            *(
                f'{statistics.median(each[key] for each in found):.{digits}f}'
                for key, digits in _NODE_FIGURES.items()
            ),
        ]
        for side, found in rounds.items()
    ]
    assert rows(section(BENCHMARKS, 'One node or two')) == medians
    assert [each['lost'] for each in rounds['two']] == [0, 0]
    assert [each['warnings'] for found in rounds.values() for each in found] == [[]] * 4


def test_figures_of_a_node_with_too_many_cameras_equal_the_recorded_figures():
    record = load('benchmarks/gpu/nodes_64_cameras.json')
    (case,) = record['cases']
    (found,) = case['rounds']['one']
    kinds = 'warnings_in_log', 'cameras_with_a_warning', 'warnings_that_name_nodes'
    assert [found[kind] for kind in kinds] == [case['count']] * 3
    lost = f'node lost {100 * found["lost"] / found["sent"]:.0f} % of the images'
    text = ' '.join(section(BENCHMARKS, 'Two nodes for many cameras').split())
    assert (
        f'round of {record["seconds"]:.0f} s had {case["count"]} such cameras, on one GPU' in text
    )
    assert f'One {lost}' in text
    short = ' '.join(section(BENCHMARKS, 'One node or two').split())
    assert f'With {case["count"]} cameras, one node lost half of the images' in short
    assert 0.45 < found['lost'] / found['sent'] < 0.55
    assert f'published {found["received"] / record["seconds"]:.0f} images/s' in text


def test_number_of_nodes_for_the_cameras_follows_from_the_recorded_figures():
    page = (ROOT / 'docs' / 'operation.md').read_text(encoding='utf-8')
    text = ' '.join(section(page, 'Several nodes').split())
    rounds, seconds = node_rounds()
    lost = [each['lost'] / each['sent'] for each in rounds['one']]
    assert 'lost a quarter to a third of the images. Two nodes on the same GPU lost none.' in text
    assert 0.24 < min(lost) < max(lost) < 0.34
    published = [each['received'] / seconds for each in rounds['one']]
    assert 'one node published about 1,000 images per second' in text
    assert round(min(published), -2) == 1000
    assert '| up to 900 images per second |' in page
    assert 1 - 900 / min(published) > 0.05  # the margin


def test_first_sentence_after_the_table_follows_from_the_recorded_figures():
    first = ' '.join(BENCHMARKS[: BENCHMARKS.index('**A part of this')].split())
    words = 'a third to a half of the latency and a quarter of the CPU time of these two rclpy'
    assert words in first
    ratios = {'p50_ms': [], 'p95_ms': [], 'p99_ms': [], 'cpu_ms': []}
    for case in load('benchmarks/gpu/peers_dds.json')['cases']:
        ours, *others = (case['medians'][side] for side in ('ours', 'ultralytics', 'onnxruntime'))
        for key, found in ratios.items():
            found += [ours[key] / other[key] for other in others]
    latency = [*ratios['p50_ms'], *ratios['p95_ms'], *ratios['p99_ms']]
    assert 0.29 < min(latency) < 0.34
    assert 0.45 < max(latency) < 0.5
    assert 0.2 < min(ratios['cpu_ms']) < max(ratios['cpu_ms']) < 0.27


def test_memory_of_rclpy_nodes_equals_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'Against rclpy nodes').split())
    record = load('benchmarks/gpu/peers_dds.json')
    one, four = (case['medians'] for case in record['cases'])
    mib = {side: figures['gpu_mib'] for side, figures in one.items()}
    assert (
        f'Ultralytics {mib["ultralytics"]:.0f} MiB, ONNX Runtime {mib["onnxruntime"]:.0f}' in text
    )
    assert f' MiB, the node {mib["ours"]:.0f} MiB.' in text
    others = 'ultralytics', 'onnxruntime'
    assert max(mib[side] for side in others) < mib['ours']
    assert min(four[side]['gpu_mib'] for side in others) > four['ours']['gpu_mib']


def test_lost_images_of_rclpy_nodes_equal_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'Against rclpy nodes').split())

    def lost(name):
        return [
            (side, each['lost'], each['sent'])
            for case in load(f'benchmarks/gpu/{name}.json')['cases']
            for side, found in case['sides'].items()
            for each in found['rounds']
            if each['lost']
        ]

    assert lost('peers_dds') == []
    ((side, count, sent),) = lost('peers_dds_ultralytics')
    assert side == 'ultralytics'
    assert f'Ultralytics lost {count} of {sent} images in one of three rounds' in text


def test_answers_at_the_top_of_the_page_equal_the_recorded_figures():
    text = ' '.join(BENCHMARKS[: BENCHMARKS.index('## What to choose')].split())
    rates = load('benchmarks/gpu/peers.json')['medians']
    simple, ours = (rates[side]['frames_per_s'] for side in ('tensorrt', 'ours_python'))
    words = "program processes {:.0f} frames/s, and this package's `tp.load` [{:.0f}]"
    assert words.format(simple, ours) in text
    rate = bag_medians()[0]['workers_1']['images_per_s']
    assert f'[{rate:.0f} JPEG images/s](#bags) with a worker on an H200' in text
    jpeg = load('benchmarks/gpu/jpeg_cameras.json')
    raw = max(case['count'] for case in load('benchmarks/gpu/cameras.json')['cases'])
    assert f': {raw} raw or {jpeg["count"]} JPEG cameras' in text


def _range(rounds, key):
    figures = [each[key] for each in rounds]
    return f'{min(figures):.1f} to {max(figures):.1f} ms'


_CAMERA_FIGURES = {'p50_ms': 1, 'p95_ms': 1, 'p99_ms': 1, 'cpu_percent': 0, 'gpu_mib': 0}


def _camera_rows(case):
    """Return three rows: medians of one node and of a node each, and the ratios of the rounds."""
    cameras = f'{case["count"]} {case["timing"]}'
    sides = {'one for all': 'one', 'one each': 'many'}
    found = [[cameras, title] for title in sides]
    ratios = [cameras, 'ratio, median (range)']
    for key, digits in _CAMERA_FIGURES.items():
        one, many = ([each[key] for each in case['rounds'][side]] for side in sides.values())
        for row, values in zip(found, (one, many), strict=True):
            row.append(f'{statistics.median(values):.{digits}f}')
        each = [first / second for first, second in zip(one, many, strict=True)]
        median, low, high = (f'{f(each):.2f}' for f in (statistics.median, min, max))
        ratios.append(median if low == high else f'{median} ({low}–{high})')
    return [*found, ratios]


_VIEW_FIGURES = ['p50_ms', 'p95_ms', 'p99_ms', 'cpu_ms']


def test_cost_of_a_viewer_equals_the_recorded_figures():
    names = '30hz', 'full_load'
    slow, full = (load(f'benchmarks/gpu/annotations_{name}.json') for name in names)
    expected = []
    for title, record in (('30 Hz', slow), ('full load', full)):
        for answer, side in (('no', 'without'), ('yes', 'with')):
            found = record['medians'][side]
            cells = (f'{found[key]:.1f}' for key in _VIEW_FIGURES)
            expected.append([title, answer, f'{found["images_per_s"]:.4g}', *cells])
    ratios = [slow['medians']['with / without'][key] for key in ('images_per_s', *_VIEW_FIGURES)]
    name = 'ratio, median of the rounds'
    expected.insert(2, ['30 Hz', name, *(f'{ratio:.3f}' for ratio in ratios)])
    assert rows(section(BENCHMARKS, 'Annotations with and without a viewer')) == expected
    assert max(abs(ratio - 1) for ratio in ratios[:-1]) < 0.02
    assert [set(record['objects'].values()) for record in (slow, full)] == [{8}, {8}]
    assert [len(record['rounds']['with']) for record in (slow, full)] == [6, 1]
    assert (slow['seconds'], full['seconds'], full['count'], full['rate']) == (5, 4, 8, 200)


def test_text_about_a_viewer_equals_the_recorded_figures():
    slow, full, earlier = (
        load(f'benchmarks/gpu/annotations_{name}.json')
        for name in ('30hz', 'full_load', '300_boxes_earlier')
    )
    text = ' '.join(section(BENCHMARKS, 'Annotations with and without a viewer').split())
    sides = slow['rounds']['with'], slow['rounds']['without']
    ratios = [one['p99_ms'] / other['p99_ms'] for one, other in zip(*sides, strict=True)]
    assert f'varies from round to round: {min(ratios):.2f} to {max(ratios):.2f}.' in text
    assert {each['lost'] for side in sides for each in side} == {0}
    assert {each['sent'] for side in sides for each in side} == {150, 151}
    viewers = slow['viewer'], full['viewer']
    assert [viewer['compared'] for viewer in viewers] == [viewer['equal'] for viewer in viewers]
    words = 'compared {} messages at 30 Hz and {} at full load'
    assert words.format(*(viewer['compared'] for viewer in viewers)) in text
    with_it, without = (full['medians'][side]['images_per_s'] for side in ('with', 'without'))
    assert 1 - with_it / without > 1 / 3
    assert 'a third of the rate' in text
    page = (ROOT / 'docs' / 'view.md').read_text(encoding='utf-8')
    more, less = (slow['medians'][side]['cpu_ms'] for side in ('with', 'without'))
    short = ' '.join(section(BENCHMARKS, 'A viewer of annotations').split())
    assert f'costs {more - less:.1f} ms of CPU time per image at 30 Hz' in short
    assert 'a third of the rate' in short
    assert f'took {more - less:.1f} ms more CPU time per image' in ' '.join(page.split())
    used = [earlier['medians'][side]['cpu_ms'] for side in ('with', 'without')]
    assert set(earlier['objects'].values()) == {300}
    assert f'Earlier, 300 boxes took {used[0] - used[1]:.0f} ms more CPU time' in text


def test_reliability_figures_equal_the_recorded_figures():
    text = (ROOT / 'docs' / 'reliability.md').read_text(encoding='utf-8')
    runs = soak_figures('cpu', 'many_cameras')
    assert rows(section(text, 'Long runs')) == [
        [*run, measured(figure, 'limit'), measured(figure, 'value')]
        for run, figure in runs.items()
        if figure['limit']
    ]


def test_promises_that_allow_no_failure_were_kept():
    text = (ROOT / 'docs' / 'reliability.md').read_text(encoding='utf-8')
    files = [load(f'reliability/{name}.json') for name in ('cpu', 'rclpy', 'many_cameras')]
    figures = [each for file in files for run in file['figures'].values() for each in run]
    zero = [figure for figure in figures if not figure['limit']]
    assert f'Another {len(zero)} promises allow no case' in text
    assert [figure for figure in figures if figure['value'] > figure['limit']] == []


def test_what_was_run_equals_the_records():
    page = (ROOT / 'docs' / 'platforms.md').read_text(encoding='utf-8')
    tested = rows(section(page, 'What was tested'))[0][0]
    engines = ' '.join(itertools.chain(*rows(section(page, 'What was run on a GPU'))))
    for name in ('cpu', 'rclpy', 'many_cameras'):
        machine = load(f'reliability/{name}.json')['machine']
        python = '.'.join(machine['python'].split('.')[:2])
        assert f'ROS 2 {machine["ros"].capitalize()} ' in tested
        assert f'Python {python}' in tested
    pins = (ROOT / 'requirements' / 'common.txt').read_text(encoding='utf-8')
    release = re.search(r'^onnxruntime==(\d+\.\d+)', pins, re.MULTILINE)[1]
    assert f'ONNX Runtime {release} on the CPU' in tested
    records = ' '.join(path.read_text('utf-8') for path in DATA.rglob('*.json'))
    gpus = set(re.findall(r'NVIDIA (\w+)', records)) - {'UNIX'}
    summary = dict(rows(section(README, 'Where it runs')))['run']
    assert {gpu for gpu in gpus if gpu not in engines or gpu not in summary} == set()
    assert re.search(r'TensorRT-RTX [\d.]+', engines)[0] in summary
    precisions = re.findall(r'digits_([a-z]+\d+)\.engine', records)
    assert set(map(str.upper, precisions)) == set(re.findall(r'\b[A-Z]+\d+\b', engines)) - gpus


def soak_figures(*names):
    """Map the run and the promise of each soak to its figure.

    Of several diagnostics with equal limits, the result has only the slowest.
    """
    found = {}
    for name in names:
        for run, figures in load(f'reliability/{name}.json')['figures'].items():
            diagnostics = [
                figure for figure in figures if figure['promise'].startswith('reported: ')
            ]
            limits = [figure['limit'] for figure in diagnostics]
            same = [figure for figure in diagnostics if limits.count(figure['limit']) > 1]
            if same:
                slowest = max(same, key=lambda figure: figure['value'])
                summary = {**slowest, 'promise': f'slowest diagnostic of {len(same)}'}
                figures = [*(figure for figure in figures if figure not in same), summary]
            found |= {(run, figure['promise']): figure for figure in figures}
    return found


def measured(figure, key):
    return f'{figure[key]:.3g} {figure["unit"]}'.strip()


def test_figures_of_tracks_equal_the_recorded_figures():
    text = section(BENCHMARKS, 'Tracker compared with trackers')
    record = load('benchmarks/tracks.json')
    sides = 'trackers', 'same_rules', 'defaults'
    times = record['ms_per_update']
    assert rows(text) == [
        *(
            [name, *(f'{hota[side]:.1f}' for side in sides)]
            for name, hota in record['hota'].items()
        ),
        *(
            [
                f'{count} objects',
                *(f'{each[side]:.2f} ms' for side in ('trackers', 'ours')),
                f'{each["ours"] / each["trackers"]:.2f}',
            ]
            for count, each in times.items()
        ),
    ]
    words = ' '.join(text.split())
    assert f'`trackers` {record["versions"]["trackers"]} ' in words
    assert f'the mean of {record["scenes"]} simulated scenes' in words


def test_cost_of_tracks_in_the_node_equals_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'Tracker compared with trackers').split())
    record = load('benchmarks/gpu/tracks_load.json')['load']
    assert (record['cameras'], record['objects'], record['rate_hz']) == (16, 30, 30)
    p50, p99, cpu = (record['differences_ms'][key] for key in ('p50_ms', 'p99_ms', 'cpu_ms'))
    assert f'added {min(p50):.2f} to {max(p50):.2f} ms to the p50' in text
    assert f'{min(cpu):.2f} to {max(cpu):.2f} ms of CPU time' in text
    assert 'it changed by {:.1f}, {:.1f} and {:.1f} ms'.format(*p99) in text
    off = [each['p99_ms'] for each in record['rounds']['off']]
    assert max(off) - min(off) > max(map(abs, p99))
    assert [each['lost'] for each in record['rounds']['on']] == [0, 0, 0]
    assert f'at least {record["least_frames_per_s"]["on"]:.0f} results per second' in text
    page = (ROOT / 'docs' / 'tracks.md').read_text(encoding='utf-8')
    assert f'[{min(cpu):.1f} to {max(cpu):.1f} ms]' in section(page, 'How good it is')


def bag_medians():
    """Return the medians of the records of JPEG and of raw images."""
    return [load(f'benchmarks/gpu/bags_{name}.json')['medians'] for name in ('jpeg', 'raw')]


def test_figures_of_bags_equal_the_recorded_figures():
    jpeg, raw = bag_medians()
    expected = []
    for name, medians, count in (('JPEG', jpeg, 1), ('JPEG', jpeg, 2), ('raw', raw, 1)):
        side = f'workers_{count}'
        found = medians[side]
        share = medians['ratios'][f'{side} to pipeline']['images_per_s']
        expected.append(
            [
                *(name, f'{count}, {count}', f'{found["images_per_s"]:.0f}'),
                *(f'{found["images_per_s"] / 30:.0f}', f'{share:.2f}'),
                *(f'{found["cpu_ms"]:.1f} ms', f'{found["images_per_s_of_command"]:.0f}'),
            ]
        )
    one, other = ([*medians['steps'].values()][:3] for medians in (jpeg, raw))
    steps = [[f'{rate:.0f}' for rate in rates] for rates in zip(one, other, strict=True)]
    assert rows(section(BENCHMARKS, 'Bags')) == expected
    assert [cells for _, *cells in rows(section(BENCHMARKS, 'What limits detect_bag'))] == steps
    text = ' '.join(section(BENCHMARKS, 'Bags').split())
    jpeg_model, raw_model = (each['pipeline']['images_per_s'] for each in (jpeg, raw))
    assert (
        f'{jpeg_model:.0f} images/s with the model of the JPEG bag, {raw_model:.0f} with' in text
    )


def test_limits_of_bags_follow_from_the_recorded_figures():
    jpeg, raw = bag_medians()
    text = ' '.join(section(BENCHMARKS, 'What limits detect_bag').split())
    _, decode, model = [*jpeg['steps'].values()][:3]
    record = load('benchmarks/gpu/bags_jpeg.json')
    one, other = (each['images_per_s'] for each in record['sides']['workers_1'])
    both = 1 / (1 / decode + 1 / model)
    assert f'one after the other, it would process {both:.0f} images/s.' in text
    assert f'One worker processed {one:.0f} and {other:.0f} images/s in two rounds.' in text
    assert 0.9 < one / both < other / both < 1
    ratio = jpeg['ratios']['workers_2 to workers_1']['images_per_s']
    assert f'the rate was {ratio:.2f} times as high' in text
    gigabytes = raw['steps']['read'] * 1920 * 1080 * 3 / 1e9
    assert f'One thread reads {gigabytes:.1f} GB/s.' in text
    assert raw['steps']['read'] < raw['steps']['model'] / 9
    checksum = load('benchmarks/gpu/bags_checksum.json')
    times = *checksum['crc32_ms'].values(), 1000 / raw['steps']['read']
    words = 'takes {:.1f} to {:.1f} ms on such a machine, of the {:.1f} ms for reading one.'
    assert words.format(*times) in text
    assert f'A copy of the image takes {checksum["copy_ms"]["median"]:.1f} ms' in text
    assert set(record['digests']) == {'workers_1', 'workers_2'}
    assert len(set(record['digests'].values())) == 1


def test_bag_with_a_slow_model_has_the_recorded_share_of_the_models_rate():
    record = load('benchmarks/bags_model_limit.json')
    medians = record['medians']
    share = medians['ratios']['workers_1 to pipeline']['images_per_s']
    text = ' '.join(section(BENCHMARKS, 'What limits detect_bag').split())
    rate, limit = (medians[side]['images_per_s'] for side in ('workers_1', 'pipeline'))
    assert f'processed {rate:.1f} images/s, **{share:.2f}** of the {limit:.1f} of' in text
    assert f'alone would reach {medians["steps"]["read and decode"]:,.0f} images/s' in text
    assert f'{record["settings"]["images"]:,} JPEG images of 640 x 480' in text
    assert [len(record['sides'][side]) for side in ('workers_1', 'pipeline')] == [3, 3]


def test_gain_of_reading_raw_images_equals_the_recorded_figures():
    record = load('benchmarks/bags_reading.json')
    sides = record['sides']
    rounds = len(sides['before'])

    def median_ms(side, step='read'):
        return statistics.median(figures[step] for figures in sides[side])

    def median_ratio(side, step='read'):
        pairs = zip(sides[side], sides['before'], strict=True)
        return statistics.median(now[step] / before[step] for now, before in pairs)

    text = ' '.join(section(BENCHMARKS, 'What limits detect_bag').split())
    with_zlib_ng, without = median_ratio('zlib-ng'), median_ratio('without zlib-ng')
    assert (
        f'Reading a raw image takes {with_zlib_ng:.2f} of the CPU time before; '
        f'without zlib-ng, it takes {without:.2f}.'
    ) in text
    times = [median_ms(side) for side in ('before', 'zlib-ng', 'without zlib-ng')]
    words = 'reading are {:.1f} ms before, {:.1f} ms now, and {:.1f} ms without zlib-ng.'
    assert words.format(*times) in text
    decoded = median_ratio('zlib-ng', 'read and decode')
    assert f'With decoding, the share is {decoded:.2f} instead of {with_zlib_ng:.2f}.' in text
    images = record['settings']['images']
    assert f'medians of {rounds} rounds in turn on the CPU machine, with {images} images' in text
    assert with_zlib_ng < without / 1.3


def test_other_pages_have_the_recorded_figures_of_bags():
    jpeg, raw = bag_medians()
    rate = jpeg['workers_1']['images_per_s']
    texts = [
        ' '.join((ROOT / 'docs' / f'{name}.md').read_text(encoding='utf-8').split())
        for name in ('bags', 'bags_many')
    ]
    assert f'One worker processed {rate:.0f} JPEG images' in texts[0]
    assert f'{rate / 30:.0f} times real time at 30 Hz' in texts[0]
    assert f'and {raw["workers_1"]["images_per_s"]:.0f} raw ones' in texts[0]
    ratio = jpeg['ratios']['workers_2 to workers_1']['images_per_s']
    assert f'processed {ratio:.2f} times as many JPEG images' in texts[1]
    record = load('benchmarks/gpu/bags_ray.json')
    ray, plain = (record['medians'][side]['images_per_s'] for side in ('ray_2', 'workers_2'))
    assert f'processed {ray:,.0f} JPEG images per second with Ray and {plain:,.0f}' in texts[1]
    digests = record['digests']
    assert digests['ray_2'] == digests['workers_2']
    assert [len(record['sides'][side]) for side in digests] == [1, 1]


def test_results_of_bags_equal_those_of_the_python_api():
    tasks = load('benchmarks/gpu/bags_tasks.json')['tasks']
    segment, depth, semantic = (tasks[name] for name in ('segment', 'depth', 'semantic'))
    same = 'raw equals Python API (boxes within 0.001 px, scores and classes exact)'
    assert segment[same]
    assert segment['raw masks against Python API: share of different pixels'] == 0
    assert semantic['classes, raw against Python API: share of different pixels'] == 0
    assert depth['depth, raw against Python API']['largest relative difference'] < 1e-5
    assert {task['images'] for task in tasks.values()} == {24}


def test_figures_without_a_gpu_equal_the_recorded_figures():
    text = ' '.join(section(BENCHMARKS, 'Without a GPU').split())
    record = load('benchmarks/cpu.json')
    (model,) = record['models']
    (pipeline,) = model['pipelines']
    assert record['options']['parameters']['cpu_threads'] == 1
    assert set(record['images']) == {'1920x1080 bgr8'}
    assert f'**{pipeline["frames_per_s"]:.1f}** frames/s of 1080p' in text
    assert f'Each frame took {pipeline["latency_ms"]["p50"]:.0f} ms' in text
    rate = f'[{pipeline["frames_per_s"]:.0f} frames/s](#without-a-gpu) with one thread'
    assert rate in BENCHMARKS[: BENCHMARKS.index('## What to choose')]


def test_calls_of_onnx_runtime_on_a_gpu_equal_the_recorded_figures():
    page = (ROOT / 'docs' / 'platforms.md').read_text(encoding='utf-8')
    names = 'onnx_session', 'onnx_session_later'
    records = [load(f'benchmarks/gpu/{name}.json') for name in names]
    text = section(page, 'ONNX Runtime on a GPU')
    cores = [f'one H200, {record["machine"]["cores"]} cores' for record in records]
    assert f'| session | {" | ".join(cores)} |' in text
    assert [times for _, *times in rows(text)] == [
        [f'{record["medians_ms"][key]:.2f} ms' for record in records]
        for key in ('ours', 'bound', 'on_device')
    ]
    assert [record['max_difference'] for record in records] == [0, 0]
    ratios = [record['ratios']['ours / bound'] for record in records]
    assert 0.95 < min(ratios) < max(ratios) < 1.05


def test_tracker_is_as_good_as_trackers_and_faster():
    record = load('benchmarks/tracks.json')
    assert [
        name
        for name, hota in record['hota'].items()
        if hota['same_rules'] < hota['trackers'] - 0.1
    ] == []
    ratios = {
        count: each['ours'] / each['trackers'] for count, each in record['ms_per_update'].items()
    }
    assert ratios['100'] <= 0.25
    assert ratios['300'] <= 0.4
    low, high = (100 * limit(ratios.values()) for limit in (min, max))
    text = ' '.join(section(BENCHMARKS, 'Tracker compared with trackers').split())
    assert f'takes {low:.0f} to {high:.0f} % of its time' in text
    page = (ROOT / 'docs' / 'tracks.md').read_text(encoding='utf-8')
    assert f'in {low:.0f} to {high:.0f} % of its time' in section(page, 'How good it is')


def test_identity_switches_equal_the_recorded_figures():
    text = section(BENCHMARKS, 'Identity switches')
    record = load('benchmarks/track_switches.json')

    def mean(figures, digits=1):
        rates = [scene['switches_per_100_images'] for scene in figures['seeds'].values()]
        return f'{statistics.mean(rates):.{digits}f}'

    assert rows(text) == [
        [f'{scene}, {rate}', mean(sides['trackers']), mean(sides['ours'])]
        for scene, rates in record['scenes'].items()
        for rate, sides in rates.items()
    ]
    less = [
        100 - 100 * float(mean(sides['ours'], 9)) / float(mean(sides['trackers'], 9))
        for rates in record['scenes'].values()
        for sides in rates.values()
    ]
    page = (ROOT / 'docs' / 'tracks.md').read_text(encoding='utf-8')
    summary = ' '.join(section(page, 'How good it is').split())
    assert f'ids switch {min(less):.0f} to {max(less):.0f} % less often than' in summary
    walking = record['scenes']['walking']
    slow, fast = (mean(walking[rate]['ours'], 0) for rate in ('15 Hz', '30 Hz'))
    assert f'{slow} times per 100 images at 15 Hz, and {fast} times at 30 Hz' in summary
    counts = {
        len(figures['seeds'])
        for rates in record['scenes'].values()
        for sides in rates.values()
        for figures in sides.values()
    }
    words = ' '.join(text.split())
    assert f'the mean of {counts.pop()} scenes of {record["images"]} images' in words
    assert not counts
    over_dds = {
        scene: load(f'benchmarks/track_switches_dds_{scene}.json')['crossing']
        for scene in record['scenes']
    }
    walking, crowded = map(mean, over_dds.values())
    assert f'{walking} switches per 100 images in *walking* and {crowded} in *crowded*' in words
    for scene, figures in over_dds.items():
        assert (figures['scene'], figures['sent_hz'], len(figures['seeds'])) == (scene, 15, 5)
        assert not any(each['unanswered'] for each in figures['seeds'].values())
        assert not set(figures['seeds']) & set(record['scenes'][scene]['15 Hz']['ours']['seeds'])


def test_boxes_in_space_are_right_for_most_visible_objects():
    record = load('benchmarks/boxes_3d.json')
    assert record['figures']['visible']['mask']['largest mode']['objects'] >= 500
    shares = [
        figures[f'{side}_percent']
        for figures in (record['figures']['visible']['mask']['largest mode'],)
        for side in ('depth', 'width', 'height')
    ]
    assert min(shares) >= 95
    mask, box = (
        record['figures']['visible'][region]['largest mode']['depth_percent']
        for region in ('mask', 'box')
    )
    page = (ROOT / 'docs' / 'boxes_3d.md').read_text(encoding='utf-8')
    assert f'{mask:.1f} % of the visible objects with masks, and for {box:.1f} % with' in page
    for region in record['figures']['visible'].values():
        mode, *others = (figures['depth_percent'] for figures in region.values())
        assert mode > max(others) + 10
