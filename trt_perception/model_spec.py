"""What a model wants and gives: tensors, manifest and parameters brought together.

A parameter wins over the manifest; the tensors must agree with both. What none of the three says
is an error that lists the parameters to set: nothing about a model is ever guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace
from typing import Any
from typing import Final

from trt_perception.config import DetectorConfig
from trt_perception.errors import EngineError
from trt_perception.errors import ManifestError
from trt_perception.manifest import DECODERS
from trt_perception.manifest import INPUT_DTYPES
from trt_perception.manifest import DecoderSpec
from trt_perception.manifest import Manifest
from trt_perception.manifest import Preprocessing
from trt_perception.manifest import TensorSpec

__all__ = ['ModelSpec', 'resolve_model_spec']

OUTPUT_DTYPES: Final = ('float32', 'float16')


@dataclass(frozen=True)
class ModelSpec:
    """Everything a pipeline must know of a model.

    Attributes:
        input: the image tensor, (1, 3, height, width) without open dimensions.
        outputs: as the runtime reports them.
        preprocessing: how pixels become the input.
        decoder: how the outputs become boxes.
        class_names: in the network's order.
        has_manifest: False where parameters had to say what a manifest would.
    """

    input: TensorSpec
    outputs: tuple[TensorSpec, ...]
    preprocessing: Preprocessing
    decoder: DecoderSpec
    class_names: tuple[str, ...]
    has_manifest: bool

    def check_output(self, shape: tuple[int, ...]) -> None:
        """Hold an output as it came to what the model promised, which may be open dimensions.

        Raises:
            EngineError: it has another number of rows than the decoder and the class names make.
        """
        if not _fits(self, shape) or shape[0] != 1:
            raise EngineError(
                f'the model gave an output of shape {list(shape)}; with {len(self.class_names)} '
                f'classes the decoder "{self.decoder.family}" expects {_wanted(self)}: check the '
                'class names and model.decoder'
            )


def resolve_model_spec(
    name: str,
    manifest: Manifest | None,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    config: DetectorConfig,
) -> ModelSpec:
    """Bring tensors, manifest and parameters together.

    Args:
        name: the model's file name, for messages.
        manifest: the one beside the file, None where there is none.
        inputs: as the runtime reports them, -1 for an open dimension.
        outputs: likewise.
        config: the node's parameters; its ``model.*`` values win over the manifest.

    Raises:
        EngineError: the tensors are none that an image detector has, or something remains unknown.
        ManifestError: the manifest names other tensors than the model has.
    """
    if manifest is not None:
        _check_tensors(name, 'input', manifest.inputs, inputs)
        _check_tensors(name, 'output', manifest.outputs, outputs)
    preprocessing = _preprocessing(name, manifest, inputs, outputs, config)
    decoder = (
        DECODERS[config.model_decoder]
        if config.model_decoder
        else manifest.decoder
        if manifest
        else None
    )
    class_names = config.model_class_names or (manifest.class_names if manifest else ())
    assert decoder is not None
    spec = ModelSpec(
        _image_input(name, inputs, preprocessing),
        outputs,
        preprocessing,
        decoder,
        class_names,
        manifest is not None,
    )
    _check_output(name, spec)
    return spec


def _check_tensors(
    name: str, role: str, described: tuple[TensorSpec, ...], found: tuple[TensorSpec, ...]
) -> None:
    if described != found:
        raise ManifestError(
            f'{name}: the manifest describes {role}s {_listed(described)}, the model has '
            f'{_listed(found)}; '
            'they do not belong together: make both again with ros2 run trt_perception '
            'build_engine'
        )


def _listed(tensors: tuple[TensorSpec, ...]) -> str:
    return (
        ', '.join(f'{tensor.name} {tensor.dtype}{list(tensor.shape)}' for tensor in tensors)
        or 'none'
    )


def _preprocessing(
    name: str,
    manifest: Manifest | None,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    config: DetectorConfig,
) -> Preprocessing:
    """Apply the parameters to the manifest's preprocessing, or to what the tensors say."""
    shape = inputs[0].shape if len(inputs) == 1 else ()
    if len(shape) != 4:
        raise EngineError(
            f'{name}: expected one image input of shape (1, 3, height, width) (got '
            f'{_listed(inputs)}); '
            f'export the detector with a single image input'
        )
    given: dict[str, Any] = {
        'input_size': config.model_input_size,
        'resize': config.model_resize,
        'color_order': config.model_color_order,
        'scale': config.model_scale,
        'mean': config.model_mean,
        'std': config.model_std,
        'pad_value': None if config.model_pad_value < 0 else config.model_pad_value,
    }
    given = {
        key: value
        for key, value in given.items()
        if value not in ((), '', 0.0, None) or value is False
    }
    if config.model_pad_value == 0:
        given['pad_value'] = 0
    if manifest is not None:
        return replace(manifest.preprocessing, **given)
    if 'input_size' not in given and min(shape[2:]) > 0:
        given['input_size'] = (shape[3], shape[2])
    unknown = [
        f'model.{key}'
        for key in ('input_size', 'resize', 'color_order', 'scale')
        if key not in given
    ]
    unknown += ['model.decoder'] if not config.model_decoder else []
    unknown += ['model.class_names'] if not config.model_class_names else []
    if unknown:
        raise EngineError(
            f'{name} has no manifest beside it ({name}.json), so these parameters must say how '
            'to use it: '
            f'{", ".join(unknown)}. Inputs: {_listed(inputs)}; outputs: {_listed(outputs)}. Set '
            'them in the parameter file '
            '(docs/parameters.md), '
            f'or write a manifest (docs/manifest.md)'
        )
    return Preprocessing(**given, dtype=inputs[0].dtype)


