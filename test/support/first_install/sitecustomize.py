"""Hides packages from Python, as if they were not installed; a folder for PYTHONPATH.

TRT_PERCEPTION_HIDDEN lists the names of modules and distributions, separated by commas.
"""

import os
import sys
from importlib.machinery import PathFinder

_HIDDEN = frozenset(os.environ['TRT_PERCEPTION_HIDDEN'].split(','))


class _HidingFinder(PathFinder):
    """Finds what Python's own finder does, without hidden modules, distributions and plugins."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition('.')[0] in _HIDDEN else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *args, **kwargs):
        for found in super().find_distributions(*args, **kwargs):
            if found.metadata['Name'] not in _HIDDEN:
                yield found


sys.meta_path[:] = [_HidingFinder if one is PathFinder else one for one in sys.meta_path]
