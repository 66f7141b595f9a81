# SPDX-License-Identifier: Apache-2.0
"""Check that layers import only downwards, modules load late, and public names have docstrings."""

import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import trt_perception
from support.optional_packages import needs
from support.source_trees import PACKAGE, nodes_of, package_trees

# The layers from top to bottom, as in docs/architecture.md. A module may import its own layer and
# lower layers. Entries are modules or packages (with all their modules) below trt_perception.
LAYERS = {
    'shells': ['api', 'commands', 'ros', 'offline.bags', 'offline.tools'],
    'offline': ['checks', 'offline'],
    'scheduling': ['scheduling'],
    'pipelines': ['pipelines'],
    'stages': ['stages'],
    'parameters': ['parameters'],
    'model': ['model'],
    'parts': ['bags', 'gpu', 'images', 'boxes_3d', 'monitoring', 'tracking', 'wire'],
    'ground': ['errors', 'files', 'process', 'transport'],
}
# Folders whose modules all serve the library of this name.
NAMED_AFTER_LIBRARIES = ['pipelines.cuda', 'stages.tensorrt']
# Packages of one layer that must not import each other.
APART = [('ros', 'offline.tools')]

# The only modules that may import packages that are slow to load or not always installed.
ONLY = {
    'onnxruntime': [
        'stages.onnx_runtime',
        'offline.building.calibration.activations',
        'offline.building.graph.onnx_slim',
        'offline.building.precision.quantise',
    ],
    'tensorrt': ['stages.tensorrt.plan'],
    'tensorrt_lean': ['stages.tensorrt.plan'],
    'tensorrt_rtx': ['stages.tensorrt.plan'],
    'cuda': ['gpu.bindings'],
    'nvtx': ['pipelines.nvtx_ranges'],
    'grpc': ['stages.triton.connection'],
    'tritonclient': ['stages.triton.connection'],
    'pycocotools': ['offline.evaluation.coco.library'],
    'scipy': ['tracking.assignment'],
    'cv_bridge': ['wire.frames'],
    'mcap': ['bags.libraries'],
    'zstandard': ['bags.libraries'],
    'lz4': ['bags.libraries'],
    'zlib_ng': ['bags.checksum'],
    'ray': ['offline.bags.ray_workers'],
}
# Packages of the extra 'build', and the packages of the project that may import them on loading.
ONLY_OFFLINE = {
    'onnx': ['offline.building'],
    'onnxslim': ['offline.building'],
    'pycocotools': ['offline.evaluation'],
}
ROS = ('rclpy', 'rosbag2_py', 'ament_index_python', 'launch', 'launch_ros')
NEVER = ('torch', 'ultralytics', 'pycuda', 'cupy')


def module_name(path):
    """Return a module's dotted name below the package, '' for the package itself."""
    return path.removesuffix('.py').removesuffix('__init__').strip('/').replace('/', '.')


#: The paths of all modules, relative to the package.
PATHS = [path.relative_to(PACKAGE).as_posix() for path in sorted(PACKAGE.rglob('*.py'))]
MODULES = {module_name(path): path for path in PATHS}


@functools.cache
def imports(name):
    """Return the full names that a module imports, also within functions."""
    trees = [package_trees()[MODULES[name]]]
    found = {alias.name for node in nodes_of(trees, ast.Import) for alias in node.names}
    for node in nodes_of(trees, ast.ImportFrom):
        assert node.level == 0, f'{name}: relative imports hide the full name'
        # "from package import module" also imports the module.
        found |= {node.module} | {f'{node.module}.{alias.name}' for alias in node.names}
    for node in nodes_of(trees, ast.Call):
        target = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
        if target in ('import_module', '__import__'):
            literal = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            found |= {value for value in literal if isinstance(value, str)}
    return found


def own_imports(name):
    """Return the modules of the package that a module imports."""
    inside = {entry.removeprefix('trt_perception.') for entry in imports(name)}
    return {entry for entry in inside if entry and entry in MODULES and entry != name}


def external_imports(name):
    """Return the top-level names of other packages that a module imports."""
    return {entry.split('.')[0] for entry in imports(name)} - {'trt_perception'}


def is_in(name, entry):
    return name == entry or name.startswith(entry + '.')


