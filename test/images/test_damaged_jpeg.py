# SPDX-License-Identifier: Apache-2.0
"""Tests that damaged and unusual JPEGs are decoded or refused without printing a line."""

import importlib.metadata
import sys
from importlib import import_module

import cv2
import numpy as np
import pytest

from support.fuzz.camera_jpegs import (
    BASELINE_JPEG,
    EOI,
    JPEG_WITH_RESTARTS,
    JPEGS_OF_UNKNOWN_VERSIONS,
    JPEGS_WITH_HARMLESS_DEFECTS,
    RESTART_MARKER,
    UNUSUAL_SAMPLINGS,
    WHOLE_JPEGS,
    cut_files,
    jpeg_with_samplings,
    scene_jpeg,
    with_luma_sampling,
)
from support.optional_packages import needs
from trt_perception.errors import ImageError
from trt_perception.images import decompress as decoders
from trt_perception.images.compressed import check_image_file
from trt_perception.images.image_files import read_image_file
from trt_perception.images.jpeg import JpegFrameReader, decode_on_cpu

needs_simplejpeg = needs('simplejpeg')


def decode(content):
    return check_image_file(np.frombuffer(content, np.uint8)).decode()


def by_opencv(content):
    return cv2.imdecode(
        np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    )


@pytest.mark.parametrize(
    'content',
    [*WHOLE_JPEGS.values(), *JPEGS_OF_UNKNOWN_VERSIONS.values()],
    ids=[*WHOLE_JPEGS, *JPEGS_OF_UNKNOWN_VERSIONS],
)
def test_whole_file_is_decoded_as_in_opencv_without_a_warning(content, capfd):
    expected = by_opencv(content)
    capfd.readouterr()

    image = decode(content)

    assert (image.bgr == expected).all()
    assert image.warning == ''
    assert capfd.readouterr() == ('', '')


@needs_simplejpeg
@pytest.mark.parametrize(
    'content', JPEGS_WITH_HARMLESS_DEFECTS.values(), ids=JPEGS_WITH_HARMLESS_DEFECTS
)
def test_harmless_warning_is_reported_with_the_pixels(content, capfd):
    expected = by_opencv(content)
    capfd.readouterr()

    image = decode(content)

    assert (image.bgr == expected).all()
    assert 'extraneous bytes before marker' in image.warning
    assert capfd.readouterr() == ('', '')


@needs_simplejpeg
@pytest.mark.parametrize('whole', WHOLE_JPEGS.values(), ids=WHOLE_JPEGS)
def test_truncated_file_is_refused_without_a_line_on_stderr(whole, capfd):
    reasons = []
    for content in cut_files(whole):
        with pytest.raises(ImageError) as caught:
            decode(content)
        reasons.append(caught.value.reason)

    assert len(reasons) > 60
    assert set(reasons) == {'not_decodable'}
    assert capfd.readouterr() == ('', '')


def test_file_that_lacks_its_last_restart_markers_is_refused():
    """libjpeg does not report the missing markers, only extraneous bytes."""
    whole = JPEGS_WITH_HARMLESS_DEFECTS['spare bytes before restart markers']
    restarts = [match.start() for match in RESTART_MARKER.finditer(whole)]
    for at in restarts[:-1]:
        for cut in (whole[:at], whole[: at + 9]):
            with pytest.raises(ImageError, match='truncated'):
                decode(cut + EOI)


@needs_simplejpeg
def test_file_that_lacks_one_restart_marker_is_decoded():
    first, second = [match.start() for match in RESTART_MARKER.finditer(JPEG_WITH_RESTARTS)][3:5]

    image = decode(JPEG_WITH_RESTARTS[:first] + JPEG_WITH_RESTARTS[second:])

    assert 'instead of RST' in image.warning


@needs_simplejpeg
@pytest.mark.parametrize('samplings', UNUSUAL_SAMPLINGS, ids=str)
def test_file_with_unusual_sampling_is_decoded_as_in_opencv(samplings, capfd):
    whole = jpeg_with_samplings(*samplings)
    expected = by_opencv(whole)
    capfd.readouterr()
    with pytest.raises(ValueError, match='subsampling'):
        import_module('simplejpeg').decode_jpeg(whole, 'BGR')

    for content in (whole, whole[:-2] + bytes(16) + EOI):  # spare bytes are harmless
        image = decode(content)
        assert (image.bgr == expected).all()
        assert image.warning == ''
    assert capfd.readouterr() == ('', '')


