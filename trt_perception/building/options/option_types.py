"""The types that values of options have, with their checks, and what describes an option."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pydantic

from trt_perception.building.options.values import (
    ShapeProfile,
    check_path,
    listed,
    parse_batches,
    parse_capabilities,
    parse_path,
    parse_paths,
    parse_profiles,
    parse_size,
)
from trt_perception.files.plain_text import Fault, names_fault
from trt_perception.model.decoder_spec import DECODERS
from trt_perception.model.files.model_file import ENGINE_SUFFIXES
from trt_perception.model.preprocessing import number_fault

__all__ = [
    *(
        'Batches',
        'Capabilities',
        'DecoderName',
        'EnginePath',
        'FilePath',
        'FilePaths',
        'Names',
        'OnnxPath',
    ),
    *('PathText', 'Profiles', 'Scale', 'Size', 'Texts', 'Triple', 'option'),
]


def _check_onnx(value: Path) -> Path:
    if value.suffix != '.onnx':
        raise ValueError(f'must be an ONNX model, which ends in .onnx (got {value.name!r})')
    return value


def _check_engine(value: Path) -> Path:
    if value.suffix not in ENGINE_SUFFIXES:
        suffixes = ', '.join(ENGINE_SUFFIXES)
        raise ValueError(f'the suffix must be one of {suffixes} (got {value.name!r})')
    return value


def _check_decoder(value: str) -> str:
    if value not in DECODERS:
        raise ValueError(f'must be one of {", ".join(DECODERS)} (got {value!r})')
    return value


def _raise_fault(fault: Fault | None) -> None:
    if fault:
        raise ValueError(f'must be {fault["expected"]} (got {fault["found"]})')


def _check_numbers(value: Any, info: pydantic.ValidationInfo) -> Any:
    values = value if isinstance(value, tuple) else (value,)
    _raise_fault(number_fault(str(info.field_name), values))
    return value


def _check_names(value: tuple[str, ...]) -> tuple[str, ...]:
    _raise_fault(names_fault(value))
    return value


FilePath = Annotated[Path, pydantic.BeforeValidator(parse_path)]
OnnxPath = Annotated[FilePath, pydantic.AfterValidator(_check_onnx)]
EnginePath = Annotated[FilePath, pydantic.AfterValidator(_check_engine)]
FilePaths = Annotated[tuple[Path, ...], pydantic.BeforeValidator(parse_paths)]
PathText = Annotated[str, pydantic.AfterValidator(check_path)]
Texts = Annotated[tuple[str, ...], pydantic.BeforeValidator(listed)]
Names = Annotated[Texts, pydantic.AfterValidator(_check_names)]
DecoderName = Annotated[str, pydantic.AfterValidator(_check_decoder)]
Scale = Annotated[float, pydantic.AfterValidator(_check_numbers)]
Triple = Annotated[
    tuple[float, float, float],
    pydantic.BeforeValidator(listed),
    pydantic.AfterValidator(_check_numbers),
]
Size = Annotated[tuple[int, int], pydantic.BeforeValidator(parse_size)]
Batches = Annotated[tuple[int, ...], pydantic.BeforeValidator(parse_batches)]
Profiles = Annotated[tuple[ShapeProfile, ...], pydantic.BeforeValidator(parse_profiles)]
Capabilities = Annotated[tuple[str, ...], pydantic.BeforeValidator(parse_capabilities)]


def option(
    group: str, description: str, *, default: Any = None, name: str | None = None, **facts: Any
) -> Any:
    """Describe one option; ``facts`` are further fields of Option."""
    low, high = facts.get('limits', (None, None))
    return pydantic.Field(
        default,
        alias=name,
        ge=low,
        le=high,
        description=description,
        json_schema_extra={'group': group, **facts},
    )
