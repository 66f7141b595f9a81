"""Figures in the pages are those that were recorded."""

import functools
import json
import operator
import statistics

import pytest

from support.docs_pages import BENCHMARKS, ROOT, TRANSPORT, codes, rows, section

DATA = ROOT / 'docs' / 'data'
GPU_PAGE = (ROOT / 'docs' / 'benchmarks' / 'gpu.md').read_text(encoding='utf-8')


def test_benchmark_figures_are_the_recorded_ones():
    folder = DATA / 'benchmarks'
    frame_path = json.loads((folder / 'frame_path.json').read_text(encoding='utf-8'))
    assert f'**{frame_path["ratio"]:.2f}**' in BENCHMARKS
    assert frame_path['ratio'] <= 0.80
    transport = json.loads((folder / 'transport.json').read_text(encoding='utf-8'))
    for text in (section(BENCHMARKS, 'Transport'), TRANSPORT):
        told = {cell: figures for cell, *figures in rows(text)}
        assert set(told) == set(transport['medians'])
        for case, row in transport['medians'].items():
            expected = [f'{100 * row["arrived"]:.0f} %']
            expected += [f'{row[key]:.1f} ms' for key in ('p50_ms', 'cpu_ms')]
            assert [cell for cell in told[case] if cell in expected] == expected


def test_figures_of_cameras_are_the_recorded_ones():
    folder = DATA / 'benchmarks'
    intake = json.loads((folder / 'intake.json').read_text(encoding='utf-8'))
    assert rows(section(BENCHMARKS, 'Several cameras')) == [
        [
            f'{case["kind"]}, {case["cameras"]}, {case["way"]}',
            f'{100 * case["median"]["taken"]:.0f} %',
            *(f'{case["median"][key]:.2f} ms' for key in INTAKE_FIGURES),
        ]
        for case in intake['cases']
    ]
    camera = json.loads((folder / 'camera.json').read_text(encoding='utf-8'))
    told = [cells[2:] for cells in rows(section(BENCHMARKS, "Where a camera's milliseconds go"))]
    parts = [case['parts_ms'].values() for case in camera['cases']]
    assert told == [[f'{part:.2f} ms' for part in row] for row in zip(*parts, strict=True)]
    picture = (ROOT / 'docs' / 'images' / 'camera_milliseconds.svg').read_text(encoding='utf-8')
    for part_ms in parts:
        assert f'>{sum(part_ms):.2f} ms<' in picture


INTAKE_FIGURES = ('p50_ms', 'p99_ms', 'cpu_ms', 'locked_ms')


@pytest.mark.parametrize(
    ('title', 'files', 'suffix'),
    [
        ('The digits in several precisions', ['digits_cpu'], '.onnx'),
        ('On a GPU', ['digits_gpu', 'digits_gpu_tf32'], ''),
    ],
)
def test_accuracy_figures_are_the_recorded_ones(title, files, suffix):
    text = (ROOT / 'docs' / 'accuracy.md').read_text(encoding='utf-8')
    models = {}
    for file in files:
        recorded = DATA / 'accuracy' / f'{file}.json'
        models |= json.loads(recorded.read_text(encoding='utf-8'))['models']
    told = {f'digits_{name.strip("`")}{suffix}': row for name, *row in rows(section(text, title))}
    assert set(told) == set(models)
    for name, (m_ap, m_ap50, m_ap75, shares, f1) in told.items():
        metrics, at = models[name]['metrics'], models[name]['at_threshold']
        assert [m_ap, m_ap50, m_ap75] == [f'{metrics[k]:.3f}' for k in ('mAP', 'mAP50', 'mAP75')]
        assert shares == f'{at["precision"]:.3f}, {at["recall"]:.3f}'
        agreement = models[name].get('agreement')
        assert f1 == (f'{agreement["F1"]:.4f}' if agreement else '')


GPU_STEPS = {
    'engine, graph replay (*E*)': 'engine_graph',
    'engine, plain enqueue': 'engine_enqueue',
    'upload of the 2.1 MB that are read': 'upload',
    'letterbox kernel': 'letterbox',
    'filter and NMS, 300 boxes left': 'decode',
    'one graph: letterbox, engine, filter, NMS': 'graph',
    'upload and graph': 'upload_graph',
}


