"""An ONNX model on the CPU, by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy.typing as npt

from trt_perception.errors import EngineError
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.onnx_external import find_external_weights
from trt_perception.model.tensors import TENSOR_DTYPES, TensorSpec

__all__ = ['CPU_PROVIDER', 'OnnxModel']

#: The provider that is everywhere.
CPU_PROVIDER: Final = 'CPUExecutionProvider'

# NumPy, which carries them here, has no bfloat16.
_DTYPES: Final = {f'tensor({name})': name for name in TENSOR_DTYPES if name != 'bfloat16'}


class OnnxModel:
    """One ONNX Runtime session.

    Attributes:
        inputs: name, shape and dtype of each input.
        outputs: likewise.
        metadata: what the file says of itself, texts by key.
    """

    def __init__(self, model: ModelFile, threads: int, provider: str = CPU_PROVIDER) -> None:
        """Load the model.

        Args:
            model: an ONNX file.
            threads: of ONNX Runtime's own pool.
            provider: what runs it; what that does not know runs on the CPU.

        Raises:
            EngineError: ONNX Runtime is not installed, has no such provider or cannot load the
                model, or the model keeps weights in other files.
        """
        _refuse_other_files(model)
        try:
            import onnxruntime  # heavy: only the process that runs a model pays for it
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
        # A spinning pool takes the cores that rclpy and the camera's driver need between two
        # frames.
        options.add_session_config_entry('session.intra_op.allow_spinning', '0')
        # Its errors are exceptions too; what it prints quotes names of the model as they are.
        options.log_severity_level = 4
        # Its own format is another program's way in: only what was looked at is loaded.
        options.add_session_config_entry('session.load_model_format', 'ONNX')
        try:
            self._session = onnxruntime.InferenceSession(
                model.content, options, providers=list(dict.fromkeys((provider, CPU_PROVIDER)))
            )
        except Exception as error:  # ONNX Runtime's exceptions share no base of their own
            raise EngineError(
                str(model.path), f'ONNX Runtime cannot load it: {error}', fix=_fix(error)
            ) from error
        self.inputs = tuple(_spec(node) for node in self._session.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._session.get_outputs())
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)

    def run(self, tensors: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        """Run the model on its inputs, by name, and return all outputs.

        Releases the GIL meanwhile.
        """
        results: list[npt.NDArray[Any]] = self._session.run(None, dict(tensors))
        return results

    def close(self) -> None:
        """Free the model."""
        self._session = None


def _refuse_other_files(model: ModelFile) -> None:
    if places := find_external_weights(model.content, str(model.path)):
        raise EngineError(
            str(model.path),
            f'some in {places[0]!r}, which ONNX Runtime would read without a check',
            expected='all weights in the file itself',
            fix=f'write one file: python3 -c "import onnx; '
            f"onnx.save(onnx.load('{model.path.name}'), "
            "'whole.onnx')\"",
        )


def _fix(error: Exception) -> str:
    """Return what to do where this ONNX Runtime lacks an operator for the types it has here."""
    import onnxruntime

    if type(error).__name__ != 'NotImplemented':
        return ''
    return (
        f'ONNX Runtime {onnxruntime.__version__} has no such operator, or not for these types '
        '(float64, often): a newer one may have it (python3 -m pip install --upgrade '
        'onnxruntime), or export the model in float32; build_engine makes an engine of it, in '
        'which float64 is float32'
    )


def _spec(node: Any) -> TensorSpec:
    shape = tuple(side if isinstance(side, int) else -1 for side in node.shape)
    dtype = 'float32' if node.type == 'tensor(float)' else _DTYPES.get(node.type, node.type)
    return TensorSpec(node.name, shape, dtype)
