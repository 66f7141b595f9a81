# SPDX-License-Identifier: Apache-2.0
"""The base classes of decoders, which read a model's outputs, and of their presets.

Each decoder class reads one family of outputs. The fields of the class are constants that the
shapes of the outputs do not show. A manifest has these constants under "decoder". A preset is a
value of the parameter ``model.decoder``. The modules of ``model/decoders`` define the classes, and
``model/decoders/table.py`` lists the presets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trt_perception.errors import OutputError
from trt_perception.files.json_records import to_json
from trt_perception.images.detections import Detections
from trt_perception.images.letterbox import Letterbox
from trt_perception.images.results.map_resize import Upsampling
from trt_perception.model.candidates import Candidates, Floats
from trt_perception.model.output_tensor import OutputTensor
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task, TaskResult
from trt_perception.model.tensors import TensorSpec

#: An output of one image, without the batch axis. Floats are float32.
OutputArray = npt.NDArray[Any]
#: Returns the indices of the boxes that pass. The arguments are scores, float32 (n,), and class
#: ids, int (n,). A box passes if its score is above the threshold and its class is not filtered
#: out.
FindPassing = Callable[[Floats, npt.NDArray[np.integer]], npt.NDArray[np.int64]]
#: Selects among the candidates of a decoder (thresholds, NMS), and returns detections.
SelectDetections = Callable[['ObjectDecoder', Candidates], Detections]


class Sky(NamedTuple):
    """Where a pixel is sky, and the depth of the sky, for models with an output for the sky.

    Attributes:
        threshold: a cell is sky if the model's output for the sky is at least this value.
        depth_m: depth of the sky in metres; NaN for unknown.
    """

    threshold: float = 0.3
    depth_m: float = 200.0


USUAL_SKY: Final = Sky()


@dataclass(frozen=True)
class ImageContext:
    """The image whose outputs a decoder reads.

    Attributes:
        index: index of the image in the batch.
        network_wh: width and height of the network's input in pixels.
        letterbox: geometry of the image.
        class_count: number of the model's classes.
        task: the model's task, which defines the values of each object.
        find_passing: returns the indices of the boxes that pass the thresholds. A decoder may
            call this function early, and convert only these boxes.
        focal_length: mean of fx and fy in network pixels; None if unknown.
        sky: threshold and depth of the sky.
    """

    index: int
    network_wh: tuple[int, int]
    letterbox: Letterbox
    class_count: int
    task: Task
    find_passing: FindPassing
    focal_length: float | None = None
    sky: Sky = USUAL_SKY


@dataclass(frozen=True)
class AnchorRowLayout:
    """The layout of an output with one row per anchor, for the kernels.

    A row holds centre x, centre y, width and height, then the objectness (optional), the class
    scores, and the task values.

    Attributes:
        objectness: whether a row has an objectness score, which multiplies the class scores.
        transposed: whether the output is (B, N, C) instead of (B, C, N).
        strides: network pixels between two cells of each grid, finest grid first. With strides, a
            row holds the offset of its box from the cell and the logarithm of the box's size, both
            in strides. Empty if boxes are in network pixels.
    """

    objectness: bool
    transposed: bool
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class MapLayout:
    """The layout of an output with one or more values per cell, for the kernels.

    Attributes:
        kind: meaning of the values: logits of each class, class ids, or a depth.
        upsampling: how cells are resized to pixels.
        second_output: meaning of a second output: the camera's field of view in degrees (values
            are multiplied by 2 * tan(field of view / 2)), or the probability of the sky in each
            cell. Empty if only one output is read.
    """

    kind: Literal['logits', 'ids', 'depth']
    upsampling: Upsampling
    second_output: Literal['', 'field_of_view', 'sky'] = ''

    def invalid_values_error(self, class_count: int, found: str = '') -> OutputError:
        """Return the error of an image for which the output has impossible values.

        Args:
            class_count: number of the model's classes.
            found: the values, in words; empty if unknown, because kernels only set a flag.
        """
        subject = "the model's output"
        if self.kind == 'logits':
            return OutputError(subject, 'logits that are not finite')
        if self.kind == 'ids':
            return OutputError(
                subject,
                found or 'class ids without a name',
                expected=f'0 to {class_count - 1}, one for each class name',
                fix='correct model.class_names or the manifest',
            )
        field_of_view = found or 'an impossible field of view'
        return OutputError(subject, field_of_view, expected='between 0 and 180 degrees')


class DepthScaling(NamedTuple):
    """How the cells of one image become depths.

    Attributes:
        is_metric: whether depths are in metres. Otherwise larger values are nearer.
        is_inverse: whether cell * factor is 1 / depth. It is resized before it is inverted.
        factor: the value of each cell is multiplied by this.
        sky_threshold: cells with at least this probability of the sky are sky.
        sky_depth: the value of sky cells, instead of cell * factor.
    """

    is_metric: bool = False
    is_inverse: bool = False
    factor: float = 1.0
    sky_threshold: float = math.inf
    sky_depth: float = 0.0


@dataclass(frozen=True)
class Decoder(ABC):
    """A decoder for one family of outputs. The fields of a subclass are keys of a manifest.

    Attributes:
        family: name of the family in manifests.
        allows_task_values: whether rows may hold task values behind the scores.
        tasks_with_own_outputs: names of the tasks that add outputs to the box outputs, or that
            have no boxes.
        is_transformer: whether the network is a transformer. Transformers lose accuracy in FP16.
        is_background_first: whether label 0 is the background.
        needs_focal_length: whether the depth uses the focal length of the camera, if known.
        unused_parameters: names of parameters of the task that have no effect with this decoder.
        needs_size_input: whether boxes are in units of the input ``orig_target_sizes``.
        tensors: the outputs that all models of the family have, without those of a task. Missing
            if the family overrides ``family_outputs``.
        documented_outputs: the outputs, for docs/decoders.md.
        documented_boxes: coordinates and unit of boxes, for docs/decoders.md.
        documented_scores: meaning of the scores, for docs/decoders.md.
    """

    family: ClassVar[str]
    allows_task_values: ClassVar[bool] = False
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = ()
    is_transformer: ClassVar[bool] = False
    is_background_first: ClassVar[bool] = False
    needs_focal_length: ClassVar[bool] = False
    unused_parameters: ClassVar[tuple[str, ...]] = ()
    needs_size_input: ClassVar[bool] = False
    tensors: ClassVar[tuple[OutputTensor, ...]]
    documented_outputs: ClassVar[str]
    documented_boxes: ClassVar[str]
    documented_scores: ClassVar[str] = 'probabilities'

    def outputs(self, classes: int | None, task: Task = DETECT) -> tuple[OutputTensor, ...]:
        """Return the outputs that the decoder reads, in the order of ``decode``'s arrays.

        Args:
            classes: the number of class names; None if unknown.
            task: the model's task, such as ``detect`` or ``pose``.

        Returns:
            Empty if the decoder does not support the task.
        """
        value_count = task.task_value_count if self.allows_task_values else 0
        return tuple(
            output.with_sizes(classes, value_count) for output in self.outputs_for_task(task)
        )

    def outputs_for_task(self, task: Task) -> tuple[OutputTensor, ...]:
        """Return the family's and the task's outputs; empty if the task is not supported."""
        return self.family_outputs() if task.name in self.tasks_with_own_outputs else ()

    def family_outputs(self) -> tuple[OutputTensor, ...]:
        """Return ``tensors``. A family whose shapes depend on its constants overrides this."""
        return self.tensors

    def for_outputs(self, outputs: tuple[TensorSpec, ...]) -> Decoder:  # noqa: ARG002
        """Return the decoder with the constants that the shapes of a model's outputs decide.

        Recognition calls this for presets. The constants of a manifest stay unchanged.

        Args:
            outputs: all outputs of the model, with -1 for a dynamic dimension.
        """
        return self

    @abstractmethod
    def decode(
        self, arrays: Sequence[OutputArray], image: ImageContext, select: SelectDetections
    ) -> TaskResult:
        """Return the task's result for one image.

        Args:
            arrays: the outputs of the image, without the batch axis, in the order of ``outputs``.
            image: the image's index in the batch, network size and task.
            select: selects detections from the candidates, equally for all decoders of objects.

        Raises:
            OutputError: the outputs have values or sizes that this family cannot have.
        """

    def anchor_row_layout(self) -> AnchorRowLayout | None:
        """Return the layout for decoding on the GPU; None if the host decodes."""
        return None

    def map_layout(self) -> MapLayout | None:
        """Return the layout for making maps on the GPU; None if kernels cannot make them."""
        return None

    def depth_scaling(self, focal_length: float | None, sky: Sky) -> DepthScaling:  # noqa: ARG002
        """Return how the cells of an image become depths.

        Args:
            focal_length: mean of fx and fy in network pixels; None if unknown.
            sky: threshold and depth of the sky.
        """
        return DepthScaling()

    def grid_strides(self) -> tuple[int, ...]:
        """Return the strides of the grids whose cells are the anchors; empty without grids."""
        return ()

    def has_constant_scores(self, class_count: int) -> bool:  # noqa: ARG002
        """Return whether all scores are equal, whatever the outputs are.

        Args:
            class_count: number of the model's classes.
        """
        return False

    def as_dict(self) -> dict[str, Any]:
        """Return the family and its constants, as in a manifest."""
        return {'family': self.family, **to_json(self)}

    def __str__(self) -> str:
        """Return the decoder for messages: ``dense (objectness false, transposed true)``."""
        shown = ', '.join(
            f'{key} {_constant_as_text(value)}' for key, value in to_json(self).items()
        )
        return f'{self.family} ({shown})' if shown else self.family


def _constant_as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class ObjectDecoder(Decoder):
    """A decoder for one family of outputs that describe objects.

    Attributes:
        needs_nms: whether non-maximum suppression follows.
        has_normalised_boxes: whether the boxes are in 0…1 of the input's width and height, instead
            of network pixels.
    """

    needs_nms: ClassVar[bool] = False
    has_normalised_boxes: ClassVar[bool] = False

    def outputs_for_task(self, task: Task) -> tuple[OutputTensor, ...]:
        """Return the outputs with boxes, scores and classes, then those that the task adds."""
        if task == DETECT:
            return self.family_outputs()
        if self.allows_task_values and task.task_value_count:
            return (*self.family_outputs(), *_prototypes(task))
        added = self.task_outputs(task) if task.name in self.tasks_with_own_outputs else ()
        return (*self.family_outputs(), *added) if added else ()

    def task_outputs(self, task: Task) -> tuple[OutputTensor, ...]:  # noqa: ARG002
        """Return the outputs that a task adds to the outputs with boxes.

        Args:
            task: its name is one of ``tasks_with_own_outputs``.

        Returns:
            Empty if the decoder does not support the task in this form.
        """
        return ()

    @abstractmethod
    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return the boxes of one image, before selection. See ``decode`` for the arguments."""

    def decode(
        self, arrays: Sequence[OutputArray], image: ImageContext, select: SelectDetections
    ) -> Detections:
        return select(self, self.candidates(arrays, image))


