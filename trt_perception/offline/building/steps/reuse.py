# SPDX-License-Identifier: Apache-2.0
"""Reuse the stored engine of an unchanged build."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from trt_perception.errors import ConfigError, ManifestError
from trt_perception.files.checked_files import MODEL_MAX_BYTES
from trt_perception.files.regular_files import read_user_file
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.manifest import parse_manifest, serialise_manifest
from trt_perception.offline.building.build_inputs import BuildInputs
from trt_perception.offline.building.engine_manifest import (
    model_file_in_memory,
    recorded_options,
)
from trt_perception.offline.building.engine_store import EngineStore, StoredEngine, store_key
from trt_perception.offline.building.options.build_options import BuildOptions
from trt_perception.offline.building.report import BuildLog, BuildReport, failure_reason

#: Fields of the stored report that also apply to this build.
_REUSED_REPORT_FIELDS = ('input_model', 'optimization', 'performance', 'accuracy', 'agreement')


class StoreEntry:
    """Loads and saves the store's entry for one build. The entry may not exist yet.

    Args:
        inputs: inputs of the build. The user must have set the option ``store``.

    Raises:
        ConfigError: the store's folder is unsafe, or an input file cannot be read.
    """

    def __init__(self, inputs: BuildInputs) -> None:
        options, source = inputs.options, inputs.source
        assert options.store is not None
        self._options = options
        self._store = EngineStore(options.store)
        contents = {
            'manifest': _sha256(repr(source.file.manifest).encode()),
            'config': _sha256(repr(source.file.config).encode()),
        }
        if inputs.calibration is not None:
            contents['calibration_images'] = inputs.calibration.sha256
        given = [options.class_names_file, options.annotations, *options.plugins]
        files = [path for path in given if path is not None]
        for number, path in enumerate(files):
            contents[f'{number} {path.name}'] = _sha256(read_user_file(path, MODEL_MAX_BYTES))
        if inputs.validation:  # decoders load slowly, and most builds need none here
            from trt_perception.images.image_files import read_image_bytes

            for number, path in enumerate(inputs.validation, len(files)):
                contents[f'{number} {path.name}'] = _sha256(read_image_bytes(path))
        self._key = store_key(source.sha256, options, inputs.tensorrt, contents)

    def load(self, log: BuildLog) -> ModelFile | None:
        """Return the stored engine with a manifest for this build, or None without a usable entry.

        The log's report receives the findings of the stored build. Loading counts as a use of
        the entry. Entries that were not used for ``store_keep_days`` days are removed.
        """
        options, short = self._options, self._key[:16]
        with log.step('store') as step:
            if options.qdq_onnx is not None:
                step.skip('not used: the store has no models with Q/DQ nodes (--qdq-onnx)')
                return None
            stored = self._store.find(self._key)
            if options.store_keep_days is not None:
                self._store.prune(options.store_keep_days)
            engine = None
            if stored is not None:
                try:
                    engine = _adapt_stored_engine(stored, options, log.report)
                except (ManifestError, ValueError, KeyError, TypeError, RecursionError) as error:
                    log.report.warn(
                        f'the stored engine {short} cannot be used: {failure_reason(error)}'
                    )
            log.report.reused = engine is not None
            step.outcome = f'{"no entry" if engine is None else "reused"} {short}'
        return engine

    def save(self, engine: ModelFile, report: BuildReport) -> None:
        """Store the finished engine. A failure only adds a warning to the report."""
        assert engine.manifest is not None
        stored = StoredEngine(
            engine.content, serialise_manifest(engine.manifest), report.json_text()
        )
        try:
            self._store.put(self._key, stored)
        except ConfigError as error:  # the engine was already written
            report.warn(f'the engine was not stored for the next build: {error}')


def _adapt_stored_engine(
    stored: StoredEngine, options: BuildOptions, report: BuildReport
) -> ModelFile:
    """Return a stored engine with a manifest for these options, and fill the report.

    Raises:
        ManifestError: the manifest cannot be read, or belongs to another engine.
        ValueError, KeyError, TypeError, RecursionError: the report cannot be read.
    """
    manifest = parse_manifest(stored.manifest, str(options.store))
    file = model_file_in_memory(options.engine_path(), stored.engine)
    if manifest.engine is None or manifest.engine.sha256 != file.sha256:
        raise ManifestError(str(options.store), 'the manifest describes another engine')
    old = json.loads(stored.report)
    for name in _REUSED_REPORT_FIELDS:
        setattr(report, name, old[name])
    report.warn(*old['warnings'])
    manifest = replace(
        manifest,
        engine=file.identity,
        onnx=manifest.onnx and replace(manifest.onnx, file=options.onnx.name),
        build=manifest.build and replace(manifest.build, options=recorded_options(options)),
    )
    return replace(file, manifest=manifest)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