def layer(name):
    """Return the index of a module's layer, 0 at the top."""
    for index, entries in enumerate(LAYERS.values()):
        if any(is_in(name, entry) for entry in entries):
            return index
    return None


def is_ros(top):
    return top in ROS or top.endswith(('_msgs', '_interfaces')) or top.startswith('rosidl')


def test_modules_and_their_imports_are_found():
    assert len(MODULES) > 20
    some = {
        '',
        'images.frame',
        'scheduling.worker_pool',
        'model.decoders.anchors',
        'ros.detector_node',
    }
    assert some <= set(MODULES)
    assert 'stages.nms' in own_imports('stages.selection')
    assert 'onnxruntime' in external_imports('stages.onnx_runtime')  # within a function
    assert 'rclpy' in external_imports('ros.detector_node')


# Each rule has one test for all modules. One test per module would be hundreds of tests, and each
# test costs more time than its check. The message names every module that breaks the rule.


def test_every_module_has_a_layer():
    without_layer = [name for name in MODULES if name and layer(name) is None]
    assert not without_layer, f'add {without_layer} to LAYERS and docs/architecture.md'


def test_package_readme_lists_folders_and_modules_in_the_order_of_the_layers():
    rows = re.findall(r'^\| (`.*?) \|', (PACKAGE / 'README.md').read_text(), re.MULTILINE)
    listed = [entry for row in rows for entry in re.findall(r'`(\w+)(?:/|\.py)`', row)]
    tops = [path.stem for path in PACKAGE.iterdir() if (path / '__init__.py').is_file()]
    tops += [path.stem for path in PACKAGE.glob('*.py') if path.stem != '__init__']
    assert sorted(listed) == sorted(tops)
    # offline is in two layers. Its tools are in the upper one.
    layers = [layer(f'{entry}.tools' if entry == 'offline' else entry) for entry in listed]
    assert layers == sorted(layers)


def test_importing_the_package_loads_no_other_module():
    code = (
        'import sys, trt_perception\n'
        'print(*(name for name in sys.modules if name.startswith("trt_perception")))\n'
        'print("numpy" in sys.modules)'
    )
    process = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout.split() == ['trt_perception', 'False']


def test_imports_lead_only_to_lower_layers():
    pairs = [(name, other) for name in MODULES if name for other in own_imports(name)]
    assert len(pairs) > 300
    upwards = [(name, other) for name, other in pairs if layer(other) < layer(name)]
    for left, right in APART:
        for importer, imported in ((left, right), (right, left)):
            upwards += [
                pair for pair in pairs if is_in(pair[0], importer) and is_in(pair[1], imported)
            ]
    assert not upwards


def test_nothing_outside_offline_imports_it():
    """The commands start its tools by name, as texts in commands.py."""
    inside = [name for name in MODULES if is_in(name, 'offline')]
    assert any(is_in(other, 'offline.building') for name in inside for other in own_imports(name))
    outside = [name for name in MODULES if name not in inside]
    wrong = [(name, other) for name in outside for other in own_imports(name) if other in inside]
    assert not wrong


def test_lower_layers_import_only_small_parameter_records():
    """Allow only records that contain no more values than lower layers need."""
    free = ('parameters', *LAYERS['shells'])
    names = [name for name in MODULES if name and not any(is_in(name, each) for each in free)]
    imported_names = {entry for name in names for entry in imports(name)}
    assert {
        entry for entry in imported_names if entry.startswith('trt_perception.parameters.')
    } == {
        'trt_perception.parameters.camera',
        'trt_perception.parameters.camera.CameraPlan',
    }


def test_imports_have_no_cycles():
    waiting = {name: own_imports(name) for name in MODULES}
    while waiting:
        free = [name for name, needs in waiting.items() if not needs & set(waiting)]
        assert free, f'these import each other: {sorted(waiting)}'
        for name in free:
            del waiting[name]


def may_import(name, top):
    """Return whether a module may import this top-level name of another package."""
    if top in NEVER or (is_ros(top) and not is_in(name, 'ros')):
        return False
    if top in ONLY and name not in ONLY[top]:
        return False
    return top not in ONLY_OFFLINE or any(is_in(name, entry) for entry in ONLY_OFFLINE[top])


