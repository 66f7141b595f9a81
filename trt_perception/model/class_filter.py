# SPDX-License-Identifier: Apache-2.0
"""Turns a class filter into class indices."""

from __future__ import annotations

import functools
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import join_first_items

_MAX_LISTED_CLASSES: Final = 20


@functools.lru_cache(maxsize=2)  # called after each change of a live parameter
def class_filter_ids(
    class_filter: tuple[str, ...], class_names: tuple[str, ...]
) -> tuple[int, ...]:
    """Return the sorted indices of the classes in a filter, without duplicates.

    Args:
        class_filter: class names, the parameter ``class_filter``; empty for all classes.

    Returns:
        Empty if the filter is empty.

    Raises:
        ConfigError: the filter has a name that is not a class of the model.
    """
    by_name = _class_ids_by_name(class_names) if class_filter else {}
    unknown = [name for name in class_filter if name not in by_name]
    if unknown:
        expected = f'classes of the model: {join_first_items(class_names, _MAX_LISTED_CLASSES)}'
        raise ConfigError(
            "parameter 'class_filter'",
            join_first_items(unknown, _MAX_LISTED_CLASSES),
            expected=expected,
        )
    return tuple(sorted({by_name[name] for name in class_filter}))


@functools.lru_cache(maxsize=2)
def _class_ids_by_name(class_names: tuple[str, ...]) -> dict[str, int]:
    return {name: index for index, name in enumerate(class_names)}
