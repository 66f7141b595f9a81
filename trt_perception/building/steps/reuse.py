"""Taking an unchanged build from the store instead of making it again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from trt_perception.building.build_state import BuildState
from trt_perception.building.engine_manifest import identity, in_memory, recorded_options
from trt_perception.building.engine_store import EngineStore, StoredEngine, store_key
from trt_perception.building.report import reason
from trt_perception.errors import ManifestError
from trt_perception.files.checked_files import MODEL_MAX_BYTES
from trt_perception.files.regular_files import read_given
from trt_perception.model.manifest import manifest_text, parse_manifest

__all__ = ['StorePlace']

#: Of a report, what is as true of the engine from the store as of the one that was built.
_KEPT = ('input_model', 'optimization', 'performance', 'accuracy', 'agreement')


class StorePlace:
    """Where in the store a build stands, or would.

    Args:
        state: with ``store`` among its options, and all that it would be built from.

    Raises:
        ConfigError: the store's folder, or a file that counts, cannot be used.
    """

    def __init__(self, state: BuildState) -> None:
        options, source = state.options, state.source
        assert options.store is not None
        self._state = state
        self._store = EngineStore(options.store)
        contents = {
            'manifest': _digest(repr(source.file.manifest).encode()),
            'config': _digest(repr(source.file.config).encode()),
        }
        if state.calibration is not None:
            contents['calibration_images'] = state.calibration.sha256
        files = [options.class_names_file, options.annotations, *options.plugins]
        for number, path in enumerate([*filter(None, files), *state.validation]):
            contents[f'{number} {path.name}'] = _digest(read_given(path, MODEL_MAX_BYTES))
        self._key = store_key(source.sha256, options, state.tensorrt, contents)

    def look(self) -> None:
        """Take the engine where there is one, as for this build.

        The report is filled with what was found out when it was built. Looking counts as use; what
        nobody used for ``store_keep_days`` is removed.
        """
        options = self._state.options
        with self._state.step('store') as step:
            if options.qdq_onnx is not None:
                step.skip('not asked: it keeps no models with Q/DQ nodes (--qdq-onnx)')
                return
            stored = self._store.find(self._key)
            if options.store_keep_days is not None:
                self._store.prune(options.store_keep_days)
            if stored is not None:
                self._take(stored)
            found = 'reused' if self._state.report.reused else 'no entry'
            step.outcome = f'{found} {self._key[:16]}'

    def _take(self, stored: StoredEngine) -> None:
        state, report = self._state, self._state.report
        try:
            manifest = parse_manifest(stored.manifest, str(state.options.store))
            old = json.loads(stored.report)
            for name in _KEPT:
                setattr(report, name, old[name])
            report.warn(*old['warnings'])
        except (ManifestError, ValueError, KeyError, TypeError, RecursionError) as error:
            report.warn(f'the stored engine {self._key[:16]} cannot be used: {reason(error)}')
            return
        file = in_memory(state.options.engine_path(), stored.engine)
        if manifest.engine is None or manifest.engine.sha256 != file.sha256:
            report.warn(f'the stored engine {self._key[:16]} is not what its manifest describes')
            return
        manifest = replace(
            manifest,
            engine=identity(file),
            onnx=manifest.onnx and replace(manifest.onnx, file=state.options.onnx.name),
            build=manifest.build
            and replace(manifest.build, options=recorded_options(state.options)),
        )
        state.engine = replace(file, manifest=manifest)
        report.reused = True

    def keep(self) -> None:
        """Put the finished engine into the store.

        Raises:
            ConfigError: it cannot be written.
        """
        engine, report = self._state.engine, self._state.report
        assert engine.manifest is not None
        stored = StoredEngine(engine.content, manifest_text(engine.manifest), report.json_text())
        self._store.put(self._key, stored)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
