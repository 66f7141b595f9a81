# SPDX-License-Identifier: Apache-2.0
"""A common trunk with a head for each task: masks, oriented boxes, corners as keypoints.

Each head is the detector's head with a third branch. The outputs are the same as in Ultralytics'
exports: mask coefficients over shared prototypes (Bolya et al., YOLACT, 2019), an angle, or
keypoints, besides the box. An exported model is the trunk with one of the heads.
"""

import pathlib

import model as net
import numpy as np
import onnx
import torch
from shapes import CORNERS
from torch import nn

PROTOTYPES = 32
PROTOTYPE_STRIDE = 4
# Number of task values in each row, after the box bins and the class logits.
CARRIED = {'segment': PROTOTYPES, 'obb': 1, 'pose': 2 * len(CORNERS)}
WIDTHS = {'segment': 32, 'obb': 48, 'pose': 48}  # channels of the branch for the task values
# Their branch also reads features at stride 4. Masks use this stride through their prototypes.
FINE = ('obb', 'pose')
TASKS = tuple(CARRIED)


class TaskHead(nn.Module):
    """Box bins, class logits and task values of both levels.

    Task values may also use stride 4. Strokes show the rotation of a digit, and the strokes of
    small digits are only as wide as one cell of stride 8. This branch starts with zero output, so
    that it does not change a head that was trained without it.
    """

    def __init__(self, carried: int, width: int, *, fine: bool):
        super().__init__()
        self.heads = nn.ModuleList([net.Head(48), net.Head(64)])
        self.carried = nn.ModuleList(
            nn.Sequential(
                net.ConvUnit(cin, width), net.ConvUnit(width, width), nn.Conv2d(width, carried, 1)
            )
            for cin in (48, 64)
        )
        for branch in self.carried:
            nn.init.zeros_(branch[-1].bias)
        self.fine = net.ConvUnit(24, width, stride=2) if fine else None
        if self.fine is not None:
            nn.init.zeros_(self.fine.norm.weight)

    def forward(self, at4: torch.Tensor, at8: torch.Tensor, at16: torch.Tensor) -> torch.Tensor:
        """Convert features at strides 4, 8, 16 to rows (b, 4 * BINS + CLASSES + carried, n)."""
        first, last = self.carried
        near = first[0](at8)
        if self.fine is not None:
            near = near + self.fine(at4)
        levels = (self.heads[0](at8), first[1:](near)), (self.heads[1](at16), last(at16))
        return torch.cat([torch.cat(level, 1).flatten(2) for level in levels], 2)


class Prototypes(nn.Module):
    """Converts features at strides 4 and 8 to prototypes (b, PROTOTYPES, h / 4, w / 4)."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.near = net.ConvUnit(24, width, 1)
        self.far = net.ConvUnit(48, width, 1)
        self.refine = nn.Sequential(net.ConvUnit(width, width), net.ConvUnit(width, width))
        self.leave = nn.Conv2d(width, PROTOTYPES, 1)

    def forward(self, at4: torch.Tensor, at8: torch.Tensor) -> torch.Tensor:
        far = nn.functional.interpolate(self.far(at8), scale_factor=2.0)
        return self.leave(self.refine(self.near(at4) + far))


class TasksNet(nn.Module):
    """The trunk and the heads of all tasks, for common training.

    `forward` returns raw rows by task, and the prototypes. `model_of` returns a model to export.
    """

    def __init__(self):
        super().__init__()
        self.trunk = net.DigitsNet()
        self.trunk.heads = nn.ModuleList()  # each task has its own heads
        self.tasks = nn.ModuleDict(
            {task: TaskHead(CARRIED[task], WIDTHS[task], fine=task in FINE) for task in TASKS}
        )
        self.prototypes = Prototypes()

    def forward(self, images: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        levels = self.trunk.features(images)
        rows = {task: head(*levels) for task, head in self.tasks.items()}
        return rows, self.prototypes(*levels[:2])

    def model_of(self, task: str) -> 'TaskModel':
        """Return the model of one task, which shares its modules with this network."""
        prototypes = self.prototypes if task == 'segment' else None
        return TaskModel(task, self.trunk, self.tasks[task], prototypes)


class TaskModel(nn.Module):
    """The model of one task: maps (b, 3, 480, 640) in [0, 1] to outputs of Ultralytics' exports.

    Rows (b, 4 + CLASSES + values, n): cx, cy, w, h in network pixels, scores, then coefficients,
    the angle in radians, or x and y of each corner in network pixels. `segment` adds the
    prototypes.
    """

    def __init__(
        self, task: str, trunk: net.DigitsNet, head: TaskHead, prototypes: Prototypes | None
    ):
        super().__init__()
        self.task, self.trunk, self.head, self.prototypes = task, trunk, head, prototypes

    def forward(self, images: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        levels = self.trunk.features(images)
        rows = self.head(*levels)
        bins, logits, carried = split(self.task, rows)
        distances = net.distances_from_bins(bins, self.trunk.strides)
        carried = read_carried(self.task, carried, self.trunk)
        if self.task == 'obb':
            centre, size = turned_boxes(distances, carried, self.trunk.centres)
        else:
            near, far = distances.split(2, 1)
            centre, size = self.trunk.centres + (far - near) / 2, near + far
        found = torch.cat([centre, size, logits.sigmoid(), carried], 1)
        return found if self.prototypes is None else (found, self.prototypes(*levels[:2]))


def split(task: str, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Split raw rows (b, v, n) into bins, class logits and task values."""
    return rows.split([4 * net.BINS, net.CLASSES, CARRIED[task]], 1)


