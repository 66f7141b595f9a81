"""Has Python processes measured from their first import of trt_perception on.

scripts/test puts this folder on PYTHONPATH. Coverage itself would start in every process, which
takes as long as much of what runs: cameras, and imports that doctor tries.
"""

import os
import sys


class _StartAtImport:
    """Finds no module; starts coverage when somebody asks for the package."""

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
