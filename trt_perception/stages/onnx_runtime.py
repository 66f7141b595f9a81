"""Run an ONNX model with ONNX Runtime."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.onnx_external import find_external_weights
from trt_perception.model.tensors import TENSOR_DTYPES, TensorSpec

__all__ = ['CPU_PROVIDER', 'OnnxModel']

#: The execution provider that every build of ONNX Runtime has.
CPU_PROVIDER: Final = 'CPUExecutionProvider'

# Tensors are NumPy arrays, and NumPy has no bfloat16.
_DTYPES_BY_ONNX_RUNTIME_NAME: Final = {
    f'tensor({name})': name for name in TENSOR_DTYPES if name != 'bfloat16'
}


class OnnxModel:
    """One ONNX Runtime session.

    Attributes:
        inputs: name, shape and dtype of each input.
        outputs: name, shape and dtype of each output.
        metadata: maps the keys of the file's metadata to texts.
    """

    def __init__(self, model: ModelFile, threads: int, provider: str = CPU_PROVIDER) -> None:
        """Load the model.

        Args:
            model: an ONNX file.
            threads: number of threads in ONNX Runtime's pool.
            provider: execution provider. The CPU runs operators that the provider lacks.

        Raises:
            EngineError: ONNX Runtime is not installed, does not have the provider or cannot load
                the model, or the model has weights in other files.
        """
        _refuse_external_weights(model)
        try:
            import onnxruntime  # slow to import, so only processes that run a model import it
        except ImportError as error:
            raise EngineError(
                model.path.name,
                'ONNX Runtime is not installed',
                fix='python3 -m pip install onnxruntime, in the virtual environment that the '
                'node runs in',
            ) from error
        available = onnxruntime.get_available_providers()
        if provider not in available:
            raise EngineError(
                'ONNX Runtime',
                ', '.join(available),
                expected=f'a build with {provider}',
                fix='for CUDA: python3 -m pip install onnxruntime-gpu',
            )
        options = onnxruntime.SessionOptions()
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
        try:
            self._session = onnxruntime.InferenceSession(
                model.content, options, providers=list(dict.fromkeys((provider, CPU_PROVIDER)))
            )
        except Exception as error:  # ONNX Runtime's exceptions have no common base class
            raise EngineError(
                str(model.path),
                f'ONNX Runtime cannot load it: {error}',
                fix=_fix_for_missing_operator(error),
            ) from error
        self.inputs = tuple(_tensor_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_tensor_spec(node) for node in self._session.get_outputs())
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

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


def _refuse_external_weights(model: ModelFile) -> None:
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
        '(often float64): install a newer release (python3 -m pip install --upgrade '
        'onnxruntime), export the model in float32, or build an engine with build_engine, which '
        'converts float64 to float32'
    )


def _tensor_spec(node: Any) -> TensorSpec:
    shape = tuple(side if isinstance(side, int) else -1 for side in node.shape)
    dtype = (
        'float32'
        if node.type == 'tensor(float)'
        else _DTYPES_BY_ONNX_RUNTIME_NAME.get(node.type, node.type)
    )
    return TensorSpec(node.name, shape, dtype)
