# SPDX-License-Identifier: Apache-2.0
"""Presets of other Python packages, which their entry points name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.model.decoder import Decoder, DecoderPreset

#: The group of the entry points. Each names a DecoderPreset, or a tuple of them.
GROUP: Final = 'trt_perception.decoders'
_LOG: Final = logging.getLogger(__name__)


def installed_presets(own: Iterable[DecoderPreset]) -> tuple[DecoderPreset, ...]:
    """Import the packages with presets, and return their presets.

    A package that cannot be imported, or whose entry point names something else, is logged. This
    function runs code of installed packages.

    Args:
        own: the presets of trt_perception.

    Raises:
        ConfigError: a package adds a name of a preset or family that exists.
    """
    sources = dict.fromkeys((preset.name for preset in own), 'trt_perception')
    families: dict[str, type[Decoder]] = {each.decoder.family: type(each.decoder) for each in own}
    found: list[DecoderPreset] = []
    for entry in entry_points(group=GROUP):
        source = _source(entry)
        for preset in _load(entry, source):
            _check_names(preset, source, sources, families)
            sources[preset.name] = source
            families[preset.decoder.family] = type(preset.decoder)
            found.append(preset)
    return tuple(found)


def _source(entry: EntryPoint) -> str:
    return f'{entry.dist.name} {entry.dist.version}' if entry.dist else entry.value


def _load(entry: EntryPoint, source: str) -> tuple[DecoderPreset, ...]:
    try:
        loaded = entry.load()
        presets = (loaded,) if isinstance(loaded, DecoderPreset) else tuple(loaded)
        if not all(isinstance(p, DecoderPreset) and hasattr(p.decoder, 'family') for p in presets):
            raise TypeError(
                f'{entry.value} must be a DecoderPreset or a tuple of them, each with a decoder '
                'that has a family'
            )
    except Exception as error:  # any error of a package must leave the other decoders usable
        reason = f'{type(error).__name__}: {error}'
        _LOG.warning('decoders of %s are not used: %s', source, reason, extra={'show': True})
        return ()
    return presets


def _check_names(
    preset: DecoderPreset,
    source: str,
    sources: Mapping[str, str],
    families: Mapping[str, type[Decoder]],
) -> None:
    """Check that the names of a preset and of its family are new.

    Raises:
        ConfigError: a name exists.
    """
    name, family = preset.name, preset.decoder.family
    fix = 'rename it in one of the packages, or uninstall one'
    if name in sources:
        found = f'added by {source} and by {sources[name]}'
        raise ConfigError(f'decoder {name!r}', found, expected='one preset of each name', fix=fix)
    known = families.get(family, type(preset.decoder))
    if known is not type(preset.decoder):
        found = f'{known.__module__} and {type(preset.decoder).__module__} of {source}'
        raise ConfigError(
            f'family {family!r} of decoders', found, expected='one class of each name', fix=fix
        )