@dataclass(frozen=True)
class ImageDecoder(Decoder):
    """A decoder for one family of outputs that describe the whole image.

    Its only task is the one in ``tasks_with_own_outputs``.
    """

    documented_boxes: ClassVar[str] = 'none'
    documented_scores: ClassVar[str] = 'none'

    @abstractmethod
    def result(self, arrays: Sequence[OutputArray], image: ImageContext) -> TaskResult:
        """Return the task's result for one image. See ``decode`` for arguments and errors."""

    def decode(
        self,
        arrays: Sequence[OutputArray],
        image: ImageContext,
        select: SelectDetections,  # noqa: ARG002
    ) -> TaskResult:
        return self.result(arrays, image)


def _prototypes(task: Task) -> tuple[OutputTensor, ...]:
    if not task.prototype_count:
        return ()
    return (OutputTensor('prototypes', ('B', task.prototype_count, 'height', 'width')),)


@dataclass(frozen=True)
class DecoderPreset:
    """A decoder with the usual preprocessing of its models.

    Attributes:
        name: a value of the parameter ``model.decoder``.
        decoder: family and constants.
        documented_models: the models, for docs/decoders.md.
        documented_outputs: the outputs, for docs/decoders.md; empty to show the shape of the
            output.
        preprocessing: values for fields of Preprocessing, as in the usual training. If empty, the
            user must set the fields.
        transformers: values of "model_type" in a Hugging Face config.json that select this preset.
        image_processors: names of Hugging Face image processors whose default filter is bilinear.
        tensor_names: sets of output names that only the exporter of this preset writes. A set has
            the names of all outputs.
        anchors_per_cell: possible numbers of anchors per grid cell.
        background: a sentence for errors that says which class is the background; may be empty.
        networks_by_resize: maps resize modes to the networks that need them, if networks with
            equal outputs differ. The user must then set the mode for detectors of boxes.
        task_preprocessing: further values for fields of Preprocessing, for the other tasks.
        meaning: the meaning of the values and the models, for errors that list presets with equal
            outputs; may be empty.
    """

    name: str
    decoder: Decoder
    documented_models: str = ''
    documented_outputs: str = ''
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    transformers: tuple[str, ...] = ()
    image_processors: tuple[str, ...] = ()
    tensor_names: tuple[frozenset[str], ...] = ()
    anchors_per_cell: tuple[int, ...] = (1, 3)
    background: str = ''
    networks_by_resize: Mapping[str, str] = field(default_factory=dict)
    task_preprocessing: Mapping[str, Any] = field(default_factory=dict)
    meaning: str = ''
