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

from trt_perception.files.json_records import json_content
from trt_perception.images.detections import Detections
from trt_perception.model.candidates import Candidates, Floats
from trt_perception.model.output_tensor import OutputTensor
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.task import Found, Task

__all__ = [
    *('AnchorRows', 'Array', 'Decoder', 'DecoderPreset', 'ImageContext', 'ObjectDecoder'),
    *('Passing', 'Select'),
]

#: An output of one image. Floats are float32.
Array = npt.NDArray[Any]
#: Returns the indices of the scores, float32 (n,), that are above the threshold and whose class
#: ids, int (n,), are asked for.
Passing = Callable[[Floats, npt.NDArray[np.integer]], npt.NDArray[np.int64]]
#: Turns the candidates of a decoder into detections.
Select = Callable[['ObjectDecoder', Candidates], Detections]


@dataclass(frozen=True)
class ImageContext:
    """What a decoder may need to know of the image whose outputs it reads.

    Attributes:
        index: the place of the image in the batch.
        network_wh: width and height of the network's input in pixels.
        task: what the outputs say of each object.
        passing: for decoders that need not look at all scores.
    """

    index: int
    network_wh: tuple[int, int]
    task: Task
    passing: Passing


@dataclass(frozen=True)
class AnchorRows:
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
        row_tasks: whether rows may hold the values of a task behind the scores.
        own_outputs: names of tasks that have further outputs.
        transformer: whether the network is a transformer, which loses accuracy in 16 bits.
        background_first: whether label 0 is the background.
        needs_size_input: whether boxes are in units of the input ``orig_target_sizes``.
        reads: the outputs, for docs/decoders.md.
        boxes: coordinates and their unit, likewise.
        scores: what the scores are, likewise.
    """

    family: ClassVar[str]
    row_tasks: ClassVar[bool] = False
    own_outputs: ClassVar[tuple[str, ...]] = ()
    transformer: ClassVar[bool] = False
    background_first: ClassVar[bool] = False
    needs_size_input: ClassVar[bool] = False
    reads: ClassVar[str]
    boxes: ClassVar[str]
    scores: ClassVar[str] = 'probabilities'

    @abstractmethod
    def outputs(self, classes: int | None, task: Task = DETECT) -> tuple[OutputTensor, ...]:
        """Return the outputs that the decoder reads, in the order of ``decode``'s arrays.

        Args:
            classes: the number of class names; None if unknown.
            task: what the outputs say of each object. The decoder may not support the task: then
                the result is empty.
        """

    @abstractmethod
    def decode(self, arrays: Sequence[Array], image: ImageContext, select: Select) -> Found:
        """Return what the outputs of one image say.

        Args:
            arrays: the outputs of the image, without the axis of the batch.
            image: the image.
            select: the steps that follow in all decoders of objects.

        Raises:
            EngineError: the values contradict the decoder.
        """

    def anchor_rows(self) -> AnchorRows | None:
        """Return how the GPU's kernels read the output; None if the host decodes."""
        return None

    def grid_strides(self) -> tuple[int, ...]:
        """Return the strides of the grids whose cells are the anchors; empty if there are none."""
        return ()

    def as_dict(self) -> dict[str, Any]:
        """Return the family and its constants, as a manifest has them."""
        return {'family': self.family, **json_content(self)}

    def __str__(self) -> str:
        """Return it for messages: ``dense (objectness false, transposed true)``."""
        shown = ', '.join(f'{key} {_shown(value)}' for key, value in json_content(self).items())
        return f'{self.family} ({shown})' if shown else self.family


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class ObjectDecoder(Decoder):
    """A family of outputs that say where objects are.

    Attributes:
        needs_nms: whether non-maximum suppression follows.
        normalised: whether the outputs hold boxes in 0…1 of the input, instead of network pixels.
    """

    needs_nms: ClassVar[bool] = False
    normalised: ClassVar[bool] = False

    def outputs(self, classes: int | None, task: Task = DETECT) -> tuple[OutputTensor, ...]:
        """See Decoder."""
        if task == DETECT:
            return self.box_outputs(classes)
        if self.row_tasks and task.row_values:
            return (*self.box_outputs(classes, task.row_values), *_prototypes(task))
        further = self.further_outputs(task) if task.name in self.own_outputs else ()
        return (*self.box_outputs(classes), *further) if further else ()

    @abstractmethod
    def box_outputs(self, classes: int | None, row_values: int = 0) -> tuple[OutputTensor, ...]:
        """Return the outputs that boxes, scores and classes are read from.

        Args:
            classes: the number of class names; None if unknown.
            row_values: the number of values behind the scores of each row, with ``row_tasks``.
        """

    def further_outputs(self, task: Task) -> tuple[OutputTensor, ...]:  # noqa: ARG002
        """Return the further outputs for one of ``own_outputs``; empty if unsupported."""
        return ()

    @abstractmethod
    def candidates(self, arrays: Sequence[Array], image: ImageContext) -> Candidates:
        """Return the boxes of one image. The arguments are those of ``decode``."""

    def decode(self, arrays: Sequence[Array], image: ImageContext, select: Select) -> Detections:
        """See Decoder."""
        return select(self, self.candidates(arrays, image))


def _prototypes(task: Task) -> tuple[OutputTensor, ...]:
    if not task.prototypes:
        return ()
    return (OutputTensor('prototypes', ('B', task.prototypes, 'height', 'width')),)


@dataclass(frozen=True)
class DecoderPreset:
    """A decoder with the training that its models usually have.

    Attributes:
        name: a value of the parameter ``model.decoder``.
        decoder: family and constants.
        exports: the models, for docs/decoders.md.
        outputs: the outputs, for docs/decoders.md. Empty if shapes describe them.
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
    exports: str = ''
    outputs: str = ''
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    transformers: tuple[str, ...] = ()
    image_processors: tuple[str, ...] = ()
    tensor_names: tuple[frozenset[str], ...] = ()
    anchors_per_cell: tuple[int, ...] = (1, 3)
    background: str = ''
