# SPDX-License-Identifier: Apache-2.0
"""Tests of finding, opening and calling nvJPEG, with a stand-in for the library."""

import ctypes
import ctypes.util
import sys
from types import SimpleNamespace

import pytest

from support.fuzz import jpeg_fuzz
from support.gpu.fake_nvjpeg import BAD_JPEG, EXECUTION_FAILED, FakeNvJpeg
from trt_perception.errors import CudaError
from trt_perception.gpu import nvjpeg
from trt_perception.gpu.nvjpeg import NvJpeg, load_nvjpeg

SMALL_JPEG = jpeg_fuzz.plain_jpegs()['35x23 420 0']
STREAM = SimpleNamespace(handle=77)


@pytest.fixture
def library(monkeypatch):
    fake = FakeNvJpeg()
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', lambda: (fake, (13, 3, 2)))
    return fake


@pytest.fixture
def empty_cache():
    load_nvjpeg.cache_clear()
    yield
    load_nvjpeg.cache_clear()


def test_decode_passes_file_destination_and_stream(library):
    with NvJpeg() as opened, opened.decoder() as decoder:
        assert decoder.decode((SMALL_JPEG,), (35, 23), 0x7000, 128, STREAM) == ''
        ((content, kind, pointer, pitch, stream, _),) = library.decoded
    assert (content, kind, pointer, pitch, stream) == (SMALL_JPEG, 6, 0x7000, 128, 77)
    assert not library.live


def test_second_close_does_nothing(library):
    opened = NvJpeg()
    decoder = opened.decoder()
    for resource in (decoder, decoder, opened, opened):
        resource.close()
    assert not library.live


@pytest.mark.parametrize(('version', 'flags'), [((12, 0, 1), 4), ((12, 1), 36), ((13, 3, 2), 36)])
def test_chroma_is_interpolated_if_the_release_supports_it(library, monkeypatch, version, flags):
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', lambda: (library, version))
    NvJpeg().close()
    assert library.flags == flags


def test_refused_file_gives_a_reason(library, golden_messages):
    parts = SMALL_JPEG[:100], memoryview(SMALL_JPEG)[100:]
    with NvJpeg() as opened, opened.decoder() as decoder:
        reason = decoder.decode(parts, (34, 23), 0x7000, 128, STREAM)
        assert reason
        golden_messages.add(reason)
        library.status['nvjpegDecode'] = BAD_JPEG
        reason = decoder.decode(parts, (35, 23), 0x7000, 128, STREAM)
        assert reason == 'NVJPEG_STATUS_BAD_JPEG'
        library.status['nvjpegGetImageInfo'] = 99
        assert decoder.decode((SMALL_JPEG,), (35, 23), 0x7000, 128, STREAM) == 'nvjpegStatus_t 99'
    assert library.decoded == []


def test_size_is_read_once_for_equal_headers(library):
    """The decoder asks again for another size, other headers, or a size that did not match."""
    scan_offset = SMALL_JPEG.index(b'\xff\xda')
    other_headers = SMALL_JPEG.replace(b'JFIF', b'JFI2')
    requests = []
    answer = library.nvjpegGetImageInfo
    library.nvjpegGetImageInfo = lambda *arguments: (
        requests.append(arguments) or answer(*arguments)
    )
    with NvJpeg() as opened, opened.decoder() as decoder:
        for file, size, times in (
            *(
                (SMALL_JPEG, (35, 23), 1),
                (SMALL_JPEG, (35, 23), 0),
                (SMALL_JPEG, (34, 23), 1),
                (SMALL_JPEG, (34, 23), 1),
            ),
            *((SMALL_JPEG, (35, 23), 0), (other_headers, (35, 23), 1), (SMALL_JPEG, (35, 23), 1)),
        ):
            requests.clear()
            parts = file[:scan_offset], memoryview(file)[scan_offset:]
            reason = decoder.decode(parts, size, 0x7000, 128, STREAM)
            assert bool(reason) == (size != (35, 23))
            assert len(requests) == times
            assert reason or library.decoded[-1][0] == file


def test_file_parts_of_any_size_are_joined(library, monkeypatch):
    monkeypatch.setattr(nvjpeg, '_INITIAL_FILE_BUFFER_BYTES', 16)
    with NvJpeg() as opened, opened.decoder() as decoder:
        for middle_size in (0, 5000, 3, 70000, 0):
            parts = SMALL_JPEG, memoryview(bytes(range(256)) * 300)[:middle_size], b'', b'\xff\xd9'
            assert decoder.decode(parts, (35, 23), 0x7000, 128, STREAM) == ''
            assert library.decoded[-1][0] == b''.join(parts)


