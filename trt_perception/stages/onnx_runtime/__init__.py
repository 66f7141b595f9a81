# SPDX-License-Identifier: Apache-2.0
"""Run an ONNX model with ONNX Runtime."""

from __future__ import annotations

import importlib
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.onnx_external import find_external_weights, ir_version
from trt_perception.model.tensors import BYTES_BY_DTYPE, TensorSpec
from trt_perception.stages.onnx_runtime.providers import (
    NAMES_BY_PROVIDER,
    add_provider,
    available_providers,
    check_available,
    provider_error,
)

# An ONNX model of one Identity node with opset 17, without the field of the IR version.
_IDENTITY_MODEL: Final = (
    b':7\n\x10\n\x01x\x12\x01y"\x08Identity\x12\x01gZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02'
    b'\x08\x01b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11'
)
# Tensors are NumPy arrays, and NumPy has no bfloat16.
_DTYPES_BY_ONNX_RUNTIME_NAME: Final = {
    f'tensor({name})': name for name in BYTES_BY_DTYPE if name != 'bfloat16'
}


def installed_providers(model: str) -> list[str]:
    """Return the values of `onnx_provider` that this build and the plugin have; they may not work.

    Raises:
        EngineError: ONNX Runtime is not installed.
    """
    return available_providers(_import_runtime(model))