def test_gpu_figures_are_the_recorded_ones():
    folder = DATA / 'benchmarks'
    told = {head: cells for head, *cells in rows(GPU_PAGE)}

    def recorded(name):
        path = folder / 'gpu' / f'reference_fp16_{name}.json'
        return json.loads(path.read_text(encoding='utf-8'))['models'][0]

    files = sorted((folder / 'gpu').glob('reference_fp16_run?.json'))
    runs = [recorded(path.stem.removeprefix('reference_fp16_')) for path in files]

    def median(*keys):
        return statistics.median(functools.reduce(operator.getitem, keys, run) for run in runs)

    for index, depth in enumerate(('1', '2', '3 (default)', '4', '8')):
        pipeline, ratio = ('pipelines', index), ('ratios', index)
        assert told[depth] == [
            f'{median(*pipeline, "frames_per_s"):.0f}',
            f'{median(*ratio, "throughput_x_engine"):.2f}',
            f'{median(*pipeline, "latency_ms", "p50"):.2f} ms',
            f'{median(*ratio, "p50_minus_engine_ms"):.2f} ms',
            f'{median(*ratio, "p99_over_p50"):.2f}',
            f'{median(*pipeline, "enqueue_ms", "mean"):.2f} ms',
            f'{median(*pipeline, "device_memory_bytes") / 2**20:.0f} MiB',
        ]
    for head, name in GPU_STEPS.items():
        mean = median('stages', name, 'mean_ms')
        assert told[head] == [f'{mean:.4f}' if name == 'letterbox' else f'{mean:.3f}'], head
    encodings = {name: cells for head, cells in told.items() for name in codes(head)}
    for name, time in recorded('encodings')['encodings'].items():
        size, upload, letterbox = encodings[name]
        assert size == f'{time["frame_bytes"] / 1e6:.2f}'
        assert upload == f'{time["upload_ms"]:.3f}'
        assert letterbox == f'{time["letterbox_ms"] * 1e3:.1f}'


def test_figures_of_bare_loops_are_the_recorded_ones():
    folder = DATA / 'benchmarks'
    told = {head: cells for head, *cells in rows(GPU_PAGE)}
    text = (folder / 'gpu' / 'reference_fp16_streams.json').read_text(encoding='utf-8')
    for run in json.loads(text):
        depth, bare, ratios = run['depth'], run['bare'], run['ratios']
        rates = bare['engines'], bare['whole'], run['pipeline']['frames_per_s']
        assert told[f'{depth} stream{"s" if depth > 1 else ""}'] == [
            *(f'{rate:.0f}' for rate in rates),
            *(f'{ratios[name]:.2f}' for name in ('engines', 'whole')),
        ]


def test_figures_of_antialiasing_are_the_recorded_ones():
    folder = DATA / 'benchmarks'
    told = {head: cells for head, *cells in rows(GPU_PAGE)}
    text = (folder / 'gpu' / 'antialias_letterbox.json').read_text(encoding='utf-8')
    recorded = {(row['size'][1], row['encoding']): row for row in json.loads(text)['letterbox']}
    for name in ('bgr8', 'mono8', 'mono16', 'nv12', 'bayer_rggb8'):
        small, large = recorded[1080, name], recorded[2160, name]
        figures = small['plain'], small['antialias'], large['antialias']
        assert told[name] == [f'{figure:.1f}' for figure in figures]


@pytest.mark.parametrize(
    ('title', 'file'),
    [('Long runs', 'cpu'), ('By rclpy', 'rclpy'), ('Many cameras', 'many_cameras')],
)
def test_reliability_figures_are_the_recorded_ones(title, file):
    text = (ROOT / 'docs' / 'reliability.md').read_text(encoding='utf-8')
    recorded = DATA / 'reliability' / f'{file}.json'
    runs = json.loads(recorded.read_text(encoding='utf-8'))['figures']
    if 'faults' in runs:
        shorten(runs)
    expected = [
        [
            name,
            figure['promise'],
            *(f'{figure[key]:.3g} {figure["unit"]}'.strip() for key in ('limit', 'value')),
        ]
        for name, figures in runs.items()
        for figure in figures
    ]
    assert rows(section(text, title)) == expected


def shorten(runs):
    """Make one figure of all diagnostics of faults: the slowest."""
    said = [figure for figure in runs['faults'] if figure['promise'].startswith('said: ')]
    slowest = max(said, key=lambda figure: figure['value'])
    rest = [figure for figure in runs['faults'] if figure not in said]
    runs['faults'] = [{**slowest, 'promise': f'slowest diagnostic of {len(said)}'}, *rest]
