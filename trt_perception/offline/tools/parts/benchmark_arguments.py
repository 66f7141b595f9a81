"""Arguments of benchmark_engine: length, batch and depth of the measurements, and their types."""

from __future__ import annotations

import argparse
import contextlib

from trt_perception.images.frame import MAX_SIDE, PIXEL_FORMATS
from trt_perception.model.input_layout import MAX_BATCH
from trt_perception.model.pipeline_options import ONNX_PROVIDERS
from trt_perception.offline.benchmarking.model_report import BenchmarkOptions
from trt_perception.offline.tools.parts.arguments import integer_at_least


def add_measurement_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for length, batch and depth of the measurements."""
    add = parser.add_argument
    defaults = BenchmarkOptions()
    add(
        '--depth',
        type=_parse_integers,
        default=defaults.depths,
        metavar='N,N…',
        help='batches in flight, one measurement each (default: 1,2,3,4; ONNX files: always 1)',
    )
    add(
        '--batch',
        type=_parse_batches,
        default=defaults.batches,
        metavar='N,N…',
        help='frames per batch, one measurement for each batch size and depth (default: 1)',
    )
    add(
        '--max-latency-ms',
        type=_parse_milliseconds,
        metavar='MS',
        help='report the fastest batch and depth whose p99 latency at full load is at most MS',
    )
    add(
        '--frames',
        type=integer_at_least(1),
        metavar='N',
        help='frames per measurement (default: as many as fit into 10 s, at most 1000)',
    )
    add(
        '--seconds',
        type=_parse_seconds,
        metavar='S',
        help='maximum seconds per measurement (default: 10; with --frames: no limit)',
    )
    add(
        '--warmup',
        type=integer_at_least(0),
        default=defaults.warmup,
        metavar='N',
        help='frames before each measurement that are not counted (default: 100)',
    )
    add(
        '--provider',
        type=_parse_providers,
        default=('auto',),
        metavar='NAME,…',
        help='execution providers of ONNX Runtime, one run of each ONNX file for each provider '
        f'(default: auto). Providers: {", ".join(ONNX_PROVIDERS)}',
    )


def parse_encodings(text: str) -> tuple[str, ...]:
    """Return names of different encodings. ``all`` means all encodings, bgr8 first."""
    if text == 'all':
        text = ','.join(['bgr8', *PIXEL_FORMATS])
    unique: dict[str, str] = {}
    for name in text.split(','):
        if name not in PIXEL_FORMATS:
            raise argparse.ArgumentTypeError(
                f'invalid choice: {name!r} (choose from all, {", ".join(PIXEL_FORMATS)})'
            )
        unique.setdefault(PIXEL_FORMATS[name].name, name)
    return tuple(unique.values())


def _parse_providers(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(',')))
    for name in names:
        if name not in ONNX_PROVIDERS:
            raise argparse.ArgumentTypeError(
                f'invalid choice: {name!r} (choose from {", ".join(ONNX_PROVIDERS)})'
            )
    return names


def _parse_seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 86400:
            return float(text)
    raise argparse.ArgumentTypeError(f'expected seconds, above 0 and at most 86400 (got {text!r})')


def _parse_milliseconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 1e6:
            return float(text)
    raise argparse.ArgumentTypeError(
        f'expected milliseconds, above 0 and at most 1000000 (got {text!r})'
    )


def _parse_batches(text: str) -> tuple[int, ...]:
    sizes = _parse_integers(text)
    if not all(1 <= size <= MAX_BATCH for size in sizes):
        raise argparse.ArgumentTypeError(
            f'expected numbers from 1 to {MAX_BATCH}, as in 1,4,8 (got {text!r})'
        )
    return tuple(dict.fromkeys(sizes))


def parse_size(text: str) -> tuple[int, int]:
    """Return width and height of ``WIDTHxHEIGHT``."""
    sides = [int(side) for side in text.lower().split('x') if side.isdecimal()]
    is_pair = text.lower().count('x') == 1 and len(sides) == 2
    if not (is_pair and all(1 <= side <= MAX_SIDE for side in sides)):
        raise argparse.ArgumentTypeError(
            f'expected WIDTHxHEIGHT, each from 1 to {MAX_SIDE}, as in 1920x1080 (got {text!r})'
        )
    return sides[0], sides[1]


def _parse_integers(text: str) -> tuple[int, ...]:
    parts = text.split(',')
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f'expected numbers, as in 1,2,3 (got {text!r})')
    return tuple(int(part) for part in parts)
