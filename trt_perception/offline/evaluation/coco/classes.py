# SPDX-License-Identifier: Apache-2.0
"""Matches the classes of a model with annotated categories by name.

Numbers differ between files: COCO's category ids go from 1 to 90 with gaps, while a network's
class ids go from 0 to 79.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trt_perception.errors import ConfigError
from trt_perception.files.plain_text import closest_words, short_repr
from trt_perception.offline.evaluation.coco.annotations import Annotations
from trt_perception.offline.evaluation.coco.section import read_json

_MAP_MAX_BYTES: Final = 4 * 1024**2
_MAX_LISTED: Final = 10


@dataclass(frozen=True)
class ClassMap:
    """Maps the classes of a model to annotated categories.

    Attributes:
        category_ids: one entry for each class of the model; None if the class is not measured.
        categories: maps the id of each measured category to its name.
        ignored_classes: names of classes that are not measured.
        ignored_categories: names of annotated categories that are not measured.
    """

    category_ids: tuple[int | None, ...]
    categories: Mapping[int, str]
    ignored_classes: tuple[str, ...] = ()
    ignored_categories: tuple[str, ...] = ()


def read_class_map(path: Path) -> dict[str, str | None]:
    """Read a JSON object that maps class names to category names, or to null to skip a class.

    Raises:
        ConfigError: the file cannot be read or has other content.
    """
    content = read_json(path, _MAP_MAX_BYTES)
    if not isinstance(content, dict) or not all(
        value is None or isinstance(value, str) for value in content.values()
    ):
        raise ConfigError(
            str(path),
            'other JSON content',
            expected='a JSON object from class name to category name or null, as in '
            '{"motorbike": "motorcycle", "tree": null}',
        )
    return content


def match_classes(
    class_names: Sequence[str],
    annotations: Annotations,
    *,
    class_map: Mapping[str, str | None] | None = None,
    allow_subset: bool = False,
    model: str = 'the model',
) -> ClassMap:
    """Find the category of each class by its name.

    Args:
        annotations: annotations with categories and objects. The model may lack a category that
            has no objects, because nothing is measured for this category.
        class_map: category names of classes whose names differ; None skips a class. Several
            classes may share a category. All other classes use their own name.
        allow_subset: whether to measure only categories that have a class.

    Raises:
        ConfigError: names do not match. The message lists these names and similar names.
    """
    class_map = class_map or {}
    _check_class_map(class_map, class_names, annotations, model)
    by_name = _category_ids_by_name(annotations)
    target_names = [class_map.get(name, name) for name in class_names]
    ids = tuple(None if name is None else by_name.get(name) for name in target_names)
    annotated_ids = {box.category_id for boxes in annotations.objects.values() for box in boxes}
    without_category = [
        name
        for name, target_name, category in zip(class_names, target_names, ids, strict=True)
        if category is None and target_name is not None
    ]
    without_class = [annotations.categories[id_] for id_ in sorted(annotated_ids - set(ids))]
    if not set(ids) & annotated_ids or ((without_category or without_class) and not allow_subset):
        raise ConfigError(
            f'the class names of {model} and the categories of {annotations.path}',
            _describe_mismatch(
                class_names, annotations, without_category, without_class, set(ids) & annotated_ids
            ),
            fix='give evaluate_engine a class map (--class-map FILE), a JSON file such as '
            '{"class name": "category name", "another": null}'
            + (
                ', or --allow-subset, to measure common names only'
                if set(ids) & annotated_ids
                else ''
            ),
        )
    return ClassMap(
        ids,
        {id_: annotations.categories[id_] for id_ in sorted({i for i in ids if i is not None})},
        tuple(name for name, id_ in zip(class_names, ids, strict=True) if id_ is None),
        tuple(without_class),
    )


def _check_class_map(
    class_map: Mapping[str, str | None],
    class_names: Sequence[str],
    annotations: Annotations,
    model: str,
) -> None:
    targets = [name for name in class_map.values() if name is not None]
    for what, names, known in (
        (f'class of {model}', class_map, class_names),
        ('category of the annotations', targets, list(annotations.categories.values())),
    ):
        known_names = set(known)
        unknown = [name for name in names if name not in known_names]
        if unknown:
            raise ConfigError(
                'the class map',
                f'names that are not a {what}: {_list_with_nearest(unknown, known)}',
                fix=f'use one of: {_list_with_nearest(known)}',
            )


def _category_ids_by_name(annotations: Annotations) -> dict[str, int]:
    by_name: dict[str, int] = {}
    for id_, name in annotations.categories.items():
        if name in by_name:
            raise ConfigError(
                str(annotations.path),
                f'category {short_repr(name)} is listed twice (ids {by_name[name]} and {id_}), so '
                'its name does '
                'not identify it',
                fix='rename one',
            )
        by_name[name] = id_
    return by_name


def _describe_mismatch(
    class_names: Sequence[str],
    annotations: Annotations,
    without_category: Sequence[str],
    without_class: Sequence[str],
    matched: set[int | None],
) -> str:
    categories = list(annotations.categories.values())
    lines = [f'{"incomplete" if matched else "no"} match:']
    if without_category:
        lines.append(
            f'  classes without a category ({len(without_category)} of {len(class_names)}): '
            f'{_list_with_nearest(without_category, categories)}'
        )
    if without_class:
        lines.append(
            f'  annotated categories without a class ({len(without_class)} of '
            f'{len(categories)}): {_list_with_nearest(without_class, class_names)}'
        )
    if not without_category and not without_class:
        lines.append('  no object is annotated in the categories of the classes')
    return '\n'.join(lines)


def _list_with_nearest(names: Iterable[str], others: Sequence[str] = ()) -> str:
    """Return the first names as text, each with the most similar name in ``others``."""
    names = list(names)
    folded = {other.casefold().replace('_', ' ').replace('-', ' '): other for other in others}
    listed = []
    for name in names[:_MAX_LISTED]:
        key = name.casefold().replace('_', ' ').replace('-', ' ')
        near = closest_words(key, folded)
        listed.append(
            f'{short_repr(name)} (nearest: {folded[near[0]]!r})' if near else short_repr(name)
        )
    more = len(names) - len(listed)
    return ', '.join(listed) + (f' and {more} more' if more else '')
