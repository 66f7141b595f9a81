# SPDX-License-Identifier: Apache-2.0
"""Packaging of trt_perception for colcon (ament_python)."""

from pathlib import Path

from setuptools import find_packages, setup

PACKAGE = 'trt_perception'


# Files that are installed below share/. Of the models and scenes, only those of demo.launch.py,
# with their licences: all others would take 12 MB on each robot. scripts/demo uses the checkout's.
SHARED_FILES = (
    'package.xml',
    'launch/*.py',
    'config/*',
    'models/README.md',
    'models/digits.onnx*',
    'demo/README.md',
    'demo/scenes/scene_00?.jpg',
)


def data_files():
    """Return (target, sources) of all files that are installed besides the Python modules."""
    return [
        ('share/ament_index/resource_index/packages', [f'resource/{PACKAGE}']),
        *(
            (f'share/{PACKAGE}/{path.parent}', [str(path)])
            for pattern in SHARED_FILES
            for path in sorted(Path().glob(pattern))
        ),
    ]


setup(
    name=PACKAGE,
    version='0.2.0',
    packages=find_packages(include=[PACKAGE, f'{PACKAGE}.*']),
    package_data={
        PACKAGE: ['py.typed'],
        f'{PACKAGE}.bags': ['message_definitions.json'],
        f'{PACKAGE}.stages': ['kernels/*'],
        f'{PACKAGE}.offline.report_page': ['*.css', '*.js'],
    },
    data_files=data_files(),
    install_requires=['setuptools'],
    # CUDA's major version must not exceed the driver's: cu12 for JetPack 6, cu13 for JetPack 7 and
    # driver r580.
    extras_require={
        'test': ['pytest'],
        # For use without ROS 2. With ROS 2, rosdep installs these from package.xml.
        'python': [
            'numpy',
            'opencv-python-headless',
            'onnxruntime',
            'pillow',
            'pyyaml',
            # Optional, and rosdep has only a pip key for it. OpenCV decodes JPEG without it.
            'simplejpeg>=1.9',
            'tqdm',
        ],
        'build': [
            'onnx',
            'onnxslim',
            'onnxruntime',
            'ml_dtypes',
            'pycocotools',
        ],
        # Tracking of objects.
        'track': ['scipy'],
        # Bags of ROS topics. mcap needs the next two for compressed chunks. zlib-ng is optional:
        # raw images are read faster with it. 1.0 is the first release with wheels for Python 3.14.
        'bag': ['mcap>=1.6', 'zstandard', 'lz4', 'zlib-ng>=1.0'],
        # detect_bag --ray. 2.60 is the release that was run.
        'ray': ['ray>=2.60,<3'],
        'evaluate': ['pycocotools', 'matplotlib'],
        'cu12': ['cuda-bindings>=12.9,<13', 'nvidia-cuda-nvrtc-cu12'],
        'cu13': ['cuda-bindings>=13.0.3,<14', 'nvidia-cuda-nvrtc'],
        # JPEG on the GPU. Later releases may have other struct layouts. CUDA 12 needs
        # nvidia-nvjpeg-cu12. JetPack contains nvJPEG.
        'jpeg': ['nvidia-nvjpeg>=13.0,<14'],
        # JetPack contains TensorRT. CUDA 12 needs tensorrt-cu12.
        'tensorrt': ['tensorrt-cu13>=10.3'],
        # Only runs engines of build_engine --version-compatible.
        'tensorrt-lean-cu12': ['tensorrt-lean-cu12>=10.3'],
        'tensorrt-lean-cu13': ['tensorrt-lean-cu13>=10.3'],
        'tensorrt-rtx': ['tensorrt-rtx-cu13'],
        # Ranges for Nsight Systems. 0.2.11 is the first release with wheels for Python 3.13.
        'nvtx': ['nvtx>=0.2.11'],
        # For a model on a Triton server. tritonclient needs a release of protobuf before 7.
        'triton': ['tritonclient[grpc]>=2.60,<3'],
        # The provider `tensorrt_rtx` of ONNX Runtime. Needs Python 3.11.
        'onnx-tensorrt-rtx': ['onnxruntime>=1.24', 'onnxruntime-ep-nv-tensorrt-rtx'],
    },
    zip_safe=True,
    author='trt_perception authors',
    maintainer='trt_perception maintainers',
    maintainer_email='trt_perception@users.noreply.github.com',
    description='Vision models for ROS 2 on TensorRT, or on ONNX Runtime without a GPU.',
    license='Apache-2.0',
    python_requires='>=3.10',
    classifiers=[
        'Programming Language :: Python :: 3.10',
        'Programming Language :: Python :: 3.11',
        'Programming Language :: Python :: 3.12',
        'Programming Language :: Python :: 3.13',
        'Programming Language :: Python :: 3.14',
    ],
    entry_points={
        'console_scripts': [
            'benchmark_engine = trt_perception.commands:benchmark_engine',
            'build_engine = trt_perception.commands:build_engine',
            'detect_bag = trt_perception.commands:detect_bag',
            'detect_images = trt_perception.commands:detect_images',
            'detections_3d = trt_perception.commands:detections_3d',
            'detector_node = trt_perception.commands:detector_node',
            'evaluate_engine = trt_perception.commands:evaluate_engine',
            'export_triton = trt_perception.commands:export_triton',
            'inspect_engine = trt_perception.commands:inspect_engine',
            'doctor = trt_perception.commands:doctor',
            'replay_images = trt_perception.commands:replay_images',
            'write_manifest = trt_perception.commands:write_manifest',
        ],
    },
)
