"""Packaging of trt_perception for colcon (ament_python)."""

from pathlib import Path

from setuptools import find_packages
from setuptools import setup

PACKAGE = 'trt_perception'


def data_files():
    """Return (target, sources) for all that is installed beside the Python modules."""
    share = f'share/{PACKAGE}'
    files = [
        ('share/ament_index/resource_index/packages', [f'resource/{PACKAGE}']),
        (share, ['package.xml']),
    ]
    for folder in ('launch', 'config', 'models', 'demo'):
        files += [
            (f'{share}/{path.parent}', [str(path)])
            for path in sorted(Path(folder).rglob('*'))
            if path.is_file() and '__pycache__' not in path.parts
        ]
    return files


setup(
    name=PACKAGE,
    version='0.1.0',
    packages=find_packages(include=[PACKAGE, f'{PACKAGE}.*']),
    data_files=data_files(),
    install_requires=['setuptools'],
    extras_require={'test': ['pytest']},
    zip_safe=True,
    author='trt_perception authors',
    maintainer='trt_perception maintainers',
    maintainer_email='trt_perception@users.noreply.github.com',
    description='Object detection for ROS 2 on TensorRT, or on ONNX Runtime without a GPU.',
    license='Apache-2.0',
    entry_points={
        'console_scripts': [
            'detector_node = trt_perception.ros.detector_node:main',
            'replay_images = trt_perception.ros.replay_images:main',
        ],
    },
)
