"""detect_images from its command line: images, videos, COCO's JSON, what it refuses."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from gpu_support import build_plan
from gpu_support import needs_tensorrt
from support_models import identity
from tiny_model import CLASS_NAMES
from tiny_model import expected_detections
from tiny_model import write_tiny_model

from trt_perception.evaluation.coco import read_annotations
from trt_perception.tools import detect_images
from trt_perception.tools import evaluate_engine

SIZE = (320, 240)
FILES = {'detections.json', 'results.json', 'summary.json'}
COLORS = {'a.png': (255, 0, 0), 'b.jpg': (0, 255, 128), 'black.bmp': (0, 0, 0)}


def run(*arguments):
    """Return the exit code, argparse's own included."""
    try:
        return detect_images.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return end.code


def picture(rgb):
    return np.full((SIZE[1], SIZE[0], 3), rgb[::-1], np.uint8)


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / 'images'
    folder.mkdir()
    for name, rgb in COLORS.items():
        cv2.imwrite(str(folder / name), picture(rgb))
    return folder


@pytest.fixture
def model(tmp_path):
    return write_tiny_model(tmp_path / 'tiny.onnx')


@pytest.fixture
def video(tmp_path):
    """Return a video of 12 frames: red, green, blue in turn, four of each."""
    path = tmp_path / 'colors.avi'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'MJPG'), 12.5, SIZE)
    assert writer.isOpened()
    for number in range(12):
        writer.write(picture(np.eye(3, dtype=int)[number // 4] * 255))
    writer.release()
    return path


def detections(folder):
    """Return {file name: [(class name, score, xywh)]}, best first."""
    content = json.loads((folder / 'detections.json').read_text())
    names = {category['id']: category['name'] for category in content['categories']}
    files = {image['id']: image['file_name'] for image in content['images']}
    result = {name: [] for name in files.values()}
    for row in content['annotations']:
        entry = names[row['category_id']], row['score'], row['bbox']
        result[files[row['image_id']]].append(entry)
    return result


def as_expected(found, rgb, **options):
    rows = [
        (name, score, [x - w / 2, y - h / 2, w, h])
        for name, score, (x, y, w, h) in expected_detections(rgb, SIZE, **options)
    ]
    assert [row[0] for row in found] == [row[0] for row in rows]
    for one, other in zip(found, rows, strict=True):
        assert one[1] == pytest.approx(other[1], abs=0.02)  # JPEG changes colours a little
        assert one[2] == pytest.approx(other[2], abs=0.01)


def drawn(path, original):
    """Tell whether a picture is the original with something drawn upon it."""
    found = cv2.imread(str(path))
    assert found.shape == original.shape
    changed = np.abs(found.astype(int) - original).max(axis=2) > 60
    return 0.001 < changed.mean() < 0.3


def test_a_folder(model, images, tmp_path, capfd):
    out = tmp_path / 'out'
    assert run('--engine', model, '--source', images, '--output', out) == 0
    output, error = capfd.readouterr()  # of OpenCV too
    assert error == ''
    names = {path.name for path in out.iterdir()}
    pictures = {'a.png', 'b.jpg', 'black.bmp.png'}
    assert names == pictures | FILES
    found = detections(out)
    assert set(found) == set(COLORS)
    for name, rgb in COLORS.items():
        as_expected(found[name], rgb)
    for name in ('a.png', 'b.jpg'):
        assert drawn(out / name, picture(COLORS[name]))
    assert (cv2.imread(str(out / 'black.bmp.png')) == 0).all()
    summary = json.loads((out / 'summary.json').read_text())
    assert summary['pictures'] == 3
    assert summary['pictures_with_detections'] == 2
    assert summary['classes'] == {'red': 2, 'green': 1, 'blue': 1}
    assert summary['model'] == 'tiny.onnx'
    assert summary['problems'] == []
    assert summary['decoder']['family'] == 'dense'
    assert summary['preprocessing']['resize'] == 'letterbox'
    assert 0 < summary['latency_ms']['p50'] <= summary['latency_ms']['p99']
    assert '4 detections in 2 of 3 images, score > 0.25' in output
    # The sources stay as they were.
    assert (cv2.imread(str(images / 'a.png')) == picture(COLORS['a.png'])).all()


def test_a_tilde_is_the_home_folder(model, images, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    assert run('--engine', model, '--source', images, '--output', '~/found') == 0
    assert (tmp_path / 'found' / 'detections.json').is_file()


def test_a_model_of_a_batch_finds_the_same(model, images, video, tmp_path):
    several = write_tiny_model(tmp_path / 'several.onnx', batch=4)
    found = []
    for path, out in ((model, tmp_path / 'one'), (several, tmp_path / 'four')):
        sources = ('--source', images, video)
        assert run('--engine', path, *sources, '--output', out, '--confidence', '0.01') == 0
        found.append(detections(out))
    assert found[0] == found[1]  # three pictures are less than a batch, twelve frames three
    assert sum(map(len, found[1].values())) == 20


def test_what_was_found_can_be_read_as_annotations(model, images, tmp_path):
    out = tmp_path / 'out'
    assert run('--engine', model, '--source', images, '--output', out, '--no-pictures') == 0
    assert {path.name for path in out.iterdir()} == FILES
    annotations = read_annotations(out / 'detections.json')
    assert list(annotations.categories.values()) == list(CLASS_NAMES)
    saved = tmp_path / 'report.json'
    from pycocotools.coco import COCO  # not on every machine with a GPU

    coco = COCO(str(out / 'detections.json'))
    results = coco.loadRes(str(out / 'results.json'))
    assert results.anns.keys() == coco.anns.keys() != set()
    for id_, row in results.anns.items():
        same = [coco.anns[id_][key] for key in ('image_id', 'category_id', 'bbox', 'score')]
        assert [row[key] for key in ('image_id', 'category_id', 'bbox', 'score')] == same
    arguments = ['--engine', model, '--images', images, '--annotations', out / 'detections.json']
    assert evaluate_engine.main([str(a) for a in [*arguments, '--json', saved]]) == 0
    (report,) = json.loads(saved.read_text())['models'].values()
    assert report['metrics']['mAP'] == pytest.approx(1)


def test_classes_and_thresholds(model, images, tmp_path):
    arguments = ['--engine', model, '--source', images, '--no-pictures', '--output']
    assert run(*arguments, tmp_path / '1', '--classes', 'blue', 'red') == 0
    assert [row[0] for row in detections(tmp_path / '1')['b.jpg']] == ['blue']
    assert run(*arguments, tmp_path / '2', '--confidence', '0.95') == 0
    as_expected(detections(tmp_path / '2')['a.png'], COLORS['a.png'], threshold=0.95)
    # Its two red boxes overlap by an IoU of 1/3.
    assert run(*arguments, tmp_path / '3', '--iou', '0.3') == 0
    assert len(detections(tmp_path / '3')['a.png']) == 1
    assert run(*arguments, tmp_path / '4', '--max-detections', '1') == 0
    assert {name: len(rows) for name, rows in detections(tmp_path / '4').items()} == {
        'a.png': 1,
        'b.jpg': 1,
        'black.bmp': 0,
    }


def test_an_unknown_class(model, images, tmp_path, capsys):
    arguments = ['--engine', model, '--source', images, '--output', tmp_path / 'out']
    assert run(*arguments, '--classes', 'purple') == 1
    printed = capsys.readouterr().err
    assert "'class_filter': expected classes of the model" in printed
    assert '(got purple' in printed
    assert not (tmp_path / 'out').exists()


def test_a_model_without_a_manifest(images, tmp_path, capsys):
    model = write_tiny_model(tmp_path / 'bare.onnx', manifest=False)
    arguments = ['--engine', model, '--source', images, '--output']
    given = ['resize=letterbox', 'color_order=rgb', 'scale=0.00392156862745098', 'decoder=dense']
    given += ['class_names=[red, green, blue]']
    for value in given:
        arguments[2:2] = ['--param', f'model.{value}']
    assert run(*arguments, tmp_path / 'out') == 0
    as_expected(detections(tmp_path / 'out')['a.png'], COLORS['a.png'])


def test_a_video_comes_back(model, video, tmp_path, capsys):
    out = tmp_path / 'out'
    assert run('--engine', model, '--source', video, '--output', out) == 0
    assert '16 detections in 12 of 12 images' in capsys.readouterr().out
    found = detections(out)
    assert list(found) == [f'colors.avi#{number:06d}' for number in range(12)]
    for number, rows in enumerate(found.values()):
        as_expected(rows, np.eye(3, dtype=int)[number // 4] * 255)
    assert {path.name for path in out.iterdir()} == {
        'colors.avi.mp4',
        'detections.json',
        'results.json',
        'summary.json',
    }
    capture = cv2.VideoCapture(str(out / 'colors.avi.mp4'))
    assert capture.get(cv2.CAP_PROP_FPS) == pytest.approx(12.5)
    frames = []
    while True:
        more, bgr = capture.read()
        if not more:
            break
        frames.append(bgr)
    assert len(frames) == 12
    for number, bgr in enumerate(frames):
        color = np.eye(3, dtype=int)[number // 4][::-1] * 255
        changed = np.abs(bgr.astype(int) - color).max(axis=2) > 60
        assert 0.001 < changed.mean() < 0.3


def test_a_video_that_is_cut_off(model, video, tmp_path, capsys):
    content = video.read_bytes()
    video.write_bytes(content[: len(content) * 2 // 3])
    code = run('--engine', model, '--source', video, '--output', tmp_path / 'out')
    frames = len(detections(tmp_path / 'out'))
    assert 0 < frames < 12
    error = capsys.readouterr().err
    # Without its index the file may no longer promise twelve.
    assert (code, 'could be decoded' in error) in ((1, True), (0, False))


def test_several_sources_keep_their_folders(model, images, tmp_path):
    other = tmp_path / 'more' / 'deep'
    other.mkdir(parents=True)
    cv2.imwrite(str(other / 'a.png'), picture((0, 0, 255)))
    out = tmp_path / 'out'
    sources = [images, f'{tmp_path}/more/**/*.png', images / 'a.png']  # one of them twice
    assert run('--engine', model, '--source', *sources, '--output', out) == 0
    assert set(detections(out)) == {
        'images/a.png',
        'images/b.jpg',
        'images/black.bmp',
        'more/deep/a.png',
    }
    assert json.loads((out / 'summary.json').read_text())['pictures'] == 4
    assert (out / 'more' / 'deep' / 'a.png').is_file()


@pytest.mark.parametrize(
    ('content', 'said'),
    [
        (b'no picture', 'a.png: cannot be decoded'),
        (cv2.imencode('.png', np.zeros((2, 32768, 3), np.uint8))[1].tobytes(), 'got 32768x2'),
    ],
    ids=['no picture', 'too long'],
)
def test_a_picture_that_cannot_be_read_is_left_out(model, images, tmp_path, capsys, content, said):
    (images / 'a.png').write_bytes(content)
    out = tmp_path / 'out'
    assert run('--engine', model, '--source', images, '--output', out) == 1
    assert said in capsys.readouterr().err
    assert set(detections(out)) == {'b.jpg', 'black.bmp'}
    as_expected(detections(out)['b.jpg'], COLORS['b.jpg'])
    (problem,) = json.loads((out / 'summary.json').read_text())['problems']
    assert 'a.png' in problem
    assert not (out / 'a.png').exists()


def test_nothing_is_replaced_unless_it_may_be(model, images, tmp_path, capsys):
    out = tmp_path / 'out'
    arguments = ['--engine', model, '--source', images, '--output', out]
    assert run(*arguments) == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    (out / 'mine.txt').write_text('kept')
    assert run(*arguments, '--confidence', '0.95') == 2
    error = capsys.readouterr().err
    assert '6 of the files to write exist there' in error
    assert '--overwrite' in error
    assert all(path.read_bytes() == content for path, content in before.items())
    assert run(*arguments, '--confidence', '0.95', '--overwrite') == 0
    assert (out / 'detections.json').read_bytes() != before[out / 'detections.json']
    assert (out / 'mine.txt').read_text() == 'kept'


@pytest.mark.parametrize('more', [(), ('--overwrite',)])
def test_sources_are_never_replaced(model, images, more, tmp_path, capsys):
    before = {path: path.read_bytes() for path in images.iterdir()}
    link = tmp_path / 'link'
    link.symlink_to(images)
    for folder in (images, link):
        arguments = ['--engine', model, '--source', images, '--output', folder]
        assert run(*arguments, *more) == 2
        assert 'is a source and would be replaced' in capsys.readouterr().err
    assert {path: path.read_bytes() for path in images.iterdir()} == before


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--engine', 'gone.onnx', '--source', 'IMAGES', '--output', 'OUT'], 'gone.onnx: cannot'),
        (
            ['--engine', '', '--source', 'IMAGES', '--output', 'OUT'],
            "engine or ONNX file (got '')",
        ),
        (
            ['--engine', 'MODEL', '--source', 'MODEL', '--output', 'OUT'],
            'its suffix says that it is no image; give',
        ),
        (['--engine', 'MODEL', '--source', 'gone', '--output', 'OUT'], 'gone: does not exist'),
        (['--engine', 'MODEL', '--source', 'IMAGES', '--output', 'MODEL'], 'there is a file'),
        (['--engine', 'MODEL', '--source', 'IMAGES'], '--output'),
        (['--engine', 'MODEL', '--source', 'NO_VIDEO', '--output', 'OUT'], 'decoded as a video'),
    ],
)
def test_wrong_usage_is_refused_before_any_work(
    model, images, tmp_path, arguments, message, capsys
):
    broken = tmp_path / 'broken.mp4'
    broken.write_bytes(b'no video')
    words = {'MODEL': model, 'IMAGES': images, 'OUT': tmp_path / 'out', 'NO_VIDEO': broken}
    assert run(*[words.get(argument, argument) for argument in arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / 'out').exists()


def test_interrupt_leaves_no_half_file(model, images, video, tmp_path, monkeypatch, capsys):
    out = tmp_path / 'out'
    add, calls = detect_images.VideoOutput.add, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        add(*arguments)

    monkeypatch.setattr(detect_images.VideoOutput, 'add', interrupted)
    assert run('--engine', model, '--source', images, video, '--output', out) == 130
    assert 'interrupted' in capsys.readouterr().err
    left = {path.relative_to(out).as_posix() for path in out.rglob('*') if path.is_file()}
    assert left == {'images/a.png', 'images/b.jpg', 'images/black.bmp.png'}


_LIMITED_VIDEO = """
import resource, sys
from pathlib import Path
import numpy as np
from trt_perception.detections import Detections
from trt_perception.errors import ConfigError
from trt_perception.tools.detection_output import VideoOutput
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
noise = np.random.default_rng(3)
nothing = Detections.empty()
try:
    with VideoOutput(Path(sys.argv[1]), 10.0, ()) as output:
        for _ in range(12):
            output.add(noise.integers(0, 256, (240, 320, 3), np.uint8), nothing)
except ConfigError as error:
    sys.exit(f'refused: {error}')
"""


@pytest.mark.parametrize(('limit', 'whole'), [(2**30, True), (20_000, False)])
def test_a_video_that_does_not_fit_on_the_disk(tmp_path, limit, whole):
    target = tmp_path / 'out' / 'a.mp4'
    command = [sys.executable, '-c', _LIMITED_VIDEO, target, str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    left = [path.name for path in target.parent.iterdir()]
    assert (done.returncode, left) == ((0, ['a.mp4']) if whole else (1, [])), done.stderr
    if not whole:
        assert f'refused: {target}: could not be written whole: expected 12 fr' in done.stderr
        assert 'MB are free there' in done.stderr


def test_a_folder_that_cannot_be_written(model, images, tmp_path, capsys):
    blocked = tmp_path / 'file'
    blocked.touch()
    out = blocked / 'out'
    assert run('--engine', model, '--source', images, '--output', out) == 1
    assert 'cannot be made' in capsys.readouterr().err
    arguments = ['--engine', model, '--source', images, '--no-pictures', '--output', '/proc']
    assert run(*arguments) == 1
    assert '/proc: cannot be written: no file can be made' in capsys.readouterr().err


@needs_tensorrt
def test_an_engine(model, images, tmp_path):
    plan = build_plan(Path(model).read_bytes())
    engine = tmp_path / 'tiny.engine'
    engine.write_bytes(plan)
    manifest = json.loads((tmp_path / 'tiny.onnx.json').read_text())
    del manifest['onnx']
    manifest['engine'] = identity(engine.name, plan)
    engine.with_name('tiny.engine.json').write_text(json.dumps(manifest))
    assert run('--engine', engine, '--source', images, '--output', tmp_path / 'out') == 0
    for name, rgb in COLORS.items():
        as_expected(detections(tmp_path / 'out')[name], rgb)