class OnnxModel:
    """One ONNX Runtime session.

    Attributes:
        provider: the provider of the session.
        inputs: name, shape and dtype of each input.
        outputs: name, shape and dtype of each output.
    """

    def __init__(
        self, model: ModelFile, threads: int, provider: str = 'cpu', device_id: int = 0
    ) -> None:
        """Load the model.

        Args:
            threads: number of threads in ONNX Runtime's pool.
            provider: cpu, cuda, tensorrt or tensorrt_rtx. The CPU runs operators that the
                provider lacks.
            device_id: index of the CUDA device; ignored on the CPU.

        Raises:
            EngineError: ONNX Runtime is not installed, cannot use the provider or cannot load
                the model, or the model has weights in other files.
        """
        _check_no_external_weights(model)
        runtime = _import_runtime(model.path.name)
        check_available(runtime, provider)
        self.provider = provider
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Between two frames, a spinning pool would occupy cores that rclpy and the camera driver
        # need.
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        # Print nothing. ONNX Runtime also raises each error as an exception, and the printed text
        # would contain unescaped names from the model.
        options.log_severity_level = 4
        # Refuse ONNX Runtime's own format: only checked ONNX content may be loaded.
        options.add_session_config_entry('session.load_model_format', 'ONNX')
        # For `node_counts`. Releases before 1.24 ignore this entry.
        options.add_session_config_entry('session.record_ep_graph_assignment_info', '1')
        providers = add_provider(runtime, options, provider, model, device_id)
        try:
            # With its fallback, ONNX Runtime would print the error and build a CPU session.
            self._session = runtime.InferenceSession(
                model.content, options, providers=providers, enable_fallback=0
            )
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            if provider != 'cpu':
                raise provider_error(runtime, provider, error) from error
            raise EngineError(
                str(model.path),
                f'ONNX Runtime cannot load it: {error}',
                fix=_fix_for_missing_operator(error) or _fix_for_newer_format(runtime, model),
            ) from error
        if NAMES_BY_PROVIDER[provider] not in self._session.get_providers():
            raise provider_error(runtime, provider, None)
        self.inputs = tuple(_tensor_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_tensor_spec(node) for node in self._session.get_outputs())
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    @property
    def node_counts(self) -> dict[str, int] | None:
        """Number of graph nodes that each provider runs. None if ONNX Runtime is older than 1.24.

        Keys are values of the parameter `onnx_provider`, or ONNX Runtime's names of others.
        """
        if not hasattr(self._session, 'get_provider_graph_assignment_info'):
            return None
        words = {name: word for word, name in NAMES_BY_PROVIDER.items()}
        counts: Counter[str] = Counter()
        for part in self._session.get_provider_graph_assignment_info():
            counts[words.get(part.ep_name, part.ep_name)] += len(part.get_nodes())
        return dict(counts)

    @property
    def diagnostic_values(self) -> tuple[tuple[str, str], ...]:
        """The provider, and how many graph nodes each provider runs, for /diagnostics."""
        counts = self.node_counts
        nodes = 'unknown before ONNX Runtime 1.24'
        if counts is not None:
            nodes = ', '.join(f'{provider} {count}' for provider, count in counts.items())
        return ('provider', self.provider), ('nodes by provider', nodes)

    def run(self, tensors: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Run the model, and return all outputs in their order. Releases the GIL.

        Args:
            tensors: maps the name of each input to its array.
        """
        results: list[npt.NDArray[Any]] = self._session.run(None, dict(tensors))
        return results

    def close(self) -> None:
        """Free the model."""
        self._session = None


def _import_runtime(model: str) -> Any:
    """Import ONNX Runtime. The import is slow, so only processes that run a model need it."""
    try:
        return importlib.import_module('onnxruntime')
    except ImportError as error:
        raise EngineError(
            model,
            'ONNX Runtime is not installed',
            fix='python3 -m pip install onnxruntime, in the virtual environment that the '
            'node runs in',
        ) from error


def _check_no_external_weights(model: ModelFile) -> None:
    whole = str(model.path.with_name(f'{model.path.stem}_whole.onnx'))
    if places := find_external_weights(model.content, str(model.path)):
        raise EngineError(
            str(model.path),
            f'weights in {places[0]!r}, which ONNX Runtime would read without a check',
            expected='all weights in the model file',
            fix='write a single file: python3 -c "import onnx, sys; '
            'onnx.save(onnx.load(sys.argv[1]), sys.argv[2])" '
            f'{shlex.quote(str(model.path))} {shlex.quote(whole)}',
        )


def _fix_for_missing_operator(error: Exception) -> str:
    """Return the fix if ONNX Runtime lacks an operator for the model's types, else ``''``."""
    import onnxruntime

    if type(error).__name__ != 'NotImplemented':
        return ''
    return (
        f'ONNX Runtime {onnxruntime.__version__} does not have this operator for these types '
        '(often float64): if torch.onnx.export wrote the model with dynamo=False, which may mix '
        'float64 into a float32 model, export it with dynamo=True or with an exporter that uses '
        "it, such as transformers' OnnxExporter. Otherwise install a newer release (python3 -m "
        'pip install --upgrade onnxruntime), export the model in float32, or build an engine with '
        'build_engine, which converts float64 to float32'
    )


def _fix_for_newer_format(runtime: Any, model: ModelFile) -> str:
    """Return the fix if ONNX Runtime is older than the version of the file format, else ``''``."""
    version = ir_version(model.content)
    if not 0 < version < 128 or _can_read_format(runtime, version):
        return ''
    older = str(model.path.with_name(f'{model.path.stem}_older.onnx'))
    return (
        f'the file has IR version {version}, which ONNX Runtime {runtime.__version__} does not '
        'read: install a newer release (python3 -m pip install --upgrade onnxruntime), or write '
        'the file with an older version: python3 -c "import onnx, sys; '
        'model = onnx.load(sys.argv[1]); model.ir_version = 10; onnx.save(model, sys.argv[2])" '
        f'{shlex.quote(str(model.path))} {shlex.quote(older)}'
    )


def _can_read_format(runtime: Any, version: int) -> bool:
    """Return whether ONNX Runtime loads a model of one node in this version of the format."""
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    try:
        runtime.InferenceSession(
            bytes((8, version)) + _IDENTITY_MODEL, options, providers=['CPUExecutionProvider']
        )
    except Exception:  # ONNX Runtime's exceptions have no common base class
        return False
    return True


def _tensor_spec(node: Any) -> TensorSpec:
    shape = tuple(side if isinstance(side, int) else -1 for side in node.shape)
    dtype = (
        'float32'
        if node.type == 'tensor(float)'
        else _DTYPES_BY_ONNX_RUNTIME_NAME.get(node.type, node.type)
    )
    return TensorSpec(node.name, shape, dtype)