def read_carried(task: str, carried: torch.Tensor, trunk: net.DigitsNet) -> torch.Tensor:
    """Convert raw task values (b, v, n) to radians or network pixels."""
    if task == 'obb':
        return (carried.sigmoid() - 0.5) * torch.pi
    if task == 'pose':
        offsets = carried.unflatten(1, (len(CORNERS), 2)) * trunk.strides
        return (offsets + trunk.centres).flatten(1, 2)
    return carried


def turned_boxes(
    distances: torch.Tensor, angle: torch.Tensor, centres: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return centres and sizes (b, 2, n) of oriented boxes from distances along their axes."""
    near, far = distances.split(2, 1)
    x, y = ((far - near) / 2).split(1, 1)
    cos, sin = angle.cos(), angle.sin()
    return centres + torch.cat([x * cos - y * sin, x * sin + y * cos], 1), near + far


def load_digits(network: TasksNet, path: pathlib.Path, images: torch.Tensor) -> None:
    """Load the weights of the shipped detector, in place.

    Args:
        network: a new network.
        path: models/digits.onnx.
        images: as in `load_folded`.
    """
    detector = net.DigitsNet()
    load_folded(detector, path, images)
    heads = {f'heads.{key}': value for key, value in detector.heads.state_dict().items()}
    for head in network.tasks.values():
        head.load_state_dict(heads, strict=False)
    detector.heads = nn.ModuleList()
    network.trunk.load_state_dict(detector.state_dict())


def load_models(network: TasksNet, folder: pathlib.Path, images: torch.Tensor) -> None:
    """Load exported models of one training, digits_segment.onnx and so on, in place.

    Args:
        network: a new network. Weights that are missing in the files stay initial.
        folder: the folder of the files.
        images: as in `load_folded`.
    """
    for task in TASKS:
        load_folded(network.model_of(task), folder / f'digits_{task}.onnx', images)


def load_folded(model: nn.Module, path: pathlib.Path, images: torch.Tensor) -> None:
    """Load the weights of an exported model, in place.

    The export folded the normalisation into the convolutions. This function measures new
    normalisation statistics on some images. The outputs for these images do not change, and
    training can continue.

    Args:
        model: the exported model, with its normalisation.
        path: the ONNX file. Weights without a name in the file stay unchanged.
        images: (b, 3, 480, 640) in [0, 1], some dozens.
    """
    stored = {
        tensor.name: torch.from_numpy(np.array(onnx.numpy_helper.to_array(tensor)))
        for tensor in onnx.load(path).graph.initializer
    }
    biases = {}
    with torch.no_grad():
        for name, value in model.named_parameters():
            if '.norm.' not in name and name in stored:
                value.copy_(stored[name])
        for name, unit in model.named_modules():
            if isinstance(unit, net.ConvUnit) and f'{name}.conv.bias' in stored:
                biases[unit.norm] = stored[f'{name}.conv.bias']
        hooks = [norm.register_forward_pre_hook(unfold(bias)) for norm, bias in biases.items()]
        model.eval()(images)
        for hook in hooks:
            hook.remove()
    model.train()


def unfold(bias: torch.Tensor):
    """Return a hook that sets a normalisation to its input's statistics, so it adds `bias`."""

    def hook(norm: nn.BatchNorm2d, inputs: tuple[torch.Tensor]) -> None:
        variance, mean = torch.var_mean(inputs[0], (0, 2, 3), correction=0)
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
        norm.weight.data.copy_((variance + norm.eps).sqrt())
        norm.bias.data.copy_(bias + mean)

    return hook
