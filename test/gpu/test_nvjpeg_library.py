"""How nvJPEG is found, opened and asked, with a stand-in for the library."""

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

FILE = jpeg_fuzz.plain_files()['35x23 420 0']
STREAM = SimpleNamespace(handle=77)


@pytest.fixture
def library(monkeypatch):
    fake = FakeNvJpeg()
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', lambda: (fake, (13, 3, 2)))
    return fake


@pytest.fixture
def fresh():
    load_nvjpeg.cache_clear()
    yield
    load_nvjpeg.cache_clear()


def test_a_file_goes_where_it_is_to_go(library):
    with NvJpeg() as opened, opened.decoder() as decoder:
        assert decoder.decode((FILE,), (35, 23), 0x7000, 128, STREAM) == ''
        ((content, kind, pointer, pitch, stream, _),) = library.decoded
    assert (content, kind, pointer, pitch, stream) == (FILE, 6, 0x7000, 128, 77)
    assert not library.live


def test_closing_again_does_nothing(library):
    opened = NvJpeg()
    decoder = opened.decoder()
    for each in (decoder, decoder, opened, opened):
        each.close()
    assert not library.live


@pytest.mark.parametrize(('version', 'flags'), [((12, 0, 1), 4), ((12, 1), 36), ((13, 3, 2), 36)])
def test_chroma_is_interpolated_where_the_release_can(library, monkeypatch, version, flags):
    monkeypatch.setattr(nvjpeg, 'load_nvjpeg', lambda: (library, version))
    NvJpeg().close()
    assert library.flags == flags


def test_what_it_says_against_a_file_is_an_answer(library, golden_messages):
    parts = FILE[:100], memoryview(FILE)[100:]
    with NvJpeg() as opened, opened.decoder() as decoder:
        reason = decoder.decode(parts, (34, 23), 0x7000, 128, STREAM)
        assert reason
        golden_messages.add(reason)
        library.status['nvjpegDecode'] = BAD_JPEG
        reason = decoder.decode(parts, (35, 23), 0x7000, 128, STREAM)
        assert reason == 'NVJPEG_STATUS_BAD_JPEG'
        library.status['nvjpegGetImageInfo'] = 99
        assert decoder.decode((FILE,), (35, 23), 0x7000, 128, STREAM) == 'nvjpegStatus_t 99'
    assert library.decoded == []


def test_the_size_is_asked_for_once_for_headers_that_are_alike(library):
    """But for another size, for other headers, and for what was not found to have it."""
    bits = FILE.index(b'\xff\xda')
    other = FILE.replace(b'JFIF', b'JFI2')
    asked = []
    answer = library.nvjpegGetImageInfo
    library.nvjpegGetImageInfo = lambda *given: asked.append(given) or answer(*given)
    with NvJpeg() as opened, opened.decoder() as decoder:
        for file, size, times in (
            *((FILE, (35, 23), 1), (FILE, (35, 23), 0), (FILE, (34, 23), 1), (FILE, (34, 23), 1)),
            *((FILE, (35, 23), 0), (other, (35, 23), 1), (FILE, (35, 23), 1)),
        ):
            asked.clear()
            parts = file[:bits], memoryview(file)[bits:]
            reason = decoder.decode(parts, size, 0x7000, 128, STREAM)
            assert bool(reason) == (size != (35, 23))
            assert len(asked) == times
            assert reason or library.decoded[-1][0] == file


def test_files_of_any_size_are_put_together(library, monkeypatch):
    monkeypatch.setattr(nvjpeg, '_FIRST_FILE_BYTES', 16)
    with NvJpeg() as opened, opened.decoder() as decoder:
        for more in (0, 5000, 3, 70000, 0):
            parts = FILE, memoryview(bytes(range(256)) * 300)[:more], b'', b'\xff\xd9'
            assert decoder.decode(parts, (35, 23), 0x7000, 128, STREAM) == ''
            assert library.decoded[-1][0] == b''.join(parts)


@pytest.mark.parametrize('name', ['nvjpegCreateEx', 'nvjpegJpegStateCreate'])
def test_what_cannot_be_made_is_an_error(library, name, golden_messages):
    library.status[name] = EXECUTION_FAILED

    def make():
        with NvJpeg() as opened, opened.decoder():
            pass

    with golden_messages.raises(CudaError) as error:
        make()
    assert error.value.status == 'NVJPEG_STATUS_EXECUTION_FAILED'
    assert not error.value.sticky
    assert not library.live


def test_the_layout_is_that_of_the_header():
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
def search_path(tmp_path, monkeypatch, fresh):
    """A folder of the Python path, without any other wheel and without CUDA's own folder."""
    monkeypatch.setattr(sys, 'path', [str(tmp_path)])
    monkeypatch.delitem(sys.modules, 'nvidia', raising=False)
    monkeypatch.setattr(nvjpeg, '_TOOLKIT_FOLDER', tmp_path / 'cuda')
    return tmp_path


def test_the_wheel_comes_first_then_the_system(search_path):
    path = wheel(search_path, 'libnvjpeg.so.13')
    (search_path / 'cuda').mkdir()
    own = search_path / 'cuda' / 'libnvjpeg.so.12'
    own.touch()
    names = ['libnvjpeg.so.13', 'libnvjpeg.so.12', 'libnvjpeg.so']
    assert list(nvjpeg._library_paths()) == [str(path), *names, str(own)]


def test_no_library_is_told_with_what_to_do(search_path, monkeypatch, golden_messages):
    monkeypatch.setattr(nvjpeg, '_LIBRARY_NAMES', ('libnvjpeg-of-nobody.so',))
    with golden_messages.raises(CudaError):
        load_nvjpeg()


def test_a_library_that_cannot_be_loaded_is_named(search_path, monkeypatch):
    name = 'libnvjpeg-of-nobody.so'  # which no machine's loader finds instead
    monkeypatch.setattr(nvjpeg, '_LIBRARY_NAMES', (name,))
    path = wheel(search_path, name, b'no library')
    with pytest.raises(CudaError, match=str(path)):
        load_nvjpeg()


def test_another_library_of_that_name_is_passed_over(search_path, monkeypatch):
    """JetPack's libnvjpeg.so is the interface of libjpeg."""
    other = ctypes.util.find_library('m')
    monkeypatch.setattr(nvjpeg, '_library_paths', lambda: iter([other]))
    with pytest.raises(CudaError, match='undefined symbol: nvjpegGetProperty'):
        load_nvjpeg()


@pytest.mark.parametrize(('numbers', 'taken'), [((13, 3, 2), True), ((11, 9, 0), False)])
def test_too_old_a_library_is_passed_over(
    search_path, monkeypatch, numbers, taken, golden_messages
):
    def get_property(kind, out):
        out._obj.value = numbers[kind]
        return 0

    functions = {name: lambda *_: 0 for name in nvjpeg._FUNCTIONS}
    fake = SimpleNamespace(**{**functions, 'nvjpegGetProperty': get_property})
    monkeypatch.setattr(nvjpeg.ctypes, 'CDLL', lambda path: fake)
    monkeypatch.setattr(nvjpeg, '_library_paths', lambda: iter(['/opt/libnvjpeg.so']))
    if taken:
        assert load_nvjpeg() == (fake, numbers)
    else:
        with golden_messages.raises(CudaError):
            load_nvjpeg()
