# SPDX-License-Identifier: Apache-2.0
"""Reports on an engine or ONNX file, as text and as JSON.

Reading the file, its header and its manifest needs neither TensorRT nor a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from trt_perception.files.plain_text import counted, size_text
from trt_perception.model.build_record import BuildRecord
from trt_perception.model.files.model_file import ModelFile
from trt_perception.model.files.plan_header import RTX_TARGET_BITS, PlanHeader, read_plan_header
from trt_perception.model.manifest import Manifest
from trt_perception.model.tensors import TensorSpec
from trt_perception.offline.building.inspection.fusion import Fusion, compare_layers, read_fusion
from trt_perception.offline.building.inspection.inspector import EngineInfo, LayerTime
from trt_perception.offline.building.inspection.layers import layer_precisions

_TARGET_BITS_OFFSET: Final = 32


@dataclass(frozen=True)
class EngineReport:
    """All findings about an engine or an ONNX model.

    Attributes:
        header: flavour and version of TensorRT that built the engine; None for an ONNX model.
        targets: compute capabilities that the engine was built for; empty if the plan does not
            name them.
        engine_info: properties of the loaded engine; None if it was not loaded.
        why_not_loaded: why the engine was not loaded; empty if it was loaded.
        times: times of the layers, slowest first; empty if not measured.
        engine_ms: time of the whole engine in milliseconds; None if not measured.
        recognised: properties that the node recognises in an ONNX model without a manifest;
            otherwise None.
    """

    model: ModelFile
    header: PlanHeader | None
    targets: tuple[str, ...]
    engine_info: EngineInfo | None = None
    why_not_loaded: str = ''
    times: tuple[LayerTime, ...] = ()
    engine_ms: float | None = None
    recognised: Manifest | None = None

    @property
    def fusion(self) -> Fusion | None:
        """The ONNX nodes of the layers; None if the engine reports no layers."""
        if self.engine_info is None:
            return None
        manifest = self.model.manifest
        return read_fusion(self.engine_info, manifest.build if manifest else None)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        fusion = self.fusion
        engine_info = None
        if self.engine_info is not None:
            engine_info = asdict(self.engine_info)
            engine_info['precision'] = layer_precisions(self.engine_info.layers)
            for entry, layer in zip(engine_info['layers'], self.engine_info.layers, strict=True):
                entry['precision'] = layer.precision
        manifest = self.model.manifest
        return {
            'file': str(self.model.path),
            'sha256': self.model.sha256,
            'size_bytes': len(self.model.content),
            'built_by': self.header
            and {
                'flavour': self.header.module,
                'version': '.'.join(map(str, self.header.version)),
            },
            'targets': list(self.targets),
            'manifest': None if manifest is None else _manifest_dict(manifest),
            'recognised': None if self.recognised is None else self.recognised.as_dict(),
            'engine': engine_info,
            'why_no_engine': self.why_not_loaded or None,
            'fusion': fusion and fusion.as_dict(),
            'engine_ms': self.engine_ms,
            'layer_times': [
                {'name': row.layer.name, 'ms': row.ms, 'share': row.share} for row in self.times
            ],
        }


def read_engine_report(model: ModelFile) -> EngineReport:
    """Return the findings from the file and its manifest, without loading the engine.

    Raises:
        EngineError: the plan is malformed.
    """
    if model.is_onnx:
        return EngineReport(model, None, (), why_not_loaded='it is an ONNX model')
    header = read_plan_header(model.content, model.path.name)
    return EngineReport(model, header, plan_compute_capabilities(model.content, header))


def plan_compute_capabilities(content: bytes, header: PlanHeader) -> tuple[str, ...]:
    """Return the compute capabilities in a plan of TensorRT-RTX; () for a plan of TensorRT."""
    if header.module != 'tensorrt_rtx':
        return ()
    bits = content[_TARGET_BITS_OFFSET]
    return tuple(target for target, bit in RTX_TARGET_BITS.items() if bits & bit)


def _manifest_dict(manifest: Manifest) -> dict[str, Any]:
    content = manifest.as_dict()
    return {key: content[key] for key in content if key not in ('engine', 'inputs', 'outputs')}


def format_engine_report(report: EngineReport, *, layers: int) -> str:
    """Return the report as text for a terminal."""
    model, header = report.model, report.header
    rows = [
        ('file', str(model.path)),
        ('size', size_text(len(model.content))),
        ('sha256', model.sha256),
    ]
    if header is not None:
        version = '.'.join(map(str, header.version))
        rows.append(('built by', f'{header.module} {version}'))
    if report.targets:
        rows.append(('built for', f'compute capability {", ".join(report.targets)}'))
    parts = [_format_rows(rows)]
    if report.recognised is None:
        parts.append(_manifest_text(model.manifest))
    else:
        parts.append(
            _manifest_text(report.recognised, 'recognised from the model, without a manifest')
        )
    if model.is_onnx:
        return '\n\n'.join(parts)
    if report.engine_info is None:
        parts.append(f'not loaded: {report.why_not_loaded}')
    else:
        engine = _format_rows(_engine_rows(report.engine_info))
        parts += [f'engine\n{engine}', _layers_text(report, layers)]
    return '\n\n'.join(parts)


def _format_rows(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return '\n'.join(f'{name:<{width}}  {value}' for name, value in rows)


def _manifest_text(manifest: Manifest | None, title: str = 'manifest') -> str:
    if manifest is None:
        return 'manifest: none next to the file; build_engine writes one'
    image = manifest.preprocessing
    names = manifest.class_names
    rows = [
        *((f'input {tensor.name}', _tensor_text(tensor)) for tensor in manifest.inputs),
        *((f'output {tensor.name}', _tensor_text(tensor)) for tensor in manifest.outputs),
        (
            'image',
            f'{image.input_size[0]}x{image.input_size[1]} {image.resize}, '
            f'{f"shorter side {image.shorter_side}, " if image.shorter_side else ""}'
            f'{"bicubic, " if image.filter == "bicubic" else ""}'
            f'{"antialiased, " if image.antialias else ""}'
            f'{"" if image.round_pixels else "not rounded, "}'
            f'{image.color_order}, scale {image.scale:.6g}, mean {list(image.mean)}, std '
            f'{list(image.std)}',
        ),
        ('task', str(manifest.task)),
        ('decoder', str(manifest.decoder)),
    ]
    if names:
        listed = f'{", ".join(names[:8])}{" …" if len(names) > 8 else ""}'
        rows.append(('classes', f'{len(names)}: {listed}'))
    if manifest.onnx is not None:
        rows.insert(0, ('from', f'{manifest.onnx.file}, sha256 {manifest.onnx.sha256[:16]}…'))
    build = manifest.build
    if build is not None:
        rows += _batch_rows(build)
        rows += _build_rows(build)
    return f'{title}\n{_format_rows(rows)}'


def _batch_rows(build: BuildRecord) -> Iterator[tuple[str, str]]:
    """Yield a row with the batch sizes of the profiles; no row if there are none."""
    sizes = []
    for profile in build.profiles:
        for ranges in profile.values():  # in a manifest, only the image input
            low, high = ranges.min[0], ranges.max[0]
            if len(ranges.min) == 4:
                sizes.append(str(low) if low == high else f'{low} to {high}')
    if sizes:
        yield 'images at once', ', '.join(dict.fromkeys(sizes))


def _build_rows(build: BuildRecord) -> Iterator[tuple[str, str]]:
    if used := build.calibration:
        yield 'calibration', f'{used.tool}, {used.method}, {used.images} images'
    if found := build.accuracy:
        figures = f'{found.measure} {found.built:.4f}, original {found.reference:.4f}'
        yield 'accuracy', f'{figures}, on {found.images} images, through {found.runtime}'
    if agreed := build.agreement:
        where = f'on {agreed.images} {agreed.images_of} images, through {agreed.runtime}'
        yield (
            'agreement',
            f'{agreed.statement}, {where}' if agreed.statement else 'not measured',
        )
        if agreed.warning:
            yield 'warning', agreed.warning
    yield 'built on', build.gpu.name if build.gpu else 'a machine without a GPU'
    built = build.precision.as_built
    counts = (
        'unverified (use --update-manifest on the target)'
        if built is None
        else _layer_count_text(built)
    )
    yield 'precision', f'{build.precision.asked} requested, as built: {counts}'


def _tensor_text(tensor: TensorSpec) -> str:
    return f'{"x".join("?" if side < 0 else str(side) for side in tensor.shape)} {tensor.dtype}'


def _layer_count_text(counts: Mapping[str, int]) -> str:
    return (
        ', '.join(f'{counted(count, "layer")} {kind}' for kind, count in counts.items())
        or 'not reported'
    )


def _engine_rows(engine_info: EngineInfo) -> list[tuple[str, str]]:
    rows = [
        *((f'input {tensor.name}', _tensor_text(tensor)) for tensor in engine_info.inputs),
        *((f'output {tensor.name}', _tensor_text(tensor)) for tensor in engine_info.outputs),
    ]
    for index, profile in enumerate(engine_info.profiles):
        for name, shapes in profile.items():
            text = ' : '.join('x'.join(map(str, shape)) for shape in shapes)
            rows.append((f'profile {index}', f'{name} {text}'))
    memory = ', '.join(map(size_text, engine_info.context_bytes))
    rows.append(('memory', f'{memory} per context, for each profile'))
    if engine_info.weight_bytes is not None:
        rows.append(('weights', size_text(engine_info.weight_bytes)))
    rows += [
        ('verbosity', engine_info.verbosity),
        ('refittable', 'yes' if engine_info.refittable else 'no'),
        ('extra streams', str(engine_info.extra_streams)),
        ('load', f'{engine_info.load_s * 1000:.0f} ms'),
        (
            'layers',
            f'{len(engine_info.layers)}; '
            f'{_layer_count_text(layer_precisions(engine_info.layers))}',
        ),
    ]
    return rows


def _layers_text(report: EngineReport, max_layers: int) -> str:
    assert report.engine_info is not None
    fusion = report.fusion
    if fusion is None:
        return 'layers: not reported, because the engine was built with --profiling-verbosity none'
    timed = {row.layer.name: row for row in report.times}
    order = [row.layer for row in report.times] or list(report.engine_info.layers)
    lines = [f'{"ms":>8} {"share":>6}  {"type":<5} {"kind":<16} layer (tactic) <- ONNX nodes']
    for layer in order[:max_layers]:
        row = timed.get(layer.name)
        times = f'{row.ms:8.4f} {row.share:6.1%}' if row else f'{"":8} {"":6}'
        tactic = f' ({layer.tactic})' if layer.tactic else ''
        nodes = f' <- {fusion.node_text(layer)}' if layer.nodes else ''
        lines.append(
            f'{times}  {layer.precision:<5} {layer.kind[:16]:<16} {layer.name}{tactic}{nodes}'
        )
    if len(order) > max_layers:
        lines.append(f'… and {len(order) - max_layers} more (--layers {len(order)})')
    total_ms = sum(row.ms for row in report.times)
    title = f'layers, slowest first; {total_ms:.3f} ms in total' if report.times else 'layers'
    return '\n'.join([title, *lines, '', 'fusion', _format_rows(_fusion_rows(report, fusion))])


def _fusion_rows(report: EngineReport, fusion: Fusion) -> list[tuple[str, str]]:
    rows = fusion.rows()
    if report.engine_ms is not None:
        layers_ms = sum(row.ms for row in report.times)
        text = f'{report.engine_ms:.3f} ms for the engine, {layers_ms:.3f} ms for its layers'
        rows.append(('time', text))
    return rows


def format_comparison(first: EngineReport, second: EngineReport, *, layers: int) -> str:
    """Return what differs between two engines as text for a terminal.

    Args:
        second: findings about the second engine.
    """
    reports = first, second
    columns = [dict(_comparison_rows(report)) for report in reports]
    rows = [
        (name, f'{columns[0].get(name, "-")}  ->  {columns[1].get(name, "-")}')
        for name in {**columns[0], **columns[1]}
        if columns[0].get(name) != columns[1].get(name)
    ]
    parts = (
        [f'{first.model.path} -> {second.model.path}', _format_rows(rows)]
        if rows
        else [f'{first.model.path} and {second.model.path} do not differ']
    )
    fusions = [report.fusion for report in reports]
    if fusions[0] is not None and fusions[1] is not None:
        lines = compare_layers(fusions[0], fusions[1], [report.times for report in reports])
        title = f'layers that differ: {len(lines)} of {len(fusions[0].layers)}'
        more = [f'… and {len(lines) - layers} more (--layers {len(lines)})']
        parts.append('\n'.join([title, *lines[:layers], *more * (len(lines) > layers)]))
    return '\n\n'.join(parts)


def _comparison_rows(report: EngineReport) -> Iterator[tuple[str, str]]:
    yield 'size', size_text(len(report.model.content))
    yield 'built for', ', '.join(report.targets)
    if report.header is not None:
        yield 'built by', f'{report.header.module} {".".join(map(str, report.header.version))}'
    manifest = report.model.manifest
    if manifest is not None and manifest.build is not None:
        yield from _build_rows(manifest.build)
    if report.engine_info is not None:
        for name, text in _engine_rows(report.engine_info):
            if name != 'load':
                yield name, text
    if report.fusion is not None:
        yield from _fusion_rows(report, report.fusion)
