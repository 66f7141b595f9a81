# SPDX-License-Identifier: Apache-2.0
"""Record NVTX ranges without a profiler: of a program by an injected library, or in this process.

NVTX loads the library that NVTX_INJECTION64_PATH names, as it loads Nsight Systems. The table of
functions and the layout of events are in nvtx3/nvtxDetail/nvtxTypes.h and nvtx3/nvToolsExt.h.
"""

import contextlib
import itertools
import threading
from collections import defaultdict
from types import SimpleNamespace

from support.gpu.host_kernels import compiled_library

_SOURCE = """
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
typedef void (*Function)();
struct Callbacks { size_t size; int (*table)(int module, Function***, unsigned* count); };
struct Event {
    uint16_t version, size; uint32_t category; int32_t color_type; uint32_t color;
    int32_t payload_type, reserved; uint64_t payload; int32_t message_type; const char* message;
};
static FILE* file;
static std::atomic<uint64_t> started{0};
static void write(const char* kind, const char* domain, const char* name, uint64_t id) {
    std::fprintf(file, "%d\\t%s\\t%s\\t%s\\t%llu\\n", gettid(), kind, domain, name,
                 (unsigned long long)id);
    std::fflush(file);
}
static const char* copy(const char* name) { return strdup(name); }
static const char* register_string(const char*, const char* text) { return strdup(text); }
static uint64_t start(const char* domain, const Event* event) {
    const uint64_t id = ++started;
    write("start", domain, event->message, id);
    return id;
}
static void end(const char* domain, uint64_t id) { write("end", domain, "", id); }
static int push(const char* domain, const Event* event) {
    write("push", domain, event->message, 0);
    return 0;
}
static int pop(const char* domain) { write("pop", domain, "", 0); return 0; }
extern "C" int InitializeInjectionNvtx2(const void* (*export_table)(uint32_t)) {
    Function** functions;
    unsigned count;
    if (!((const Callbacks*)export_table(1))->table(5, &functions, &count)) return 0;
    file = std::fopen(std::getenv("RANGES_FILE"), "a");
    *functions[2] = (Function)start;
    *functions[3] = (Function)end;
    *functions[4] = (Function)push;
    *functions[5] = (Function)pop;
    *functions[10] = (Function)register_string;
    *functions[12] = (Function)copy;
    return 1;
}
"""


def record_ranges(monkeypatch, file):
    """Make programs that start from now on append their ranges to this file."""
    monkeypatch.setenv('NVTX_INJECTION64_PATH', compiled_library(_SOURCE)._name)
    monkeypatch.setenv('RANGES_FILE', str(file))


def recorded_ranges(file):
    """Return the names of finished ranges in the file, sorted by their end.

    Checks that all ranges have the package's domain.
    """
    events = [line.split('\t') for line in file.read_text(encoding='utf-8').splitlines()]
    assert {domain for _, _, domain, _, _ in events} == {'trt_perception'}
    return finished_ranges((thread, kind, name, id_) for thread, kind, _, name, id_ in events)


def finished_ranges(events):
    """Return the names of the ranges that events start and end, sorted by their end.

    Args:
        events: tuples of thread, kind (start, end, push or pop), name, and id of a start or end.
    """
    stacks, started, names = defaultdict(list), {}, []
    for thread, kind, name, id_ in events:
        if kind == 'start':
            started[id_] = name
        elif kind == 'push':
            stacks[thread].append(name)
        else:
            names.append(started.pop(id_) if kind == 'end' else stacks[thread].pop())
    assert not started
    assert not any(stacks.values())
    return names


class RangeRecorder:
    """Replaces the Python package nvtx in this process.

    Attributes:
        module: the functions of the package that the project calls.
    """

    def __init__(self):
        self.module = SimpleNamespace(
            annotate=self._annotate, start_range=self._start, end_range=self._end
        )
        self._events = []
        self._ids = itertools.count()

    def take(self):
        """Return the names of the ranges since the last call, sorted by their end."""
        events, self._events = self._events, []
        return finished_ranges(events)

    def _add(self, kind, name='', id_=None):
        self._events.append((threading.get_ident(), kind, name, id_))

    @contextlib.contextmanager
    def _annotate(self, name, *, domain):
        self._add('push', name)
        try:
            yield
        finally:
            self._add('pop')

    def _start(self, name, *, domain):
        id_ = next(self._ids)
        self._add('start', name, id_)
        return id_

    def _end(self, id_):
        self._add('end', id_=id_)
