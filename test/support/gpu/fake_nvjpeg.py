# SPDX-License-Identifier: Apache-2.0
"""Replace the nvJPEG library. The stand-in reads headers, decodes nothing, and fails on demand.

The functions take arguments that ctypes has converted, as the C library receives them.
"""

import ctypes
import itertools
import struct

SUCCESS, BAD_JPEG, NOT_SUPPORTED, ALLOCATOR_FAILURE, EXECUTION_FAILED = 0, 3, 4, 5, 6


class FakeNvJpeg:
    """Records calls and live handles, and fails as its attributes say.

    Attributes:
        decoded: (file, format, address, pitch, stream, state) of each call of nvjpegDecode.
        live: handles and states that were created and not destroyed.
        flags: the flags with which the library was opened.
        status: status by function name. Such a function returns the status and does nothing.
        on_decode: function that each nvjpegDecode calls.
    """

    def __init__(self):
        self.decoded = []
        self.live = set()
        self.flags = None
        self.status = {}
        self.on_decode = lambda: None
        self._numbers = itertools.count(0x1000)

    def _make(self, name, out):
        if status := self.status.get(name, SUCCESS):
            return status
        out._obj.value = next(self._numbers)
        self.live.add(out._obj.value)
        return SUCCESS

    def nvjpegCreateEx(self, backend, device, pinned, flags, out):  # noqa: N802
        assert (backend, device, pinned) == (0, None, None)
        self.flags = flags
        return self._make('nvjpegCreateEx', out)

    def nvjpegJpegStateCreate(self, handle, out):  # noqa: N802
        assert handle.value in self.live
        return self._make('nvjpegJpegStateCreate', out)

    def nvjpegDestroy(self, handle):  # noqa: N802
        self.live.remove(handle.value)
        return SUCCESS

    nvjpegJpegStateDestroy = nvjpegDestroy  # noqa: N815

    def nvjpegGetImageInfo(self, handle, content, size, *out):  # noqa: N802
        assert handle.value in self.live
        content = ctypes.string_at(content, size)
        if status := self.status.get('nvjpegGetImageInfo', SUCCESS):
            return status
        at = content.index(b'\xff\xc0')
        out[3][0], out[2][0] = struct.unpack_from('>HH', content, at + 5)
        return SUCCESS

    def nvjpegDecode(self, handle, state, content, size, kind, image, stream):  # noqa: N802
        assert {handle.value, state.value} <= self.live
        content = ctypes.string_at(content, size)
        assert ctypes.sizeof(image) == 64  # four pointers, four size_t
        self.on_decode()
        if status := self.status.get('nvjpegDecode', SUCCESS):
            return status
        place = image.channel[0], image.pitch[0]
        self.decoded.append((content, kind, *place, stream, state.value))
        return SUCCESS