@pytest.mark.parametrize('name', ['nvjpegCreateEx', 'nvjpegJpegStateCreate'])
def test_failed_creation_raises_an_error(library, name, golden_messages):
    library.status[name] = EXECUTION_FAILED

    def make():
        with NvJpeg() as opened, opened.decoder():
            pass

    with golden_messages.raises(CudaError) as error:
        make()
    assert error.value.status == 'NVJPEG_STATUS_EXECUTION_FAILED'
    assert not error.value.sticky
    assert not library.live


def test_image_struct_has_the_layout_of_the_c_header():
    image = nvjpeg._NvjpegImage
    pointer, size = ctypes.sizeof(ctypes.c_void_p), ctypes.sizeof(ctypes.c_size_t)
    assert (image.channel.offset, image.channel.size) == (0, 4 * pointer)
    assert (image.pitch.offset, image.pitch.size) == (4 * pointer, 4 * size)
    assert ctypes.sizeof(image) == 4 * pointer + 4 * size


def wheel(folder, name, content=b''):
    path = folder / 'nvidia' / 'cu13' / 'lib' / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


@pytest.fixture
def search_path(tmp_path, monkeypatch, empty_cache):
    """Return a folder on the Python path, without other wheels and without CUDA's own folder."""
    monkeypatch.setattr(sys, 'path', [str(tmp_path)])
    monkeypatch.delitem(sys.modules, 'nvidia', raising=False)
    monkeypatch.setattr(nvjpeg, '_TOOLKIT_FOLDER', tmp_path / 'cuda')
    return tmp_path


def test_wheel_library_comes_before_the_system_library(search_path):
    path = wheel(search_path, 'libnvjpeg.so.13')
    (search_path / 'cuda').mkdir()
    toolkit_library = search_path / 'cuda' / 'libnvjpeg.so.12'
    toolkit_library.touch()
    names = ['libnvjpeg.so.13', 'libnvjpeg.so.12', 'libnvjpeg.so']
    assert list(nvjpeg._library_paths()) == [str(path), *names, str(toolkit_library)]


def test_missing_library_error_has_a_fix(search_path, monkeypatch, golden_messages):
    monkeypatch.setattr(nvjpeg, '_LIBRARY_NAMES', ('libnvjpeg-of-nobody.so',))
    with golden_messages.raises(CudaError):
        load_nvjpeg()


def test_unloadable_library_is_named(search_path, monkeypatch):
    name = 'libnvjpeg-of-nobody.so'  # no machine has a library of this name
    monkeypatch.setattr(nvjpeg, '_LIBRARY_NAMES', (name,))
    path = wheel(search_path, name, b'no library')
    with pytest.raises(CudaError, match=str(path)):
        load_nvjpeg()


def test_library_without_nvjpeg_functions_is_not_used(search_path, monkeypatch):
    """JetPack has a libnvjpeg.so with the interface of libjpeg, without nvJPEG's functions."""
    other_library = ctypes.util.find_library('m')
    monkeypatch.setattr(nvjpeg, '_library_paths', lambda: iter([other_library]))
    with pytest.raises(CudaError, match='undefined symbol: nvjpegGetProperty'):
        load_nvjpeg()


@pytest.mark.parametrize(('version', 'is_accepted'), [((13, 3, 2), True), ((11, 9, 0), False)])
def test_library_that_is_too_old_is_not_used(
    search_path, monkeypatch, version, is_accepted, golden_messages
):
    def get_property(kind, out):
        out._obj.value = version[kind]
        return 0

    functions = {name: lambda *_: 0 for name in nvjpeg._ARGUMENT_TYPES_BY_FUNCTION}
    fake = SimpleNamespace(**{**functions, 'nvjpegGetProperty': get_property})
    monkeypatch.setattr(nvjpeg.ctypes, 'CDLL', lambda path: fake)
    monkeypatch.setattr(nvjpeg, '_library_paths', lambda: iter(['/opt/libnvjpeg.so']))
    if is_accepted:
        assert load_nvjpeg() == (fake, version)
    else:
        with golden_messages.raises(CudaError):
            load_nvjpeg()
