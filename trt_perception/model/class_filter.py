"""The classes that a filter names, as indices."""

from __future__ import annotations

import functools
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import join_first

__all__ = ['class_filter_ids']

_MAX_LISTED: Final = 20


@functools.lru_cache(maxsize=2)  # asked again with any change of another parameter
def class_filter_ids(
    class_filter: tuple[str, ...], class_names: tuple[str, ...]
) -> tuple[int, ...]:
    """Return the indices of the wanted names, sorted, each once; empty where none is wanted.

    Args:
        class_filter: the parameter ``class_filter``.
        class_names: of the model.

    Raises:
        ConfigError: the model has no class of such a name.
    """
    by_name = _index_by_name(class_names) if class_filter else {}
    unknown = [name for name in class_filter if name not in by_name]
    if unknown:
        expected = f'classes of the model: {join_first(class_names, _MAX_LISTED)}'
        raise ConfigError(
            "parameter 'class_filter'", join_first(unknown, _MAX_LISTED), expected=expected
        )
    return tuple(sorted({by_name[name] for name in class_filter}))


@functools.lru_cache(maxsize=2)
def _index_by_name(class_names: tuple[str, ...]) -> dict[str, int]:
    return {name: index for index, name in enumerate(class_names)}
