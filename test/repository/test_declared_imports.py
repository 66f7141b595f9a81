# SPDX-License-Identifier: Apache-2.0
"""Check that package.xml and setup.py declare all packages that the code imports.

rosdep reads package.xml. Installations without ROS use pip, which reads the extras of setup.py.
"""

import ast
import sys
from xml.etree import ElementTree

import pytest

from support.source_trees import ROOT, nodes_of, package_trees, tree_of
from trt_perception.model.build_record import FLAVOURS
from trt_perception.model.files.plan_header import LOADERS

# The rosdep key of each imported package whose key differs from its import name.
ROSDEP = {
    'PIL': 'python3-pil',
    'cv2': 'python3-opencv',
    'numpy': 'python3-numpy',
    'scipy': 'python3-scipy',
    'tqdm': 'python3-tqdm',
    'yaml': 'python3-yaml',
}
# The pip name of each imported package. On some platforms, rosdep has no key for the packages that
# are not in ROSDEP.
EXTRAS = {
    'PIL': 'pillow',
    'cuda': 'cuda-bindings',
    'cv2': 'opencv-python-headless',
    'google': 'tritonclient',  # its dependency protobuf
    'grpc': 'tritonclient',  # its extra grpc
    'lz4': 'lz4',
    'matplotlib': 'matplotlib',
    'mcap': 'mcap',
    'ml_dtypes': 'ml_dtypes',
    'numpy': 'numpy',
    'nvtx': 'nvtx',
    'onnx': 'onnx',
    'onnxruntime': 'onnxruntime',
    'onnxruntime_ep_nv_tensorrt_rtx': 'onnxruntime-ep-nv-tensorrt-rtx',
    'onnxslim': 'onnxslim',
    'pycocotools': 'pycocotools',
    'ray': 'ray',
    'scipy': 'scipy',
    'simplejpeg': 'simplejpeg',
    'tensorrt': 'tensorrt-cu13',
    'tensorrt_lean': 'tensorrt-lean-cu13',
    'tensorrt_rtx': 'tensorrt-rtx-cu13',
    'tqdm': 'tqdm',
    'tritonclient': 'tritonclient',
    'yaml': 'pyyaml',
    'zlib_ng': 'zlib-ng',
    'zstandard': 'zstandard',
}
PLAN_MODULES = tuple(name for names in LOADERS.values() for name in names)
# Packages that users install if they want to: package.xml has no optional dependencies.
OPTIONAL = {'bond', 'foxglove_msgs'}
# Files that call `import_module` with a variable, and the packages that the variable may name.
BY_NAME = {
    '__init__.py': (),
    'offline/building/inspection/inspector.py': PLAN_MODULES,
    'offline/building/engine/release.py': FLAVOURS,
    'bags/libraries.py': ('mcap', 'zstandard', 'lz4'),
    'commands.py': (),
    'offline/evaluation/coco/library.py': ('pycocotools',),
    'stages/onnx_runtime/providers.py': ('onnxruntime_ep_nv_tensorrt_rtx',),
    'stages/tensorrt/plan.py': PLAN_MODULES,
}


def imported_packages():
    """Map each top-level name that package and launch files import to one importing file."""
    launch = {f'launch/{path.name}': tree_of(path) for path in (ROOT / 'launch').glob('*.py')}
    found = {}
    for path, tree in {**package_trees(), **launch}.items():
        names = {alias.name for node in nodes_of([tree], ast.Import) for alias in node.names}
        names |= {node.module for node in nodes_of([tree], ast.ImportFrom)}
        for node in nodes_of([tree], ast.Call):
            called = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
            if called == 'import_module':
                name = node.args[0]
                names |= {name.value} if isinstance(name, ast.Constant) else {*BY_NAME[path]}
        for name in names:
            found.setdefault(name.split('.')[0], path)
    own = {'trt_perception', *sys.stdlib_module_names}
    return {name: path for name, path in found.items() if name not in own}


def rosdep_packages():
    root = ElementTree.parse(ROOT / 'package.xml').getroot()
    return {element.text for element in root if element.tag in ('depend', 'exec_depend')}


def pip_packages():
    """Return the packages that setup.py's extras name, without their versions."""
    for node in nodes_of([tree_of(ROOT / 'setup.py')], ast.keyword):
        if node.arg == 'extras_require':
            lists = ast.literal_eval(node.value).values()
            return {
                entry.split('[')[0].split('<')[0].split('>')[0]
                for names in lists
                for entry in names
            }
    raise AssertionError('setup.py has no extras_require')


@pytest.fixture(scope='module', name='imported')
def _imported():
    return imported_packages()


def test_every_imported_package_is_declared(imported):
    for name, path in imported.items():
        if name in EXTRAS:
            assert EXTRAS[name] in pip_packages(), f'{path} imports {name}: add it to setup.py'
        if name in ROSDEP or name not in {*EXTRAS, *OPTIONAL}:
            rosdep_key = ROSDEP.get(name, name)
            assert rosdep_key in rosdep_packages(), (
                f'{path} imports {name}: add {rosdep_key} to package.xml'
            )


def test_every_declared_package_is_imported(imported):
    assert imported.keys() >= OPTIONAL
    assert not rosdep_packages() & OPTIONAL
    declared = {ROSDEP.get(name, name) for name in imported}
    # rclpy implements the transitions of the node, and needs lifecycle_msgs at run time.
    # The package finds the font by its file.
    assert rosdep_packages() - declared <= {'lifecycle_msgs', 'fonts-roboto'}
    # The extras also list packages that no module imports: a compiler, a library, and pytest.
    others = {'nvidia-cuda-nvrtc', 'nvidia-cuda-nvrtc-cu12', 'nvidia-nvjpeg', 'pytest'}
    others |= {'tensorrt-lean-cu12'}
    assert pip_packages() - {EXTRAS[name] for name in imported if name in EXTRAS} <= others
