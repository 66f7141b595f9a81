# SPDX-License-Identifier: Apache-2.0
"""The description of a model that pipelines and builds need.

Recognition or a manifest gives the values of a description (``model/recognition/recognise.py``),
and ``model/resolve_spec.py`` checks them against the model's tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trt_perception.errors import EngineError, OutputShapeError
from trt_perception.model.build_record import FileIdentity
from trt_perception.model.decoder import Decoder
from trt_perception.model.decoders.table import presets_for_task
from trt_perception.model.input_layout import batch_size, pixel_mask_input
from trt_perception.model.manifest import Manifest
from trt_perception.model.output_tensor import OutputTensor, assign_outputs, shapes_match
from trt_perception.model.preprocessing import Preprocessing
from trt_perception.model.recognition.missing_info import outputs_mismatch
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task
from trt_perception.model.tensors import (
    MAX_TENSOR_VALUES,
    ModelInfo,
    TensorSpec,
    check_tensor_sizes,
    tensor_sizes_mistake,
)


@dataclass(frozen=True)
class ModelSpec:
    """The description of a model: its tensors, and how to feed and read them.

    Attributes:
        input: the image input with fixed dimensions: (B, 3, height, width), (B, height, width, 3)
            or (3, height, width).
        preprocessing: how pixels become the input.
        class_names: names of the classes, in the order of the network's outputs.
        has_manifest: whether a manifest describes the model. If False, recognition does.
        evidence: one sentence for each finding of recognition: observation -> conclusion. Empty
            with a manifest, except in a build.
        auxiliary_inputs: the inputs besides the image, with fixed dimensions.
        task: the model's task, such as ``detect`` or ``pose``.
        model: the model as the runtime reports it, with its dynamic dimensions; None in tests.
        derives_size: whether the size of the input follows from the images.
        assumption: a sentence about assumed values; empty without assumptions.
        names_source: where the class names are from, for messages; empty if unknown.
    """

    input: TensorSpec
    outputs: tuple[TensorSpec, ...]
    preprocessing: Preprocessing
    decoder: Decoder
    class_names: tuple[str, ...]
    has_manifest: bool
    evidence: tuple[str, ...] = ()
    auxiliary_inputs: tuple[TensorSpec, ...] = ()
    task: Task = DETECT
    model: ModelInfo | None = None
    derives_size: bool = False
    assumption: str = ''
    names_source: str = ''

    @property
    def batch(self) -> int:
        """The batch size of the model."""
        return batch_size(self.input)

    @property
    def pixel_mask(self) -> TensorSpec | None:
        """The input that marks the pixels of the image, (B, rows, columns); None if missing."""
        return pixel_mask_input(self.auxiliary_inputs)

    @functools.cached_property
    def decoder_outputs(self) -> tuple[tuple[OutputTensor, int], ...]:
        """The outputs that the decoder reads, each with its index in ``outputs``."""
        wanted = self.decoder.outputs(len(self.class_names), self.task)
        assigned = assign_outputs(wanted, self.outputs)
        assert assigned is not None, 'checked when the model was opened'
        return tuple(zip(wanted, assigned, strict=True))

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """The fixed shape of each input by its name, the image first."""
        return {tensor.name: tensor.shape for tensor in (self.input, *self.auxiliary_inputs)}

    def with_batch_size(self, batch: int) -> ModelSpec:
        """Return the same description with another batch size. Unused outputs may lack the batch.

        Args:
            batch: number of images. The model must have a dynamic batch.

        Raises:
            EngineError: an input or output with this batch is too large.
        """
        if batch == self.batch:
            return self

        def with_batch(tensor: TensorSpec) -> TensorSpec:
            return replace(tensor, shape=(batch, *tensor.shape[1:]))

        read = {place for _, place in self.decoder_outputs}
        outputs = (
            with_batch(tensor)
            if place in read or tensor.shape[:1] in ((-1,), (self.batch,))
            else tensor
            for place, tensor in enumerate(self.outputs)
        )
        changed = replace(
            self,
            input=with_batch(self.input),
            outputs=tuple(outputs),
            auxiliary_inputs=tuple(map(with_batch, self.auxiliary_inputs)),
        )
        check_tensor_sizes(
            'the model', (changed.input, *changed.outputs, *changed.auxiliary_inputs)
        )
        return changed

    def manifest(
        self,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        *,
        onnx: FileIdentity | None = None,
        engine: FileIdentity | None = None,
    ) -> Manifest:
        """Return the manifest of a file that this description fits.

        Args:
            inputs: all inputs of the file, with -1 for a dynamic dimension.
            outputs: all outputs of the file, with -1 for a dynamic dimension.
            onnx: the ONNX file; None if unknown.
            engine: the engine file; None for the manifest of an ONNX file.
        """
        return Manifest(
            task=self.task,
            onnx=onnx,
            engine=engine,
            inputs=inputs,
            outputs=outputs,
            preprocessing=self.preprocessing,
            decoder=self.decoder,
            class_names=self.class_names,
            notes={},
        )

    def check_outputs(self, found: tuple[TensorSpec, ...]) -> None:
        """Check the outputs of an opened model, whose final shapes are known only now.

        Args:
            found: the outputs with their final shapes.

        Raises:
            EngineError: the shapes do not match decoder, class names, task or batch size, or an
                output is too large.
        """
        classes = len(self.class_names)
        check_outputs('the model', self.decoder, self.task, found, classes, self.batch)

    def computed_shapes_error(
        self, shapes: Sequence[tuple[int, ...]], *, frames: int, batch: int
    ) -> OutputShapeError | None:
        """Return why the decoder cannot read the outputs of one computed batch; None if it can.

        Outputs with dynamic dimensions may have other shapes in each batch. An answer of a server
        or a model may have any shape.

        Args:
            shapes: the shape of each computed output, in the order of ``outputs``.
            batch: number of images in the input, with unused places.
        """
        wanted = [output for output, _ in self.decoder_outputs]
        read = [shapes[place] for _, place in self.decoder_outputs]
        has_batch_axis = frames == 1 or any('B' in output.shape for output in wanted)
        is_small = all(math.prod(shape) <= MAX_TENSOR_VALUES for shape in shapes)
        if has_batch_axis and is_small and shapes_match(wanted, read, batch=batch):
            return None
        found = tuple(
            replace(tensor, shape=shape)
            for tensor, shape in zip(self.outputs, shapes, strict=True)
        )
        if mistake := tensor_sizes_mistake(found):
            fix = 'export the model again with fixed shapes'
            return OutputShapeError('the model', **mistake, fix=fix)
        classes = len(self.class_names)
        mismatch = outputs_mismatch(self.decoder, self.task, found, classes, batch)
        if not has_batch_axis:
            mismatch['found'] += f' for {frames} images'
        return OutputShapeError('the model', **mismatch)


def check_outputs(
    name: str,
    decoder: Decoder,
    task: Task,
    outputs: tuple[TensorSpec, ...],
    classes: int,
    batch: int,
    *,
    any_batch: bool = False,
    names_source: str = '',
) -> tuple[int, ...]:
    """Check the sizes of outputs, and that they match decoder, class names, task and batch.

    Args:
        names_source: where the class names are from, for messages; empty if unknown.

    Returns:
        The indices of the outputs that the decoder reads.
    """
    check_tensor_sizes(name, outputs)
    wanted = decoder.outputs(classes, task)
    if not wanted:
        raise EngineError(
            name,
            f'the decoder {decoder}',
            expected=f'one of {", ".join(presets_for_task(task))} for the task {task}',
            fix='correct model.decoder, or the manifest',
        )
    assigned = assign_outputs(wanted, outputs)
    if assigned is None or any(
        output.shape[0] == 'B' and not any_batch and outputs[place].shape[0] not in (batch, -1)
        for output, place in zip(wanted, assigned, strict=True)
    ):
        mismatch = outputs_mismatch(decoder, task, outputs, classes, batch, names_source)
        raise EngineError(name, **mismatch)
    return assigned
