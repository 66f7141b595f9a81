"""Taking an unchanged build from the store instead of making it again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from trt_perception.building.build_inputs import BuildInputs
from trt_perception.building.engine_manifest import identity
from trt_perception.building.engine_manifest import recorded_options
from trt_perception.building.options.build_options import BuildOptions
from trt_perception.building.report import BuildReport
from trt_perception.building.store.engine_store import EngineStore
from trt_perception.building.store.engine_store import StoredEngine
from trt_perception.building.store.engine_store import store_key
from trt_perception.errors import ConfigError
from trt_perception.errors import ManifestError
from trt_perception.files.checked_files import MODEL_MAX_BYTES
from trt_perception.files.regular_files import read_regular
from trt_perception.model.manifest import parse_manifest
from trt_perception.model.manifest_writer import manifest_text
from trt_perception.model.model_file import ModelFile

__all__ = ['StorePlace']

#: Of a report, what is as true of the engine from the store as of the one that was built.
_KEPT = ('input_model', 'optimization', 'performance', 'accuracy', 'agreement')


class StorePlace:
    """Where in the store this build stands, or would.

    Args:
        options: with ``store``.
        inputs: what would be built from.

    Raises:
        ConfigError: the store's folder, or a file that counts, cannot be used.
    """

    def __init__(self, options: BuildOptions, inputs: BuildInputs) -> None:
        assert options.store is not None
        self._options = options
        source = self._source = inputs.source
        self._store = EngineStore(options.store)
        contents = {
            'manifest': _digest(repr(source.file.manifest).encode()),
            'config': _digest(repr(source.file.config).encode()),
        }
        if inputs.calibration is not None:
            contents['calibration_images'] = inputs.calibration.sha256
        files = [options.class_names_file, options.annotations, *options.plugins]
        for number, path in enumerate([*filter(None, files), *inputs.validation]):
            contents[f'{number} {path.name}'] = _digest(_content(path))
        self.key = store_key(source.sha256, options, inputs.tensorrt, contents)

    def find(self, report: BuildReport) -> ModelFile | None:
        """Return the engine with its manifest, as for this build; None where there is none.

        The report is filled with what was found out when it was built. Looking counts as use; what
        nobody used for ``store_keep_days`` is removed.
        """
        stored = self._store.find(self.key)
        if self._options.store_keep_days is not None:
            self._store.prune(self._options.store_keep_days)
        if stored is None:
            return None
        try:
            manifest = parse_manifest(stored.manifest, str(self._options.store))
            old = json.loads(stored.report)
            for name in _KEPT:
                setattr(report, name, old[name])
            report.warn(*old['warnings'])
        except (ManifestError, ValueError, KeyError, TypeError, RecursionError) as error:
            known = isinstance(error, ManifestError)
            reason = error if known else f'{type(error).__name__}: {error}'
            report.warn(f'the stored engine {self.key[:16]} cannot be used: {reason}')
            return None
        path = self._options.engine_path()
        engine = identity(path.name, stored.engine)
        if manifest.engine is None or manifest.engine.sha256 != engine.sha256:
            report.warn(f'the stored engine {self.key[:16]} is not what its manifest describes')
            return None
        onnx = manifest.onnx and replace(manifest.onnx, file=self._source.file.path.name)
        build = manifest.build and replace(manifest.build, options=recorded_options(self._options))
        manifest = replace(manifest, engine=engine, onnx=onnx, build=build)
        report.reused = True
        return ModelFile(path, stored.engine, engine.sha256, manifest)

    def keep(self, engine: ModelFile, report: BuildReport) -> None:
        """Put a finished engine into the store.

        Raises:
            ConfigError: it cannot be written.
        """
        assert engine.manifest is not None
        about = f'{self._options.onnx.name} {self._options.precision}'
        stored = StoredEngine(engine.content, manifest_text(engine.manifest), report.json_text())
        self._store.put(self.key, stored, about)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, MODEL_MAX_BYTES)
    except OSError as error:
        raise ConfigError(str(path), f'cannot be read: {error.strerror}') from error
