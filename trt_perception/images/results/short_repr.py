# SPDX-License-Identifier: Apache-2.0
"""A short text for objects with arrays."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np


class ShortRepr:
    """The base of dataclasses with arrays: ``repr`` has the type and shape of each array."""

    def __repr__(self) -> str:
        shown_fields = (field for field in fields(self) if field.repr)  # type: ignore[arg-type]
        values = ((field.name, getattr(self, field.name)) for field in shown_fields)
        shown = (f'{name}={_text(value)}' for name, value in values if value is not None)
        return f'{type(self).__name__}({", ".join(shown)})'


def _text(value: Any) -> str:
    return f'{value.dtype} {value.shape}' if isinstance(value, np.ndarray) else repr(value)
