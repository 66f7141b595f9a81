"""Whoever installs what package.xml and setup.py name has everything that the package imports.

rosdep reads package.xml; pip, where there is no ROS, the extras of setup.py.
"""

import ast
import sys
from xml.etree import ElementTree

import pytest

from support.source_trees import ROOT, nodes_of, package_trees, tree_of
from trt_perception.model.build_record import FLAVOURS

# Packages that rosdep knows by another name than their import.
ROSDEP = {
    'PIL': 'python3-pil',
    'cv2': 'python3-opencv',
    'numpy': 'python3-numpy',
    'tqdm': 'python3-tqdm',
    'yaml': 'python3-yaml',
}
# The names that pip knows; what is not in ROSDEP rosdep does not have on every platform.
EXTRAS = {
    'PIL': 'pillow',
    'cuda': 'cuda-bindings',
    'cv2': 'opencv-python-headless',
    'matplotlib': 'matplotlib',
    'ml_dtypes': 'ml_dtypes',
    'numpy': 'numpy',
    'onnx': 'onnx',
    'onnxruntime': 'onnxruntime',
    'onnxslim': 'onnxslim',
    'pycocotools': 'pycocotools',
    'tensorrt': 'tensorrt-cu13',
    'tensorrt_rtx': 'tensorrt-rtx-cu13',
    'tqdm': 'tqdm',
    'yaml': 'pyyaml',
}
# What is imported by a name that stands elsewhere: the files, and the names.
BY_NAME = {
    '__init__.py': (),
    'building/engine/inspector.py': FLAVOURS,
    'building/engine/release.py': FLAVOURS,
    'commands.py': (),
    'evaluation/coco/library.py': ('pycocotools',),
    'stages/tensorrt_runtime.py': FLAVOURS,
}


def imported_names():
    """Return the top-level names that package and launch files import, with one file of each."""
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


def package_xml():
    root = ElementTree.parse(ROOT / 'package.xml').getroot()
    return {element.text for element in root if element.tag in ('depend', 'exec_depend')}


def extras():
    """Return the packages that setup.py's extras name, without their versions."""
    for node in nodes_of([tree_of(ROOT / 'setup.py')], ast.keyword):
        if node.arg == 'extras_require':
            lists = ast.literal_eval(node.value).values()
            return {
                entry.split('[')[0].split('<')[0].split('>')[0] for one in lists for entry in one
            }
    raise AssertionError('setup.py has no extras_require')


@pytest.fixture(scope='module', name='imported')
def _imported():
    return imported_names()


def test_every_import_is_declared(imported):
    for name, path in imported.items():
        if name in EXTRAS:
            assert EXTRAS[name] in extras(), f'{path} imports {name}: name it in setup.py'
        if name in ROSDEP or name not in EXTRAS:
            wanted = ROSDEP.get(name, name)
            assert wanted in package_xml(), f'{path} imports {name}: name {wanted} in package.xml'


def test_nothing_is_declared_that_nobody_imports(imported):
    declared = {ROSDEP.get(name, name) for name in imported}
    # The node's transitions are rclpy's, which needs their messages at run time.
    assert package_xml() - declared <= {'lifecycle_msgs'}
    # The rest of setup.py's extras goes with these: a compiler, a library, and pytest.
    others = {'nvidia-cuda-nvrtc', 'nvidia-cuda-nvrtc-cu12', 'nvidia-nvjpeg', 'pytest'}
    assert extras() - {EXTRAS[name] for name in imported if name in EXTRAS} <= others
