"""How a model's outputs are read: the base classes of decoders, and their presets.

A class is a family of outputs, and its fields are the constants that the tensors do not show: the
keys of "decoder" in a manifest. A preset is a name that the parameter ``model.decoder`` takes. The
modules of ``model/decoders`` define both, and ``model/decoders/table.py`` lists them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from trt_perception.files.json_records import to_json
from trt_perception.images.detections import Detections
from trt_perception.model.candidates import Candidates, Floats
from trt_perception.model.output_tensor import OutputTensor
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Task, TaskResult

__all__ = [
    *(
        'AnchorRowLayout',
        'OutputArray',
        'Decoder',
        'DecoderPreset',
        'ImageContext',
        'ObjectDecoder',
    ),
    *('FindPassing', 'SelectDetections'),
]

#: An output of one image. Floats are float32.
OutputArray = npt.NDArray[Any]
#: Returns the indices of the scores, float32 (n,), that are above the threshold and whose class
#: ids, int (n,), are asked for.
FindPassing = Callable[[Floats, npt.NDArray[np.integer]], npt.NDArray[np.int64]]
#: Turns the candidates of a decoder into detections.
SelectDetections = Callable[['ObjectDecoder', Candidates], Detections]


@dataclass(frozen=True)
class ImageContext:
    """What a decoder may need to know of the image whose outputs it reads.

    Attributes:
        index: the place of the image in the batch.
        network_wh: width and height of the network's input in pixels.
        task: what the outputs say of each object.
        find_passing: for decoders that need not look at all scores.
    """

    index: int
    network_wh: tuple[int, int]
    task: Task
    find_passing: FindPassing


@dataclass(frozen=True)
class AnchorRowLayout:
    """How the kernels read an output with a row for each anchor.

    A row holds centre x, centre y, width and height, then objectness if there is one, the class
    scores, and the values of the task.

    Attributes:
        objectness: whether a score that multiplies the class scores stands before them.
        transposed: whether the output is (B, N, C) instead of (B, C, N).
        strides: network pixels between two cells of each grid, finest grid first. Then a box is
            an offset to its cell and the logarithm of its size, in strides. Empty if boxes are in
            network pixels.
    """

    objectness: bool
    transposed: bool
    strides: tuple[int, ...] = ()


@dataclass(frozen=True)
class Decoder(ABC):
    """A family of outputs. The fields of its class are the constants that a manifest holds.

    Attributes:
        family: name of the family in manifests.
        allows_task_values: whether rows may hold the values of a task behind the scores.
        tasks_with_own_outputs: names of tasks that have further outputs.
        is_transformer: whether the network is a transformer, which loses accuracy in 16 bits.
        is_background_first: whether label 0 is the background.
        needs_size_input: whether boxes are in units of the input ``orig_target_sizes``.
        documented_outputs: the outputs, for docs/decoders.md.
        documented_boxes: coordinates and their unit, likewise.
        documented_scores: what the scores are, likewise.
    """

    family: ClassVar[str]
    allows_task_values: ClassVar[bool] = False
    tasks_with_own_outputs: ClassVar[tuple[str, ...]] = ()
    is_transformer: ClassVar[bool] = False
    is_background_first: ClassVar[bool] = False
    needs_size_input: ClassVar[bool] = False
    documented_outputs: ClassVar[str]
    documented_boxes: ClassVar[str]
    documented_scores: ClassVar[str] = 'probabilities'

    @abstractmethod
    def outputs(self, classes: int | None, task: Task = DETECT) -> tuple[OutputTensor, ...]:
        """Return the outputs that the decoder reads, in the order of ``decode``'s arrays.

        Args:
            classes: the number of class names; None if unknown.
            task: what the outputs say of each object. The decoder may not support the task: then
                the result is empty.
        """

    @abstractmethod
    def decode(
        self, arrays: Sequence[OutputArray], image: ImageContext, select: SelectDetections
    ) -> TaskResult:
        """Return what the outputs of one image say.

        Args:
            arrays: the outputs of the image, without the axis of the batch.
            image: the image.
            select: the steps that follow in all decoders of objects.

        Raises:
            EngineError: the values contradict the decoder.
        """

    def anchor_row_layout(self) -> AnchorRowLayout | None:
        """Return how the GPU's kernels read the output; None if the host decodes."""
        return None

    def grid_strides(self) -> tuple[int, ...]:
        """Return the strides of the grids whose cells are the anchors; empty if there are none."""
        return ()

    def as_dict(self) -> dict[str, Any]:
        """Return the family and its constants, as a manifest has them."""
        return {'family': self.family, **to_json(self)}

    def __str__(self) -> str:
        """Return it for messages: ``dense (objectness false, transposed true)``."""
        shown = ', '.join(f'{key} {_shown(value)}' for key, value in to_json(self).items())
        return f'{self.family} ({shown})' if shown else self.family


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class ObjectDecoder(Decoder):
    """A family of outputs that say where objects are.

    Attributes:
        needs_nms: whether non-maximum suppression follows.
        has_normalised_boxes: whether the boxes are in 0…1 of the input's width and height, instead
            of network pixels.
    """

    needs_nms: ClassVar[bool] = False
    has_normalised_boxes: ClassVar[bool] = False

    def outputs(self, classes: int | None, task: Task = DETECT) -> tuple[OutputTensor, ...]:
        """See Decoder."""
        if task == DETECT:
            return self.box_outputs(classes)
        if self.allows_task_values and task.task_value_count:
            return (*self.box_outputs(classes, task.task_value_count), *_prototypes(task))
        further = self.task_outputs(task) if task.name in self.tasks_with_own_outputs else ()
        return (*self.box_outputs(classes), *further) if further else ()

    @abstractmethod
    def box_outputs(self, classes: int | None, value_count: int = 0) -> tuple[OutputTensor, ...]:
        """Return the outputs that boxes, scores and classes are read from.

        Args:
            classes: the number of class names; None if unknown.
            value_count: the number of task values in each row, behind the scores. Always 0 unless
                ``allows_task_values`` is set.
        """

    def task_outputs(self, task: Task) -> tuple[OutputTensor, ...]:  # noqa: ARG002
        """Return the outputs that the task adds to the box outputs.

        Args:
            task: its name is one of ``tasks_with_own_outputs``.

        Returns:
            Empty if the decoder does not support the task in this form.
        """
        return ()

    @abstractmethod
    def candidates(self, arrays: Sequence[OutputArray], image: ImageContext) -> Candidates:
        """Return the boxes of one image. The arguments are those of ``decode``."""

    def decode(
        self, arrays: Sequence[OutputArray], image: ImageContext, select: SelectDetections
    ) -> Detections:
        """See Decoder."""
        return select(self, self.candidates(arrays, image))


def _prototypes(task: Task) -> tuple[OutputTensor, ...]:
    if not task.prototype_count:
        return ()
    return (OutputTensor('prototypes', ('B', task.prototype_count, 'height', 'width')),)


@dataclass(frozen=True)
class DecoderPreset:
    """A decoder with the training that its models usually have.

    Attributes:
        name: a value of the parameter ``model.decoder``.
        decoder: family and constants.
        documented_models: the models, for docs/decoders.md.
        documented_outputs: the outputs, for docs/decoders.md. Empty if shapes describe them.
        preprocessing: fields of Preprocessing that the training had. If empty, they must be set.
        transformers: values of "model_type" in a config.json of Hugging Face.
        image_processors: names of image processors in transformers whose default filter is
            bilinear.
        tensor_names: sets of names of all outputs that only this exporter gives.
        anchors_per_cell: possible numbers of anchors of a grid's cell.
        background: which class name is the background, for errors.
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
