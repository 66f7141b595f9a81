# SPDX-License-Identifier: Apache-2.0
"""Start coverage in Python processes at their first import of trt_perception.

scripts/test puts this folder on PYTHONPATH. coverage's own hook would start coverage in every
process. That start takes as long as a whole short process, such as a camera of a test or an import
that doctor tries.
"""

import os
import sys


class _StartAtImport:
    """An import hook that starts coverage at the package's first import. It finds no module."""

    def __init__(self, settings):
        self._settings = settings

    def find_spec(self, name, path=None, target=None):
        if name == 'trt_perception':
            sys.meta_path.remove(self)
            import coverage

            os.environ['COVERAGE_PROCESS_START'] = self._settings
            coverage.process_startup()
            del os.environ['COVERAGE_PROCESS_START']


if settings := os.environ.get('TRT_PERCEPTION_COVERAGE'):
    sys.meta_path.insert(0, _StartAtImport(settings))
