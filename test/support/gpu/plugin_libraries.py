# SPDX-License-Identifier: Apache-2.0
"""Compile small plugin libraries that a real registry of TensorRT accepts."""

import subprocess

from support.gpu.host_kernels import COMPILER

# The registry finds the virtual functions of a creator by their order. So this class needs no
# header of TensorRT. No test creates a plugin.
_PLUGIN_SOURCE = """
#include <cstdint>
struct Interface { const char* kind; std::int32_t major, minor; };
const std::int64_t no_fields[2] = {};
struct Creator {
    virtual std::int32_t api_language() const noexcept { return 0; }
    virtual Interface interface() const noexcept { return {"PLUGIN CREATOR_V3ONE", 1, 0}; }
    virtual ~Creator() noexcept = default;
    virtual void* create(const char*, const void*, std::int32_t) noexcept { return nullptr; }
    virtual const void* field_names() noexcept { return no_fields; }
    virtual const char* name() const noexcept { return NAME; }
    virtual const char* version() const noexcept { return "1"; }
    virtual const char* name_space() const noexcept { return ""; }
};
std::int32_t creator_count() COUNT
extern "C" void setLoggerFinder(void*) {}
extern "C" Creator* const* getCreators(std::int32_t& count) {
    static Creator creator;
    static Creator* const creators[] = {&creator};
    count = creator_count();
    return creators;
}
"""
_NEIGHBOUR_SOURCE = '#include <cstdint>\nstd::int32_t creator_count() { return 1; }'


def make_plugin_library(folder, name):
    """Compile a library with one plugin creator of this name, version 1. Return its path."""
    return _compile(
        folder / f'lib{name}.so', _PLUGIN_SOURCE, f'-DNAME="{name}"', '-DCOUNT={ return 1; }'
    )


def make_plugin_library_with_neighbour(folder, name):
    """Compile a plugin library that finds a second library in its own folder by $ORIGIN."""
    neighbour = _compile(
        folder / 'libneighbour.so', _NEIGHBOUR_SOURCE, '-Wl,-soname,libneighbour.so'
    )
    flags = (f'-DNAME="{name}"', '-DCOUNT=;', neighbour, '-Wl,-rpath,$ORIGIN')
    return _compile(folder / f'lib{name}.so', _PLUGIN_SOURCE, *flags)


def make_library_without_plugins(folder, name):
    """Compile a library that the registry refuses and that is never unloaded. Return its path."""
    flags = (f'-DNAME={name}', '-Wl,-z,nodelete')
    return _compile(folder / f'lib{name}.so', 'extern "C" void NAME() {}', *flags)


def _compile(library, source, *flags):
    command = [COMPILER, '-shared', '-fPIC', '-x', 'c++', '-', '-x', 'none', *flags, '-o', library]
    subprocess.run(command, input=source, text=True, check=True)
    library.chmod(0o755)
    return library
