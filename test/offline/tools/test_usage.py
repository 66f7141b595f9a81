# SPDX-License-Identifier: Apache-2.0
"""Wrong command lines end with exit code 2 and change no file.

The messages are in test/golden/tools.
"""

import importlib
import re
import shlex

import cv2
import numpy as np
import pytest

from support import golden
from support.models.tiny_model import CLASS_NAMES, write_tiny_model
from support.optional_packages import needs
from support.oracles.evaluation_support import truth, written

EVALUATE = 'MODEL --images IMAGES --annotations TRUTH'
DETECT = 'MODEL --source IMAGES'
BUILD = (
    'build_engine',
    'offline/tools/usage_build_engine.txt',
    ['gone.onnx', 'MODEL --plugins p.so', 'MODEL --onnx gone.onnx'],
)
TOOLS = [
    (
        'evaluate_engine',
        'offline/tools/usage_evaluate_engine.txt',
        [
            'MODEL',
            'gone.onnx --images IMAGES --annotations TRUTH',
            'gone.engine --images IMAGES --annotations TRUTH',
            'MODEL --images gone --annotations TRUTH',
            'MODEL --images EMPTY --annotations TRUTH',
            'MODEL --images IMAGES --annotations gone',
            'MODEL --images IMAGES --annotations OTHER --allow-missing',
            'MODEL --images IMAGES',
            'MODEL SECOND --images IMAGES --worst a',
            'MODEL MODEL --images IMAGES',
            f'{EVALUATE} --plot a.jpg',
            f'{EVALUATE} --json gone/a.json',
            f'{EVALUATE} --worst gone/a',
            f'{EVALUATE} --json /proc/a.json',
            f'{EVALUATE} --plot /proc/a.png',
            f'{EVALUATE} --worst /proc/a',
            f'{EVALUATE} --results /proc',
            f"{EVALUATE} --json ''",
            f'{EVALUATE} --json ~nobody-here/a',
            f'{EVALUATE} --class-map gone.json',
            f'{EVALUATE} --confidence 2',
            f'{EVALUATE} --max-detections 0',
            f'{EVALUATE} --param decoder=quux',
            f'{EVALUATE} --param model.std',
            f"{EVALUATE} --param 'model.std=[1'",
            f"{EVALUATE} --param 'model.std=[1, 1]'",
            f'{EVALUATE} --param model.scale=1e-3x',
            f'{EVALUATE} --param iou_threshold=0.5',
            f'{EVALUATE} --param model.decoder:=quux',
            f'{EVALUATE} --param model_decoder=quux',
            f'{EVALUATE} --param decoder=dense --param model.decoder=dense',
            f'{EVALUATE} --class-names cat dog --boxes-only',
            f'{EVALUATE} --model-decoder dense',
            f'{EVALUATE} model.class_names:=[cat]',
        ],
    ),
    (
        'detect_images',
        'offline/tools/usage_detect_images.txt',
        [
            DETECT,
            'gone.onnx --source IMAGES --output OUT',
            'gone.engine --source IMAGES --output OUT',
            "'' --source IMAGES --output OUT",
            'MODEL --source MODEL --output OUT',
            'MODEL --source gone --output OUT',
            'MODEL --source VIDEO --output OUT',
            f'{DETECT} --output MODEL',
            f'{DETECT} --output new --class-names cat dog',
            f'{DETECT} --output IMAGES',
            f'{DETECT} --output IMAGES --overwrite',
        ],
    ),
    (
        'detect_bag',
        'offline/tools/usage_detect_bag.txt',
        [
            'MODEL',
            'MODEL gone',
            'MODEL gone --output OUT',
            'gone.onnx IMAGES --output OUT',
            'MODEL IMAGES --output OUT',
            'MODEL MODEL --output OUT',
            'MODEL gone gone --output OUT',
            'MODEL IMAGES --output IMAGES',
            'MODEL IMAGES --output IMAGES/inside',
            'MODEL IMAGES --output OUT --camera front',
            'MODEL IMAGES --output OUT --camera front=image',
            'MODEL IMAGES --output OUT --camera a=/a --camera a=/b',
            'MODEL IMAGES --output OUT --start -1',
            'MODEL IMAGES --output OUT --part-s 0.01',
            'MODEL IMAGES --output OUT --workers 0',
            'MODEL IMAGES --output OUT --ray --device 0',
            'MODEL IMAGES --output OUT --ray-address gpu1',
            'MODEL IMAGES --output OUT --storage bag',
            'MODEL gone.db3 --output OUT --storage sqlite3 --compression lz4',
            'MODEL IMAGES --output OUT --confidence 2',
            'MODEL IMAGES --output OUT --device 64',
            'MODEL IMAGES --output OUT --param max_rate_hz=5',
            'MODEL IMAGES --output OUT --param tracker.type=bytetrack',
            'MODEL IMAGES --output OUT --param camera.front.iou=5',
            'MODEL IMAGES --output OUT --params-file gone.yaml',
            'MODEL IMAGES --output OUT --params-file TRUTH',
            'MODEL IMAGES --output OUT --params_file a.yaml',
            'MODEL IMAGES --output OUT --report-images 3',
            'MODEL IMAGES --output OUT --report OUT',
            'MODEL IMAGES --output OUT --report gone/page',
        ],
    ),
    (
        'benchmark_engine',
        'offline/tools/usage_benchmark_engine.txt',
        [
            '',
            'gone.onnx',
            'MODEL gone.engine',
            'model.txt',
            'MODEL --size 1920',
            'MODEL --size 0x20',
            'MODEL --size 65x1 --encoding nv12',
            "MODEL --depth '1;2'",
            'MODEL --depth 1,9',
            'MODEL --batch 1,65',
            'MODEL --batch 0',
            'MODEL --max-latency-ms 0',
            'MODEL --frames 0',
            'MODEL --param pipeline_depth=2',
            'MODEL --device 64',
            'MODEL --confidence 2',
            'MODEL --encoding jpeg',
            'MODEL --image gone.png',
            'MODEL --json gone/result.json',
            'MODEL --plot plot.jpeg',
            *(f"MODEL --seconds '{seconds}'" for seconds in ('0', '-1', 'nan', 'inf', 'x', '')),
        ],
    ),
    (
        'inspect_engine',
        'offline/tools/usage_inspect_engine.txt',
        [
            'gone.engine',
            'gone.onnx',
            'ENGINE --times many',
            'ENGINE --no-gpu --json gone/a.json',
            'x.engine --no-gpu --update-manifest',
            'x.engine --no-gpu --times 5',
            'NO_PLAN',
            'SHORT',
            'MODEL --times 5',
            'MODEL --update-manifest',
            'a.bin',
        ],
    ),
    pytest.param(*BUILD, marks=needs('onnx')),
]


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Return the paths of the files that the command lines name, by their placeholder."""
    monkeypatch.chdir(tmp_path)
    for name in ('images', 'empty'):
        (tmp_path / name).mkdir()
    cv2.imwrite('images/000.png', np.zeros((240, 320, 3), np.uint8))
    content = truth([(0, 'red', (1, 2, 30, 40))], images=1, categories=CLASS_NAMES)
    annotations = written(tmp_path, content)
    content['images'][0]['file_name'] = 'x.png'
    files = {
        'ENGINE': ('a.engine', b'vtrt' + bytes(100)),
        'NO_PLAN': ('b.engine', b'no plan at all' * 10),
        'SHORT': ('c.engine', b'vtrt'),
        'VIDEO': ('a.mp4', b'no video'),
        'BINARY': ('a.bin', b'x'),
    }
    for name, data in files.values():
        (tmp_path / name).write_bytes(data)
    return {
        'MODEL': write_tiny_model(tmp_path / 'tiny.onnx'),
        'SECOND': write_tiny_model(tmp_path / 'second.onnx'),
        'IMAGES': tmp_path / 'images',
        'EMPTY': tmp_path / 'empty',
        'TRUTH': annotations,
        'OTHER': written(tmp_path, content, 'other.json'),
        'OUT': tmp_path / 'out',
        **{word: tmp_path / name for word, (name, _) in files.items()},
    }


def exit_code_of(main, words):
    """Run a command. Return its exit code, also if argparse exits."""
    try:
        return main(words)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize(('tool', 'messages', 'lines'), TOOLS)
def test_wrong_usage_is_refused_before_any_work(tool, messages, lines, words, tmp_path, capsys):
    main = importlib.import_module(f'trt_perception.offline.tools.{tool}').main
    before = sorted(tmp_path.rglob('*'))
    printed = []
    for line in lines:
        code = exit_code_of(main, [str(words.get(word, word)) for word in shlex.split(line)])

        error = golden.without_folder(capsys.readouterr().err, tmp_path)
        assert code == 2, f'{line}: {error}'
        # Python releases list the choices in two ways, and /proc gives root another error.
        error = re.sub(r'(?<=\(choose from ).*?(?=\))|(?<=in /proc \().*?(?=\))', '…', error)
        printed.append(f'$ {tool} {line}\n{error}')
    assert sorted(tmp_path.rglob('*')) == before
    golden.check(messages, '\n'.join(printed))


#: For each tool, the options that the tool needs, and an option with one value.
FURTHER = {
    'benchmark_engine': ([], '--frames'),
    'build_engine': ([], '--workspace-mib'),
    'detect_bag': (['--output', 'c', 'b'], '--device'),
    'detect_images': (['--source', 'a', 'b', '--output', 'c'], '--device'),
    'evaluate_engine': (['--images', 'a'], '--device'),
    'export_triton': (['--repository', 'a'], '--device'),
    'inspect_engine': ([], '--layers'),
    'write_manifest': ([], '--device'),
}


def models_of(tool, words):
    """Return the models of a command line."""
    parser = importlib.import_module(f'trt_perception.offline.tools.{tool}')._parser()
    options = vars(parser.parse_args([*words, *FURTHER[tool][0]]))
    (models,) = (options[name] for name in ('model', 'models', 'onnx') if name in options)
    return [str(each) for each in (models if isinstance(models, list) else [models])]


@pytest.mark.parametrize('tool', [pytest.param(BUILD[0], marks=needs('onnx')), *FURTHER])
@pytest.mark.parametrize(
    'words',
    [
        *(['a.x'], ['--model', 'a.x'], ['--engine', 'a.x'], ['--onnx=a.x'], ['--engine-path=a.x']),
        *(['--engine_path:=a.x'], ['engine_path:=a.x'], ['engine_path=a.x']),
        *(['OPTION', '1', '--engine', 'a.x'], ['OPTION', '1', 'engine_path:=a.x', 'OPTION', '2']),
    ],
    ids=' '.join,
)
def test_model_has_the_same_names_in_all_tools(tool, words):
    words = [FURTHER[tool][1] if word == 'OPTION' else word for word in words]
    assert models_of(tool, words) == ['a.x']


@pytest.mark.parametrize('tool', ['benchmark_engine', 'evaluate_engine'])
@pytest.mark.parametrize(
    'words', [['a', 'b'], ['--engine', 'a', 'b'], ['--engine', 'a', '--model', 'b']], ids=' '.join
)
def test_tools_that_compare_models_keep_their_order(tool, words):
    assert models_of(tool, words) == ['a', 'b']


@pytest.mark.parametrize('tool', ['detect_images', 'write_manifest'])
@pytest.mark.parametrize(
    'words', [['a', '--model', 'b'], ['--engine', 'a', '--onnx', 'b'], ['--model']], ids=' '.join
)
def test_two_models_or_none_are_wrong_usage(tool, words, capsys):
    with pytest.raises(SystemExit) as end:
        models_of(tool, words)
    assert end.value.code == 2