@needs_simplejpeg
@pytest.mark.parametrize('samplings', UNUSUAL_SAMPLINGS, ids=str)
def test_truncated_file_with_unusual_sampling_is_refused_without_a_line(samplings, capfd):
    test_truncated_file_is_refused_without_a_line_on_stderr(jpeg_with_samplings(*samplings), capfd)


@needs_simplejpeg
def test_cmyk_file_with_unusual_sampling_is_decoded_nearly_as_in_opencv():
    content = jpeg_with_samplings(0x13, 0x11, 0x11, 0x13)

    levels = np.abs(decode(content).bgr.astype(int) - by_opencv(content))

    assert levels.max() <= 2


# A module that was compiled for another NumPy raises ValueError or AttributeError.
@pytest.mark.parametrize('error', ['ModuleNotFoundError', 'ValueError', 'AttributeError'])
def test_opencv_decodes_if_simplejpeg_cannot_be_imported(monkeypatch, tmp_path, error):
    (tmp_path / 'simplejpeg.py').write_text(f'raise {error}')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, 'simplejpeg', raising=False)
    load_again = decoders.load_simplejpeg.__wrapped__
    monkeypatch.setattr(decoders, 'load_simplejpeg', load_again)

    assert load_again()[0] is None
    image = decode(JPEGS_WITH_HARMLESS_DEFECTS['spare bytes before EOI'])

    assert (image.bgr == by_opencv(BASELINE_JPEG)).all()


@needs_simplejpeg
def test_pinned_simplejpeg_gives_the_messages_that_the_package_translates():
    import simplejpeg

    def message(content):
        with pytest.raises(ValueError, match=' ') as caught:
            simplejpeg.decode_jpeg(content, 'BGR', strict=True)
        return str(caught.value)

    third = [match.start() for match in RESTART_MARKER.finditer(JPEG_WITH_RESTARTS)][2]
    assert importlib.metadata.version('simplejpeg') == '1.9.0'
    assert message(BASELINE_JPEG[:2000]) == 'Premature end of JPEG file'
    assert (
        message(BASELINE_JPEG[:2000] + EOI) == 'Corrupt JPEG data: premature end of data segment'
    )
    assert (
        message(JPEG_WITH_RESTARTS[:third] + EOI)
        == 'Corrupt JPEG data: found marker 0xd9 instead of RST2'
    )
    assert (
        message(JPEGS_WITH_HARMLESS_DEFECTS['spare bytes before EOI'])
        == 'Corrupt JPEG data: 15 extraneous bytes before marker 0xd9'
    )
    assert (
        message(JPEGS_OF_UNKNOWN_VERSIONS['JFIF 2.1'])
        == 'Warning: unknown JFIF revision number 2.01'
    )
    assert (
        message(with_luma_sampling(scene_jpeg(subsampling=0), 0x13))
        == 'tjDecompressHeader3(): Could not determine subsampling level of JPEG image'
    )


@needs_simplejpeg
def test_files_with_other_decoder_errors_are_refused(capfd):
    whole = WHOLE_JPEGS['progressive']
    at = whole.rindex(b'\xff\xc4') + 5

    with pytest.raises(ImageError, match='damaged file: Bogus Huffman table definition'):
        decode(whole[:at] + b'\x0a' * 16 + whole[at + 16 :])
    with pytest.raises(ImageError, match='damaged file: Pillow'):
        decode(BASELINE_JPEG.replace(b'\xff\xc4\0\x1f\0\0', b'\xff\xc4\0\x1f\0\x0a'))
    assert capfd.readouterr() == ('', '')


def test_header_of_another_size_is_refused():
    at = BASELINE_JPEG.index(b'\xff\xc0') + 5
    smaller = BASELINE_JPEG[:at] + b'\0\x40\0\x40' + BASELINE_JPEG[at + 4 :]
    checked = check_image_file(np.frombuffer(BASELINE_JPEG, np.uint8))
    parts = check_image_file(np.frombuffer(smaller, np.uint8)).parts

    with pytest.raises(ImageError, match='the header says 160x120'):
        type(checked)(parts, checked.size_wh).decode()


@needs_simplejpeg
def test_decoded_frame_has_the_warning_of_its_file():
    content = np.frombuffer(JPEGS_WITH_HARMLESS_DEFECTS['spare bytes before EOI'], np.uint8)

    frame = JpegFrameReader()(content)

    assert 'extraneous bytes' in decode_on_cpu(frame).warning


@needs_simplejpeg
def test_tools_refuse_truncated_files_with_eoi(tmp_path, capfd):
    path = tmp_path / 'image.jpg'
    for content in cut_files(BASELINE_JPEG):
        path.write_bytes(content)
        with pytest.raises(ImageError):
            read_image_file(path)

    assert capfd.readouterr() == ('', '')
