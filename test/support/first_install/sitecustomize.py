# SPDX-License-Identifier: Apache-2.0
"""Hide packages from Python, as if they were not installed. The folder belongs on PYTHONPATH.

TRT_PERCEPTION_HIDDEN is a comma-separated list of module and distribution names.
"""

import os
import sys
from importlib.machinery import PathFinder

_HIDDEN = frozenset(os.environ['TRT_PERCEPTION_HIDDEN'].split(','))


class _HidingFinder(PathFinder):
    """Finds modules as Python does, except hidden modules, distributions and plugins."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition('.')[0] in _HIDDEN else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *args, **kwargs):
        for found in super().find_distributions(*args, **kwargs):
            if found.metadata['Name'] not in _HIDDEN:
                yield found


sys.meta_path[:] = [_HidingFinder if one is PathFinder else one for one in sys.meta_path]
