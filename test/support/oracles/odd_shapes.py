# SPDX-License-Identifier: Apache-2.0
"""Make outputs of every preset and task, and change their shapes as dynamic dimensions allow."""

import itertools

import numpy as np

from support.oracles.family_outputs import CLASSES, NETWORK, OUTPUTS, batched, random_objects
from trt_perception.model.decoder import ObjectDecoder
from trt_perception.model.decoders.table import PRESETS
from trt_perception.model.output_tensor import OutputTensor
from trt_perception.model.tasks.classify import Classify
from trt_perception.model.tasks.depth import Depth
from trt_perception.model.tasks.detect import DETECT
from trt_perception.model.tasks.obb import Obb
from trt_perception.model.tasks.pose import KeypointSpec, Pose
from trt_perception.model.tasks.segment import Segment
from trt_perception.model.tasks.semantic import Semantic
from trt_perception.model.tensors import TensorSpec

TASKS = {
    'detect': DETECT,
    'obb': Obb(),
    'pose': Pose(KeypointSpec(('head', 'tail'), 3)),
    'segment with prototypes': Segment(mask_coefficients=8),
    'segment with own masks': Segment(),
    'classify': Classify(),
    'semantic': Semantic(),
    'depth': Depth(),
}
#: All pairs of a preset and a task that it supports.
CASES = [
    (preset, task)
    for preset, task in itertools.product(PRESETS, TASKS)
    if PRESETS[preset].decoder.outputs(CLASSES, TASKS[task])
]
#: Sizes of axes that no number in the decoder's outputs fixes. A map has cells of 16 x 16 pixels.
_SIDES = {
    'rows': NETWORK[1] // 16,
    'columns': NETWORK[0] // 16,
    'height': NETWORK[1] // 16,
    'width': NETWORK[0] // 16,
}


def wanted_outputs(preset, task):
    """Return the outputs that the decoder reads."""
    return PRESETS[preset].decoder.outputs(CLASSES, TASKS[task])


def open_tensors(preset, task):
    """Return the description of the outputs, with each dimension open."""
    return tuple(
        TensorSpec(
            (*output.tensor_names, output.name)[0],
            (-1,) * len(output.shape),
            output.dtypes[0],
        )
        for output in wanted_outputs(preset, task)
    )


def usual_outputs(preset, task, images):
    """Return valid outputs of a batch, in the order of the decoder's outputs, by their names."""
    rng = np.random.default_rng(5)
    wanted = wanted_outputs(preset, task)
    if not isinstance(PRESETS[preset].decoder, ObjectDecoder):
        return {
            output.name: _values_for(rng, output, images).astype(output.dtypes[0])
            for output in wanted
        }
    made = batched(preset, [OUTPUTS[preset](rng, *random_objects(rng)) for _ in range(images)])
    boxes = PRESETS[preset].decoder.outputs(CLASSES, DETECT)
    found = dict(zip((output.name for output in boxes), _in_order(boxes, made), strict=True))
    values = TASKS[task].task_value_count
    sizes = {
        letter: side
        for output in boxes
        for letter, side in zip(output.shape, found[output.name].shape, strict=True)
    }
    for output in wanted:
        if output.name not in found:
            shape = [
                side if isinstance(side, int) else {**_SIDES, **sizes}[side]
                for side in output.shape
            ]
            found[output.name] = rng.normal(size=shape).astype(np.float32)
    if values and PRESETS[preset].decoder.allows_task_values:
        rows = found['output']
        axis = 1 if wanted[0].shape[2] == 'N' else 2
        shape = [values if at == axis else side for at, side in enumerate(rows.shape)]
        behind = rng.normal(size=shape).astype(np.float32)
        found['output'] = np.concatenate([rows, behind], axis=axis)
    return {output.name: found[output.name] for output in wanted}


def _in_order(boxes, made):
    """Return the arrays of a mapping in the order of the decoder's outputs."""
    if len(made) == 1:
        return list(made.values())
    return [
        next(value for key, value in made.items() if key in output.tensor_names)
        for output in boxes
    ]


def _values_for(rng, output: OutputTensor, images):
    """Return values of an output that describes the whole image."""
    sides = {'B': images, **_SIDES}
    shape = [side if isinstance(side, int) else sides[side] for side in output.shape]
    match output.name:
        case 'ids':
            return rng.integers(0, CLASSES, shape)
        case 'field of view':
            return np.full(shape, 60)
        case 'sky':
            return rng.uniform(0, 0.5, shape)
        case 'logits' | 'points':
            return rng.normal(1, 1, shape)
    return rng.uniform(0.6, 1, shape)


def with_shape(array, shape):
    """Return an array of another shape, whose values repeat the values of an array."""
    if len(shape) != array.ndim:
        return np.resize(array, shape)
    places = [np.arange(side) % max(1, old) for side, old in zip(shape, array.shape, strict=True)]
    return np.ascontiguousarray(array[np.ix_(*places)])


def odd_sizes(usual):
    """Return other sizes for an axis of this size."""
    return sorted({0, 1, usual - 1, usual + 1, 2 * usual} - {usual})


def odd_shapes(wanted, usual):
    """Return (what changed, the shapes of all outputs) for each change of one or more axes.

    Args:
        wanted: the outputs that the decoder reads.
        usual: the usual shape of each of them.
    """
    made = []
    for at, shape in enumerate(usual):
        for axis, side in enumerate(shape):
            for size in odd_sizes(side):
                changed = (*shape[:axis], size, *shape[axis + 1 :])
                label = f'{wanted[at].name} {wanted[at].shape[axis]} {size}'
                made.append((label, (*usual[:at], changed, *usual[at + 1 :])))
        for other in ((0,) * len(shape), shape[1:], (*shape, 1)):
            label = f'{wanted[at].name} as {other}'
            made.append((label, (*usual[:at], other, *usual[at + 1 :])))
    letters = {
        letter: side
        for output, shape in zip(wanted, usual, strict=True)
        for letter, side in zip(output.shape, shape, strict=True)
        if isinstance(letter, str)
    }
    for letter, side in letters.items():
        for size in odd_sizes(side):
            shapes = tuple(
                tuple(
                    size if name == letter else old
                    for name, old in zip(output.shape, shape, strict=True)
                )
                for output, shape in zip(wanted, usual, strict=True)
            )
            made.append((f'every {letter} {size}', shapes))
    return made


def agree(wanted, shapes, images):
    """Return whether shapes fit the decoder: each letter has one size, and B is the batch."""
    pairs = [
        (letter, side)
        for output, shape in zip(wanted, shapes, strict=True)
        for letter, side in zip(output.shape, shape, strict=False)
    ]
    sizes = {}
    for letter, side in [('B', images), *pairs]:
        sizes.setdefault(letter, set()).add(side)
    same_ranks = [len(output.shape) for output in wanted] == [len(shape) for shape in shapes]
    return same_ranks and all(
        len(found) == 1 and (isinstance(letter, str) or found == {letter})
        for letter, found in sizes.items()
    )
