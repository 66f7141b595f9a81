# SPDX-License-Identifier: Apache-2.0
"""Import Python modules with plugin creators, for the time of a build.

A module registers its creators with TensorRT when it is imported, as ``tensorrt.plugin`` does, or
lists them in ``CREATORS``. Only the builder imports modules: docs/plugins.md says why.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from trt_perception.errors import EngineError
from trt_perception.files.plain_text import to_one_line
from trt_perception.stages.tensorrt.plugins import read_plugin


class _CheckedSource(importlib.abc.SourceLoader):
    """Loads the source that was checked. Reading the path again could give another file."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path, self._content = path, content

    def get_filename(self, *_: Any) -> str:
        return str(self._path)

    def get_data(self, *_: Any) -> bytes:
        return self._content


@contextmanager
def registered_creators(trt: Any, paths: Sequence[Path]) -> Iterator[None]:
    """Import modules, and register the creators of their ``CREATORS`` until the block ends.

    A process imports a module with the same content only once. Creators that a module registers
    itself stay registered.

    Raises:
        EngineError: a file is missing or writable for everybody, or belongs to another user; its
            import fails; or TensorRT refuses a creator.
    """
    with ExitStack() as registered:
        for path in paths:
            subject = f'plugin module {path}'
            for creator in getattr(_import_module(path, subject), 'CREATORS', ()):
                registry = trt.get_plugin_registry()
                if not registry.register_creator(creator, creator.plugin_namespace):
                    raise EngineError(
                        subject,
                        f'TensorRT refuses the creator {creator.name}',
                        expected='creators whose name, version and namespace are not registered',
                        fix='leave out the other plugin of this name',
                    )
                registered.callback(registry.deregister_creator, creator)
        yield


def _import_module(path: Path, subject: str) -> ModuleType:
    file, content, resolved = read_plugin(path, subject)
    file.close()
    name = f'trt_perception_plugin_{hashlib.sha256(content).hexdigest()}'
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_loader(name, _CheckedSource(resolved, content))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        found = f'cannot be imported: {type(error).__name__}: {to_one_line(error)}'
        raise EngineError(subject, found) from error
    return module
