"""Bad input of build_engine: each has its own message and exit code, and leaves nothing behind."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from detector_models import KNOWN
from detector_models import detector_model
from detector_models import listing
from detector_models import parsed_models
from detector_models import report_of
from detector_models import run
from detector_models import write_detector
from detector_models import write_images
from gpu_support import why_no_gpu
from onnx import helper
from programs import executable

from trt_perception.building.engine import release as tensorrt_release
from trt_perception.building.options.sources import load_options
from trt_perception.building.output_files import check_outputs
from trt_perception.errors import ConfigError
from trt_perception.model.manifest import manifest_path

pytest.importorskip('tensorrt_rtx', reason='needs tensorrt_rtx')
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path_factory.mktemp('cache')))


@pytest.fixture
def refused(tmp_path, capsys):
    """Run build_engine; return its message, after looking that it changed no file."""

    def refuse(*arguments, code=1):
        before = listing(tmp_path)
        capsys.readouterr()
        assert run(*arguments) == code
        assert listing(tmp_path) == before
        message = capsys.readouterr().err
        assert message.startswith('build_engine: ')
        assert 'Traceback' not in message
        return message

    return refuse


@pytest.mark.parametrize('name', ['pydantic', 'onnx'])
def test_packages_of_the_extra_that_are_missing(name):
    code = (
        f'import sys; sys.modules["{name}"] = None; '
        'from trt_perception.tools.build_engine import main; sys.exit(main(["--help"]))'
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith(f'build_engine: building engines: needs {name}, not installed')
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_while_tensorrt_is_imported(monkeypatch):
    """Its import makes another error of whatever a signal handler raises in it."""

    def importing(name):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError(name) from None
        return real(name)

    real = tensorrt_release.importlib.import_module
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(tensorrt_release.importlib, 'import_module', importing)
    with pytest.raises(KeyboardInterrupt):
        tensorrt_release.find_tensorrt('tensorrt_rtx')
    assert signal.getsignal(signal.SIGINT) is before


def test_no_such_onnx(tmp_path, refused):
    assert 'none.onnx: cannot be opened: No such file' in refused('--onnx', tmp_path / 'none.onnx')


def test_onnx_that_is_cut_off(tmp_path, refused):
    path = write_detector(tmp_path)
    path.write_bytes(path.read_bytes()[:-2000])
    assert 'is cut off after' in refused('--onnx', path, *KNOWN)


def test_something_else_than_onnx(tmp_path, refused):
    path = tmp_path / 'net.pt'
    path.write_bytes(b'PK')
    assert 'ends in .onnx' in refused('--onnx', path, code=2)


@pytest.mark.parametrize('domain', ['', 'mine'])
def test_operators_that_tensorrt_does_not_know(tmp_path, refused, domain):
    odd = helper.make_node('OddOp', ['images'], ['x'], name='layer7/odd', domain=domain)
    path = write_detector(tmp_path, before=[odd])
    message = refused('--onnx', path, *KNOWN)
    assert 'OddOp at layer7/odd' in message
    assert '--plugins' in message


def test_open_sides_without_shapes(tmp_path, refused):
    path = write_detector(tmp_path, sides=('n', 3, 64, 64))
    assert '--batch 1 does where only the first is open' in refused('--onnx', path, *KNOWN)
    path = write_detector(tmp_path, sides=(1, 3, 'h', 'w'))
    assert 'leaves sides open (1x3x?x?); give --shapes' in refused('--onnx', path, *KNOWN)


@pytest.mark.parametrize(
    ('options', 'says'),
    [
        (('--shapes', '1x3x32x32'), 'expected 1x3x64x64'),
        (('--batch', '2'), 'expected 1x3x64x64'),
        (('--input-size', '32x32'), 'expected 1x3x64x64'),
    ],
)
def test_shapes_that_the_model_does_not_take(tmp_path, refused, options, says):
    assert says in refused('--onnx', write_detector(tmp_path), *KNOWN, *options)


def test_shapes_that_are_none(tmp_path, refused):
    path = write_detector(tmp_path, sides=('n', 3, 64, 64))
    message = refused('--onnx', path, '--shapes', '4x3x64x64:1x3x64x64:8x3x64x64', code=2)
    assert 'min' in message


def test_more_than_one_image_input(tmp_path, refused):
    model = detector_model()
    model.graph.input.add().CopyFrom(model.graph.input[0])
    model.graph.input[1].name = 'mask'
    onnx.save_model(model, tmp_path / 'net.onnx')
    assert 'one image input' in refused('--onnx', tmp_path / 'net.onnx', *KNOWN)


def test_outputs_that_nobody_can_read(tmp_path, refused):
    path = write_detector(tmp_path).rename(tmp_path / 'model.onnx')
    message = refused('--onnx', path)
    assert 'model.onnx: there is no manifest (model.onnx.json)' in message
    assert 'these are unknown: --class-names' in message
    assert 'model.' not in message.replace('model.onnx', '')
    assert 'parameter' not in message


def test_what_the_loader_would_refuse_is_not_built(tmp_path, refused, monkeypatch):
    """The manifest beside the model is right; the options are not."""
    parsed = parsed_models(monkeypatch)
    digits = ROOT / 'models' / 'digits.onnx'
    given = ('--onnx', digits, '--output', tmp_path / 'x.engine')
    qdq = (*INT8, '--calibration-images', ROOT / 'demo' / 'scenes')
    qdq += ('--qdq-onnx', tmp_path / 'q.onnx')
    for more in ((), qdq):
        message = refused(*given, *more, '--class-names', 'a', 'b', 'c')
        assert 'as the decoder dense (objectness false, transposed false) reads' in message
        assert 'with 3 classes (got output0 float32[1, 14, 6000])' in message
        assert 'the decoder dense' in refused(*given, *more, '--decoder', 'yolox')
        assert 'the decoder detr' in refused(*given, *more, '--decoder', 'detr')
    assert parsed == []


def test_a_manifest_that_does_not_fit_its_model(tmp_path, refused):
    digits = ROOT / 'models' / 'digits.onnx'
    (tmp_path / 'digits.onnx').write_bytes(digits.read_bytes())
    manifest = json.loads(manifest_path(digits).read_text())
    manifest['class_names'] = manifest['class_names'][:3]
    manifest_path(tmp_path / 'digits.onnx').write_text(json.dumps(manifest))
    assert 'with 3 classes' in refused('--onnx', tmp_path / 'digits.onnx')


@pytest.mark.parametrize(
    ('kind', 'says'),
    [
        ('gray', 'expected an image of 3 channels'),
        ('uint8', 'expected --scale 1, --mean 0 and --std 1'),
    ],
)
def test_inputs_that_no_pipeline_feeds(tmp_path, refused, kind, says):
    if kind == 'gray':
        three = helper.make_node('Concat', ['images'] * 3, ['x'], axis=1)
        model = detector_model((1, 1, 64, 64), before=[three])
    else:
        cast = helper.make_node('Cast', ['images'], ['x'], to=onnx.TensorProto.FLOAT)
        model = detector_model(before=[cast])
        model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    onnx.save_model(model, tmp_path / 'net.onnx')
    assert says in refused('--onnx', tmp_path / 'net.onnx', *KNOWN)


def test_an_engine_instead_of_a_model(tmp_path, refused):
    """Whichever release built it: an engine is no source of another."""
    engine = tmp_path / 'old.engine'
    engine.write_bytes(b'ftrt' + bytes(20) + bytes((10, 3, 0, 26)) + bytes(100))
    assert "must be an ONNX model, which ends in .onnx (got 'old.engine')" in refused(
        *('--onnx', engine, '--output', tmp_path / 'new.engine'), code=2
    )
    named = engine.rename(tmp_path / 'old.onnx')
    assert 'is a TensorRT engine already' in refused('--onnx', named)


def test_labels_that_do_not_fit_cost_no_build(tmp_path, refused, monkeypatch):
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    labels = tmp_path / 'labels.json'
    parsed = parsed_models(monkeypatch)
    given = ('--onnx', path, *KNOWN, '--validate', images, '--annotations', labels)
    assert 'cannot be read: No such file' in refused(*given, code=2)
    picture = {'id': 1, 'file_name': '0.png', 'width': 96, 'height': 80}
    bird = {'id': 1, 'image_id': 1, 'category_id': 7, 'bbox': [1, 1, 9, 9]}
    content = {'images': [picture], 'annotations': [bird]}
    content['categories'] = [{'id': 7, 'name': 'bird'}]
    labels.write_text(json.dumps(content))
    message = refused(*given, code=2)
    assert 'bird' in message
    assert 'cat' in message
    assert 'give --class-names as the annotations have them' in message
    assert parsed == []


@pytest.mark.skipif(not why_no_gpu(), reason='there is a GPU')
@pytest.mark.parametrize(
    ('precision', 'reason'),
    [
        ('fp32', 'would compare FP32 with itself'),
        ('tf32', 'would compare FP32 with itself'),
        ('bf16', 'has no bf16 on CPUs'),
    ],
)
def test_accuracy_that_only_a_gpu_tells(tmp_path, refused, precision, reason):
    given = ('--precision', precision, '--validate', write_images(tmp_path / 'images'))
    message = refused('--onnx', write_detector(tmp_path), *KNOWN, *given)
    assert f'{reason}; build without --validate' in message


INT8 = ('--precision', 'int8')


def test_int8_without_images(tmp_path, refused):
    message = refused('--onnx', write_detector(tmp_path), *KNOWN, *INT8, code=2)
    assert 'int8: needs images to calibrate with; give --calibration-images' in message


def test_images_without_int8(tmp_path, refused):
    images = write_images(tmp_path / 'images')
    options = ('--calibration-images', images)
    message = refused('--onnx', write_detector(tmp_path), *KNOWN, *options, code=2)
    assert 'add --precision int8' in message


@pytest.mark.parametrize('option', ['--calibration-images', '--validate'])
def test_images_that_are_not_there(tmp_path, refused, option):
    path = write_detector(tmp_path)
    precision = INT8 if option == '--calibration-images' else ()
    (tmp_path / 'empty').mkdir()
    given = ('--onnx', path, *KNOWN, *precision, option)
    assert 'this folder holds no image' in refused(*given, tmp_path / 'empty', code=2)
    assert 'does not exist' in refused(*given, tmp_path / 'missing', code=2)


@pytest.mark.parametrize('damage', [lambda _: b'no picture', lambda content: content[:-200]])
def test_an_image_that_cannot_be_read(tmp_path, refused, damage):
    images = write_images(tmp_path / 'images')
    broken = images / '7.png'
    broken.write_bytes(damage(broken.read_bytes()))
    path = write_detector(tmp_path)
    message = refused('--onnx', path, *KNOWN, *INT8, '--calibration-images', images, code=2)
    assert '7.png' in message


def test_too_few_images_and_all_alike(tmp_path, refused):
    path = write_detector(tmp_path)
    given = ('--onnx', path, *KNOWN, *INT8, '--calibration-images')
    few = write_images(tmp_path / 'few', 3)
    assert 'at least 8 images' in refused(*given, few, code=2)
    alike = write_images(tmp_path / 'alike')
    for image in alike.iterdir():
        image.write_bytes((few / '0.png').read_bytes())
    assert 'the same image' in refused(*given, alike, code=2)


def test_a_quantised_model_that_cannot_be_written(tmp_path, refused):
    path, images = write_detector(tmp_path), write_images(tmp_path / 'images')
    given = ('--onnx', path, *KNOWN, '--qdq-onnx')
    assert '--qdq-onnx needs --precision int8 or fp8' in refused(
        *given, tmp_path / 'q.onnx', code=2
    )
    given = (*given[:-1], *INT8, '--calibration-images', images, '--qdq-onnx')
    assert 'ends in .onnx' in refused(*given, tmp_path / 'q.bin', code=2)
    assert 'is what the engine is built from' in refused(*given, path, code=2)
    assert 'takes no new files' in refused(*given, tmp_path / 'missing' / 'q.onnx', code=2)
    other = write_detector(tmp_path, 'other.onnx')
    assert 'is not a model with Q/DQ nodes, so it is not overwritten' in refused(
        *given, other, code=2
    )
    message = refused(*given, tmp_path / 'q.onnx', '--json', tmp_path / 'q.onnx.json', code=2)
    assert 'name another file' in message


def test_patterns_that_match_nothing(tmp_path, refused):
    path = write_detector(tmp_path)
    message = refused('--onnx', path, *KNOWN, '--keep-fp32', 'haed', code=2)
    assert "'haed'" in message
    assert 'head' in message


def test_a_full_disk(tmp_path):
    """A limit on the size of files fails as a full disk does: in the middle of a write."""
    path = write_detector(tmp_path)
    before = listing(tmp_path)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run(
        [executable('build_engine'), '--onnx', path, *KNOWN],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    assert 'net.engine: cannot be written: File too large' in done.stderr
    assert 'MiB free' in done.stderr
    assert listing(tmp_path) == before


def test_folders_that_cannot_take_the_engine(tmp_path, refused):
    path = write_detector(tmp_path)
    (tmp_path / 'file').write_bytes(b'')
    given = ('--onnx', path, *KNOWN)
    for folder, reason in (('missing', 'No such file'), ('file', 'Not a directory')):
        message = refused(*given, '--output', tmp_path / folder / 'x.engine', code=2)
        assert f'{tmp_path / folder} takes no new files ({reason}' in message
        message = refused(*given, '--json', tmp_path / folder / 'x.json', code=2)
        assert f'{tmp_path / folder} takes no new files ({reason}' in message
    (tmp_path / 'net.engine').mkdir()
    assert 'it is a folder' in refused(*given, code=2)


def test_plugins_that_are_not_there_are_told_first(tmp_path, refused):
    given = ('--onnx', tmp_path / 'none.onnx', '--plugins', tmp_path / 'none.so')
    assert f'--plugins {tmp_path / "none.so"}: cannot be opened' in refused(*given)


def test_a_folder_without_permission(tmp_path, capsys):
    path = write_detector(tmp_path)
    folder = tmp_path / 'locked'
    folder.mkdir(mode=0o555)
    before = listing(tmp_path)
    command = [executable('build_engine'), '--onnx', path, *KNOWN]
    if os.geteuid() == 0:  # whom permissions bind only without this capability
        command = ['setpriv', '--bounding-set', '-dac_override', *command]
    for option in (('--output', folder / 'x.engine'), ('--json', folder / 'x.json')):
        done = subprocess.run([*command, *option], capture_output=True, text=True, timeout=120)
        assert done.returncode == 2, done.stderr
        assert f'cannot be written: {folder} takes no new files (Permission denied)' in done.stderr
        assert f'choose another place with {option[0]}\n' in done.stderr
    assert run('--onnx', path, *KNOWN, '--output', '/proc/x.engine') == 2
    assert '/proc takes no new files' in capsys.readouterr().err
    assert listing(tmp_path) == before


def test_files_of_others_are_not_overwritten(tmp_path, refused):
    path = write_detector(tmp_path)
    given = ('--onnx', path, *KNOWN)
    (tmp_path / 'net.engine').write_bytes(b'my thesis')
    assert 'is not a TensorRT engine' in refused(*given, code=2)
    (tmp_path / 'net.engine').unlink()
    (tmp_path / 'net.engine.json').write_bytes(b'{"my": "settings"}')
    assert 'net.engine.json: exists and is not a manifest' in refused(*given, code=2)
    (tmp_path / 'net.engine.json').unlink()
    for clash in ('net.engine', 'net.engine.json', 'net.onnx', 'net.onnx.json'):
        assert 'name another file' in refused(*given, '--json', tmp_path / clash, code=2)


def test_build_yaml_with_an_unknown_option(tmp_path, refused):
    write_detector(tmp_path)
    config = tmp_path / 'build.yaml'
    config.write_text('onnx: net.onnx\nprecison: int8\n')
    message = refused('--config', config, code=2)
    assert f"{config}, line 2: 'precison': is not an option; did you mean 'precision'?" in message


def test_unknown_words_on_the_command_line(tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        run('--onnx', tmp_path / 'x.onnx', '--presicion', 'int8')
    assert caught.value.code == 2
    assert '--presicion' in capsys.readouterr().err


def test_the_report_tells_of_the_failure_too(tmp_path, capsys):
    path = write_detector(tmp_path, sides=('n', 3, 64, 64))
    assert run('--onnx', path, *KNOWN, '--json', tmp_path / 'report.json') == 1
    report = report_of(tmp_path / 'report.json')
    assert report['operation'] == 'build_engine'
    assert report['status'] == 'failed'
    assert 'leaves sides open' in report['error']
    assert report['error'] in capsys.readouterr().err
    assert report['output_engine'] is None
    assert report['steps'][-1]['status'] == 'failed'
    assert report['steps'][0]['status'] == 'done'


def test_a_model_that_falls_below_the_gate_leaves_no_engine(tmp_path, refused, monkeypatch):
    from trt_perception.building import accuracy_gate

    images = write_images(tmp_path / 'images')
    real = accuracy_gate._record

    def worse(*measured):
        record = real(*measured)
        return type(record)(**{**vars(record), 'built': 0.5})

    monkeypatch.setattr(accuracy_gate, '_record', worse)
    monkeypatch.setattr(accuracy_gate.AccuracyReport, 'drop', lambda *_: 0.25)
    path = write_detector(tmp_path)
    given = ('--onnx', path, *KNOWN, '--validate', images, '--max-accuracy-drop')
    message = refused(*given, '0.2', *INT8, '--calibration-images', images)
    assert '10 images are few' in message  # what was warned of may be the reason
    assert 'accuracy: falls by 0.2500, more than --max-accuracy-drop 0.2' in message
    assert run(*given, '0.25') == 0


def test_images_that_show_nothing_hold_no_gate(tmp_path, refused):
    images = write_images(tmp_path / 'images')
    model = detector_model()
    logits = next(node for node in model.graph.node if node.name == 'scores')
    logits.op_type = 'Identity'
    model.graph.node.insert(
        list(model.graph.node).index(logits),
        helper.make_node('Mul', [logits.input[0], 'zero'], ['nothing'], name='nothing'),
    )
    logits.input[0] = 'nothing'
    model.graph.initializer.append(helper.make_tensor('zero', onnx.TensorProto.FLOAT, [], [0]))
    path = tmp_path / 'net.onnx'
    onnx.save_model(model, path)
    given = ('--onnx', path, *KNOWN, '--validate', images)
    message = refused(*given, '--max-accuracy-drop', '0.5')
    assert 'finds anything on these 10 images' in message
    assert run(*given) == 0


def test_a_damaged_calibration_cache_is_made_again(tmp_path, capsys):
    path = write_detector(tmp_path)
    images, cache = write_images(tmp_path / 'images'), tmp_path / 'cache'
    given = ('--onnx', path, *KNOWN, *INT8, '--calibration-images', images)
    given += ('--calibration-cache', cache)
    assert run(*given) == 0
    first = (tmp_path / 'net.engine').read_bytes()
    (entry,) = cache.iterdir()
    assert run(*given) == 0
    assert 'cache: reused' in capsys.readouterr().out
    entry.write_bytes(entry.read_bytes()[:-20])
    assert run(*given) == 0
    assert 'is damaged' in capsys.readouterr().out
    assert (tmp_path / 'net.engine').read_bytes() == first
    np.testing.assert_equal(len(list(cache.iterdir())), 1)


@pytest.mark.parametrize(
    ('name', 'option'),
    [('a.engine', 'output'), ('a.engine.json', 'output'), ('a.onnx', 'qdq_onnx')],
)
def test_pipes_where_files_go_are_no_files(tmp_path, name, option):
    os.mkfifo(tmp_path / name)  # reading it would wait for ever
    given = {'onnx': write_detector(tmp_path), option: tmp_path / name.removesuffix('.json')}
    if option == 'qdq_onnx':
        given |= {'precision': 'int8', 'calibration_images': str(tmp_path)}
    with pytest.raises(ConfigError, match='move it, or choose another'):
        check_outputs(load_options(None, {key: str(value) for key, value in given.items()}))