def _image_input(
    name: str, inputs: tuple[TensorSpec, ...], preprocessing: Preprocessing
) -> TensorSpec:
    tensor = inputs[0]
    width, height = preprocessing.input_size
    wanted = (1, 3, height, width)
    if any(side not in (-1, want) for side, want in zip(tensor.shape, wanted, strict=True)):
        hint = 'export it with batch 1' if tensor.shape[0] > 1 else 'check model.input_size'
        raise EngineError(
            f'{name}: input must take {list(wanted)} (got {_listed(inputs)}); {hint}'
        )
    if tensor.dtype not in INPUT_DTYPES:
        raise EngineError(
            f'{name}: expected an input of {" or ".join(INPUT_DTYPES)} (got {_listed(inputs)}); '
            'export the detector with one'
        )
    if tensor.dtype != preprocessing.dtype:
        raise EngineError(
            f'{name}: expected a {preprocessing.dtype} input, as its manifest says (got '
            f'{_listed(inputs)})'
        )
    return replace(tensor, shape=wanted)


def _check_output(name: str, spec: ModelSpec) -> None:
    """Hold the outputs to what the dense family looks like."""
    output = spec.outputs[0] if len(spec.outputs) == 1 else None
    if output is None or not _fits(spec, output.shape) or output.dtype not in OUTPUT_DTYPES:
        raise EngineError(
            f'{name}: with {len(spec.class_names)} classes the decoder "{spec.decoder.family}" '
            f'expects one output of {" or ".join(OUTPUT_DTYPES)} and shape {_wanted(spec)} (got '
            f'{_listed(spec.outputs)}); check the class names and model.decoder'
        )


def _rows(spec: ModelSpec) -> int:
    return len(spec.class_names) + (5 if spec.decoder.objectness else 4)


def _wanted(spec: ModelSpec) -> str:
    return f'(1, N, {_rows(spec)})' if spec.decoder.transposed else f'(1, {_rows(spec)}, N)'


def _fits(spec: ModelSpec, shape: tuple[int, ...]) -> bool:
    axis = 2 if spec.decoder.transposed else 1
    return len(shape) == 3 and shape[0] in (1, -1) and shape[axis] in (_rows(spec), -1)
