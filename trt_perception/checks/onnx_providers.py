# SPDX-License-Identifier: Apache-2.0
"""Checks of ONNX Runtime: one installation only, and the execution providers that work.

As a program, the module runs a tiny model once with each provider. A separate process is needed,
because libraries of CUDA and TensorRT may end the process.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

from trt_perception.checks.finding import Finding

_AREA: Final = 'Python and packages'
_NAME: Final = 'ONNX Runtime providers'
_TIMEOUT_S: Final = 120
# An ONNX model with one operator: y = Relu(x), float32[1, 4], opset 17.
_TINY_MODEL: Final = (
    b'\x08\x08:;\n\x0c\n\x01x\x12\x01y"\x04Relu\x12\x01gZ\x13\n\x01x\x12\x0e\n\x0c\x08\x01\x12\x08'
    b'\n\x02\x08\x01\n\x02\x08\x04b\x13\n\x01y\x12\x0e\n\x0c\x08\x01\x12\x08\n\x02\x08\x01\n\x02'
    b'\x08\x04B\x04\n\x00\x10\x11'
)


def onnx_provider_findings(device_id: int) -> Iterator[Finding]:
    """Check that ONNX Runtime is installed once, and which providers run a tiny model.

    Args:
        device_id: index of the CUDA device.
    """
    installed = find_installations()
    if len(installed) > 1:
        found = f'{" and ".join(installed)} write the same files, so providers may be missing'
        names = ' '.join(name.split(' ')[0] for name in installed)
        fix = f'python3 -m pip uninstall {names}, then install only one of them'
        yield Finding(_AREA, 'ONNX Runtime packages', 'yellow', found, fix)
    reason = f'after {_TIMEOUT_S} s'
    try:
        ended = subprocess.run(
            [sys.executable, '-m', __name__, str(device_id)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
        )
        reason = f'exit code {ended.returncode}'
        results = json.loads(ended.stdout.splitlines()[-1])
    except (IndexError, ValueError, subprocess.TimeoutExpired):
        found = f'the trial of the providers ended without a result ({reason})'
        fix = 'set onnx_provider to cpu, or install the libraries of the provider again'
        yield Finding(_AREA, _NAME, 'yellow', found, fix)
        return
    works = [provider for provider, problem in results.items() if not problem]
    yield Finding(_AREA, _NAME, 'green', f'{", ".join(works) or "none"} can run models')
    for provider, problem in results.items():
        if problem:
            yield Finding(_AREA, f'{_NAME}: {provider}', 'yellow', *problem)


def find_installations() -> list[str]:
    """Return name and version of each installed package that contains the module onnxruntime."""
    return sorted(
        f'{package.metadata["Name"]} {package.version}'
        for package in metadata.distributions()
        if (package.metadata['Name'] or '').startswith('onnxruntime')
        and any(str(file) == 'onnxruntime/__init__.py' for file in package.files or ())
    )


def trial_results(device_id: int) -> dict[str, tuple[str, ...]]:
    """Run a tiny model once with each installed provider.

    Returns:
        Maps each provider to the observation and the fix of its error, or to ``()`` if it works.
    """
    # Imported late, because NumPy may be broken.
    import numpy as np

    from trt_perception.errors import EngineError
    from trt_perception.model.files.model_file import ModelFile
    from trt_perception.stages.onnx_runtime import OnnxModel, installed_providers

    digest = hashlib.sha256(_TINY_MODEL).hexdigest()
    model = ModelFile(Path('tiny.onnx'), _TINY_MODEL, digest, None)

    def find_problem(provider: str) -> tuple[str, ...]:
        try:
            OnnxModel(model, 1, provider, device_id).run({'x': np.ones((1, 4), np.float32)})
        except EngineError as error:
            return error.statement, error.fix
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            return str(error), 'set onnx_provider to another provider'
        return ()

    return {each: find_problem(each) for each in installed_providers(model.path.name)}


if __name__ == '__main__':
    print(json.dumps(trial_results(int(sys.argv[1]))))
