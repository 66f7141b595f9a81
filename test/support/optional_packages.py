# SPDX-License-Identifier: Apache-2.0
"""Skip tests that need a package which the README's first installation does not include."""

import importlib.util
from pathlib import Path

import pytest

#: Import names of the optional packages. docs/testing.md says how to install the packages.
OPTIONAL = frozenset(
    [
        *('onnx', 'onnxslim', 'ml_dtypes', 'tensorrt_rtx'),
        *('pycocotools', 'matplotlib', 'hypothesis', 'scipy', 'grpc', 'tritonclient', 'nvtx'),
        *('mcap', 'mcap_ros2', 'zstandard', 'lz4', 'zlib_ng', 'rosbags', 'ray'),
        *('foxglove_msgs', 'bond', 'cyclonedds'),
    ]
)
TEST_FOLDER = Path(__file__).resolve().parents[1]
#: The part of the package that may import optional packages when it is imported.
BUILDING = 'trt_perception/offline/building'


def needs(*packages):
    """Return a mark that skips a test or a file (`pytestmark`) without these packages."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f'needs {" and ".join(missing)}')


def missing_optional_package(error):
    """Return the optional package whose absence caused an error; None for other errors.

    Tests and `trt_perception.offline.building` may import optional packages. The rest of the
    package must work without them, so a missing import there is a failure.
    """
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            name = (error.name or '').partition('.')[0]
            return name if name in OPTIONAL and _is_excused(error) else None
        error = error.__cause__
    return None


def _is_excused(error):
    """Return whether tests or `trt_perception.offline.building` made the import that failed."""
    importer = None
    traceback = error.__traceback__
    while traceback is not None:
        path = Path(traceback.tb_frame.f_code.co_filename)
        if TEST_FOLDER in path.parents or 'trt_perception' in path.parts:
            importer = path
        traceback = traceback.tb_next
    if importer is None:
        return False
    if TEST_FOLDER in importer.parents:
        return True
    return f'/{BUILDING}/' in importer.as_posix()


class Module(pytest.Module):
    """Skips all tests of a test file if its import needs a missing optional package."""

    def collect(self):
        try:
            return super().collect()
        # a name in pytest_plugins causes an ImportError
        except (self.CollectError, ImportError) as error:
            if package := missing_optional_package(error):
                pytest.skip(f'needs {package}', allow_module_level=True)
            raise


def skipping():
    """Wrap a hook that runs a test or its fixtures. Skip if an optional package is missing."""
    try:
        return (yield)
    except ModuleNotFoundError as error:
        if package := missing_optional_package(error):
            pytest.skip(f'needs {package}')
        raise
