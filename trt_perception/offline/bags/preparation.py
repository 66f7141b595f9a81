# SPDX-License-Identifier: Apache-2.0
"""Prepares a command of detect_bag: finds the cameras of all bags, and what is done already."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trt_perception.bags.writer import check_bag_name
from trt_perception.errors import ConfigError, TrtPerceptionError
from trt_perception.files.plain_text import to_one_line
from trt_perception.model.files.model_file import ModelFile, is_onnx
from trt_perception.offline.bags.cameras import find_cameras
from trt_perception.offline.bags.ledger import Ledger, read_ledger
from trt_perception.offline.bags.part import Job
from trt_perception.offline.bags.plan import BagPlan, OutputOptions, plan_bag, with_parameters
from trt_perception.offline.bags.work import BagRun, Work
from trt_perception.parameters.camera import NodeParameters


@dataclass(frozen=True)
class Request:
    """What a user wants detect_bag to do.

    Attributes:
        model_path: path of the model as the user gave it.
        outputs: folder of the new bag by path of the bag.
        options: how the new bags are written.
        values: parameters of the node by name.
        cameras: topics by name of the camera; empty to find the cameras of each bag.
        start_s: first log time in seconds, as `plan_bag` takes it.
        end_s: the end of the log times.
        with_masks: whether to write masks of objects.
        processes: number of processes that run the model.
        overwrites: whether to replace the results of an earlier run.
    """

    model: ModelFile
    model_path: str
    outputs: Mapping[str, Path]
    options: OutputOptions
    values: Mapping[str, Any]
    cameras: Mapping[str, str]
    start_s: float | None
    end_s: float | None
    with_masks: bool
    processes: int
    overwrites: bool


def prepare(
    request: Request, progress: Callable[[int, int], None], say: Callable[[str], None]
) -> Work:
    """Return the work on all bags. One of several bags may fail without ending the others.

    Args:
        progress: called with the numbers of opened bags and of all bags.
        say: the work calls it with sentences for the user.

    Raises:
        ConfigError: no bag can be processed, or a parameter is invalid.
    """
    failures: dict[str, str] = {}
    count = len(request.outputs)

    @contextlib.contextmanager
    def noting_failure(bag: str) -> Iterator[None]:
        try:
            yield
        except TrtPerceptionError as error:
            if count == 1:
                raise
            failures[bag] = to_one_line(error, longest=4000)

    plans: list[BagPlan] = []
    for done, (bag, output) in enumerate(request.outputs.items()):
        progress(done, count)
        with noting_failure(bag):
            plans.append(_plan(bag, output, request))
    # The names of the cameras of all bags must be known before the parameters of each camera.
    cameras = [camera for plan in plans for camera in plan.cameras]
    names = sorted({camera.name for camera in cameras} - {''})
    parameters = NodeParameters.from_values({**request.values, 'cameras': names})
    settings = {'model': _model_identity(request), 'masks': request.with_masks}
    runs: list[BagRun] = []
    for plan in plans:
        with noting_failure(plan.bag):
            runs.append(_new_run(with_parameters(plan, parameters, settings), request))
    if not runs:
        raise ConfigError('bags', '; '.join(failures.values()))
    job = Job(
        request.model_path,
        parameters,
        request.with_masks,
        has_compressed=any(camera.is_compressed for camera in cameras),
        processes=request.processes,
    )
    return Work(job, runs, failures, say, overwrites=request.overwrites)


def _plan(bag: str, output: Path, request: Request) -> BagPlan:
    check_bag_name(output, request.options.storage)
    is_engine = request.model.address is None and not is_onnx(request.model.path)
    return plan_bag(
        bag,
        output,
        request.options,
        lambda opened: find_cameras(
            opened, bag, request.cameras, request.values, prefers_compressed=is_engine
        ),
        request.start_s,
        request.end_s,
    )


def _new_run(plan: BagPlan, request: Request) -> BagRun:
    if not request.overwrites:
        try:
            ledger = read_ledger(plan)
        except ConfigError as error:
            return BagRun(plan, Ledger(plan.inputs), error)
        if ledger is not None:
            return BagRun(plan, ledger)
    return BagRun(plan, Ledger(plan.inputs))


def _model_identity(request: Request) -> list[str]:
    """Return hashes of a model and its description; the address of a model on a server."""
    model = request.model
    if model.address is not None:
        return [request.model_path]
    described = repr((model.manifest, model.config, sorted(model.metadata.items())))
    return [model.sha256, hashlib.sha256(described.encode()).hexdigest()]
