# SPDX-License-Identifier: Apache-2.0
"""Replace TensorRT's Python module, for releases that are not installed.

The stand-in has the names of a recorded table of each release's bindings. Like the bindings, it
raises AttributeError for all other names. It numbers enumerations differently in each release, and
records calls and assignments.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

API_TABLE = json.loads((Path(__file__).parents[2] / 'data' / 'tensorrt_api.json').read_text())
NAMES_BY_RELEASE = {
    release: {
        name for bits, names in API_TABLE['names'].items() if bits[index] == '1' for name in names
    }
    for index, release in enumerate(API_TABLE['releases'])
}
PLAN_SIGNATURES = {'tensorrt': b'ftrt', 'tensorrt_rtx': b'vtrt'}
BASE_CLASSES = ('ILogger', 'IProgressMonitor', 'IProfiler', 'IInt8EntropyCalibrator2')
BASE_CLASSES += ('IInt8MinMaxCalibrator', 'IErrorRecorder')
CALLABLES = ('Builder', 'OnnxParser', 'init_libnvinfer_plugins', 'get_plugin_registry')


class EnumMember:
    """A value of an enumeration."""

    def __init__(self, owner, name, number):
        self.owner, self.name, self.number = owner, name, number

    def __int__(self):
        return self.number

    def __repr__(self):
        return f'{self.owner}.{self.name}'


class TensorRtObject:
    """A TensorRT object with the attributes of one class of one release."""

    def __init__(self, standin, kind, **values):
        self.__dict__.update(_standin=standin, _kind=kind, _values=values)

    def _check(self, name):
        if f'{self._kind}.{name}' not in self._standin.names:
            raise AttributeError(f'{self._standin.release} has no {self._kind}.{name}')

    def __getattr__(self, name):
        self._check(name)
        value = self._values.get(name)
        if name in self._values and not callable(value):
            return value

        def call(*arguments):
            self._standin.calls.append((f'{self._kind}.{name}', arguments))
            return value(*arguments) if value else None

        return call

    def __setattr__(self, name, value):
        self._check(name)
        self._standin.calls.append((f'{self._kind}.{name} =', (value,)))
        self._values[name] = value


class Enumeration:
    """A TensorRT enumeration: a class that is only used to look up members."""

    def __init__(self, kind, members):
        self._kind = kind
        self.__dict__.update(members)

    def __getattr__(self, name):
        raise AttributeError(f'no {self._kind}.{name}')


class StandIn:
    """The TensorRT module of one release.

    Attributes:
        calls: (name, arguments) in order; the name of an assignment ends with " =".
        build: function that gets the configuration's monitor and returns the plan or None.
        parse_errors: the errors that the parser reports, as (node, operator, code, text).
        layers: the network's layers, as (name, metadata, dtype).
        shape: shape of the image input.
        other_inputs: shapes of additional inputs by name.
        refuse_profiles: whether every optimisation profile is refused.
        dla_cores: number of DLA cores of the machine.
        cache_accepted: whether a timing cache is accepted.
    """

    def __init__(self, release, version):
        self.release = release
        self.__version__ = version
        self.flavour = 'tensorrt_rtx' if release.startswith('RTX') else 'tensorrt'
        self.names = NAMES_BY_RELEASE[release]
        self.calls = []
        self.build = lambda monitor, logger: self.plan()
        self.parse_errors = []
        self.layers = []
        self.shape = (1, 3, 8, 8)
        self.other_inputs = {}
        self.refuse_profiles = False
        self.dla_cores = 0
        self.cache_accepted = True
        self.logger = None
        self._enumerations = {}

    def __getattr__(self, name):
        if name.startswith('_') or name not in self.names:
            raise AttributeError(f'{self.release} has no {name}')
        if name in BASE_CLASSES:
            return type(name, (), {})
        if name in CALLABLES:
            return getattr(self, f'make_{name}')
        if name not in self._enumerations:
            self._enumerations[name] = self._enumeration(name)
        return self._enumerations[name]

    def _enumeration(self, kind):
        """Number the members of an enumeration in an order that differs between releases."""
        names = [
            name.removeprefix(kind + '.')
            for name in sorted(self.names)
            if name.startswith(kind + '.')
        ]
        members = [name for name in names if re.fullmatch(r'[A-Z][A-Za-z0-9_]*', name)]
        order = random.Random(f'{self.release} {kind}').sample(range(len(names)), len(members))
        values = {n: EnumMember(kind, n, number) for n, number in zip(members, order, strict=True)}
        methods = {name: None for name in names if name not in members}
        return Enumeration(kind, {**{name: object() for name in methods}, **values})

    # --- called by the builder -----------------------------------------------------------------

    def make_init_libnvinfer_plugins(self, *arguments):
        self.calls.append(('init_libnvinfer_plugins', arguments))
        return True

    def make_get_plugin_registry(self):
        return TensorRtObject(
            self, 'IPluginRegistry', error_recorder=None, load_library=lambda path: object()
        )

    def make_Builder(self, logger):  # noqa: N802  TensorRT's name
        self.logger = logger
        return TensorRtObject(
            self,
            'Builder',
            create_network=self._make_network,
            create_builder_config=self._make_config,
            create_optimization_profile=lambda: TensorRtObject(self, 'IOptimizationProfile'),
            build_serialized_network=lambda network, config: self.build(
                config.progress_monitor, self.logger
            ),
            num_DLA_cores=self.dla_cores,
        )

    def make_OnnxParser(self, network, logger):  # noqa: N802
        errors = [
            TensorRtObject(
                self,
                'ParserError',
                node_name=lambda node=node: node,
                node_operator=lambda operator=operator: operator,
                code=lambda code=code: getattr(self.ErrorCode, code),
                desc=lambda text=text: text,
            )
            for node, operator, code, text in self.parse_errors
        ]
        return TensorRtObject(
            self,
            'OnnxParser',
            parse=lambda content: not errors,
            num_errors=len(errors),
            get_error=lambda index: errors[index],
        )

    def _make_network(self, flags):
        kind = self.NetworkDefinitionCreationFlag
        known = {
            1 << int(member): member.name
            for member in vars(kind).values()
            if is_enum_member(member)
        }
        assert flags == 0 or flags in known, f'{flags} is not a flag of {self.release}'
        self.calls.append(('created network', (known.get(flags, ''),)))
        tensor = TensorRtObject(
            self, 'ITensor', name='images', shape=self.shape, dtype=self.DataType.FLOAT
        )
        inputs = [tensor] + [
            TensorRtObject(self, 'ITensor', name=name, shape=shape, dtype=self.DataType.FLOAT)
            for name, shape in self.other_inputs.items()
        ]
        layers = [self._make_layer(*facts) for facts in self.layers]
        return TensorRtObject(
            self,
            'INetworkDefinition',
            num_inputs=len(inputs),
            num_outputs=1,
            num_layers=len(layers),
            get_input=lambda index: inputs[index],
            get_output=lambda index: tensor,
            get_layer=lambda index: layers[index],
        )

    def _make_layer(self, name, metadata, dtype):
        tensor = TensorRtObject(self, 'ITensor', dtype=getattr(self.DataType, dtype))
        return TensorRtObject(
            self,
            'ILayer',
            name=name,
            metadata=metadata,
            num_outputs=1,
            type=self.LayerType.CONVOLUTION,
            get_output=lambda index: tensor,
        )

    def _make_config(self):
        def cache(content):
            return TensorRtObject(
                self, 'ITimingCache', serialize=lambda: b'times of ' + self.release.encode()
            )

        return TensorRtObject(
            self,
            'IBuilderConfig',
            add_optimization_profile=lambda profile: -1 if self.refuse_profiles else 0,
            create_timing_cache=cache,
            set_timing_cache=lambda *_: self.cache_accepted,
            get_timing_cache=lambda: cache(b''),
            set_compute_capability=lambda target, index: True,
        )

    # --- called by tests -----------------------------------------------------------------------

    def plan(self):
        version = [int(part) for part in self.__version__.split('.')][:4]
        return PLAN_SIGNATURES[self.flavour] + bytes(20) + bytes(version) + bytes(100)

    def arguments_of_calls(self, name):
        return [arguments for called, arguments in self.calls if called == name]

    def builder_flags(self):
        return {str(member) for (member,) in self.arguments_of_calls('IBuilderConfig.set_flag')}


def is_enum_member(value):
    return isinstance(value, EnumMember)