def test_only_listed_modules_import_restricted_packages():
    wrong = [(name, top) for name in MODULES for top in external_imports(name)]
    wrong = [(name, top) for name, top in wrong if not may_import(name, top)]
    assert not wrong


@pytest.mark.parametrize(
    ('name', 'top', 'expected'),
    [
        ('gpu.bindings', 'cuda', True),
        ('pipelines.cuda.slot', 'cuda', False),
        ('ros.detector_node', 'rclpy', True),
        ('wire.frames', 'cv_bridge', True),
        ('wire.cdr', 'cv_bridge', False),
        ('wire.frames', 'sensor_msgs', False),
        ('scheduling.worker_pool', 'sensor_msgs', False),
        ('offline.evaluation.coco.annotations', 'pycocotools', False),
        ('offline.building.graph.onnx_model', 'onnx', True),
        ('stages.nms', 'onnx', False),
        ('offline.building.steps.prepare', 'torch', False),
        ('stages.nms', 'numpy', True),
    ],
)
def test_forbidden_import_is_found(name, top, expected):
    assert may_import(name, top) is expected


def test_no_module_has_the_name_of_another_package():
    names = {name.split('.')[-1] for name in MODULES if name not in NAMED_AFTER_LIBRARIES}
    assert not names & {*ONLY, *ONLY_OFFLINE, *ROS, *NEVER, 'numpy', 'cv2'}


LOADER = """
import importlib, sys
heavy = set(sys.argv[1].split(','))
for name in sys.argv[2].split(','):
    importlib.import_module('trt_perception.' + name)
    loaded = {module.split('.')[0] for module in sys.modules}
    bad = {top for top in loaded if top in heavy or top.endswith('_msgs')}
    if bad:
        sys.exit(f'importing {name} loads {sorted(bad)}')
print(sys.modules['trt_perception'].__file__)
"""


def load(names, heavy=(*ONLY, *ROS, *NEVER)):
    return subprocess.run(
        [sys.executable, '-c', LOADER, ','.join(heavy), ','.join(names)],
        capture_output=True,
        text=True,
        timeout=280,
    )


@needs('onnx', 'onnxslim', 'ml_dtypes')
def test_importing_modules_loads_no_restricted_package():
    names = [name for name in MODULES if name and not is_in(name, 'ros')]
    result = load(names)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()) == Path(trt_perception.__file__)


def test_loader_reports_a_restricted_package():
    result = load(['images.frame'], heavy=['numpy'])
    assert result.returncode == 1
    assert "importing images.frame loads ['numpy']" in result.stderr


PUBLIC = [name for name in MODULES if not is_in(name, 'ros')]


def test_no_module_imports_a_private_name_of_another():
    names = [
        (name, entry)
        for name in MODULES
        for entry in imports(name)
        if entry.startswith('trt_perception.')
    ]
    assert len(names) > 1000
    assert not [(n, entry) for n, entry in names if re.search(r'\._[a-z]|\._[A-Z]', entry)]


def public_members(name):
    """Map the names of a module's public functions, classes and their public methods to each."""
    module = importlib.import_module('.'.join(filter(None, ['trt_perception', name])))
    members = {name: module}
    for entry, value in vars(module).items():
        is_own = getattr(value, '__module__', None) == module.__name__
        if entry.startswith('_') or not is_own:
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            members[f'{name}.{entry}'] = value
        if inspect.isclass(value):
            members |= {
                f'{name}.{entry}.{member}': getattr(value, member)
                for member, method in vars(value).items()
                if not member.startswith('_')
                and isinstance(method, property | staticmethod | classmethod | FunctionType)
            }
    return members


def is_documented(name, value):
    """Return whether a docstring exists. A method may inherit that of the method it overrides."""
    text = value.__doc__ if inspect.isclass(value) else inspect.getdoc(value)
    # The generated docstring of a dataclass does not count.
    return bool(text) and not text.startswith(f'{name.rpartition(".")[2]}(')


def test_public_names_are_documented():
    members = {key: value for name in PUBLIC for key, value in public_members(name).items()}
    assert len(members) > 1500
    assert not [name for name, value in members.items() if not is_documented(name, value)]
