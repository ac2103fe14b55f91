"""Measured choices that ``auto`` prefers to a model's: one JSON file a device, made by benchmarks/tune.py.

A file holds only the products for which the models were seen to be wrong, so it is short, and reviewed like code.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgemm import precision as prec
from jaxgemm.problem import Problem
from jaxgemm.roofline import KNOWN_DEVICES

#: Devices of the same chip, with as many multiprocessors at the same clock. Only the memory differs, so what was
#: measured on the other holds where moving the bytes takes this part of the time at most.
SAME_CHIP = {"NVIDIA H100 80GB HBM3": "NVIDIA H200"}
_MEMORY_SHARE = 0.5


@dataclass(frozen=True, order=True)
class Key:
    """The products that an entry is for: extents, how the operands lie, and types, whatever the epilogue.

    Attributes:
        m, n, k: extents.
        batch: products in one call.
        layout: which operand is stored transposed, as in "NT".
        a, b, d: element types of the operands and the result.
        arithmetic: the least exact that is allowed, one of :data:`jaxgemm.precision.ARITHMETICS`.
    """

    m: int
    n: int
    k: int
    batch: int
    layout: str
    a: str
    b: str
    d: str
    arithmetic: str = "plain"

    @classmethod
    def of(cls, p: Problem, precision: prec.Precision) -> Key:
        """The key of a problem at a precision that some kernel satisfies."""
        a, b, d = p.dtypes[:3]
        arithmetic = prec.arithmetics(precision, np.dtype(jnp.dtype(a)))[0]
        return cls(p.m, p.n, p.k, p.batch[0] * p.batch[1], p.layout, a, b, d, arithmetic)

    def alike(self) -> Key | None:
        """The product of the other 16-bit type, if this is of one: it takes the same code and the same time."""
        other = {"bfloat16": "float16", "float16": "bfloat16"}.get(self.a)
        alone = {self.a, self.b, self.d} == {self.a}
        return replace(self, a=other, b=other, d=other) if other and alone else None

    @property
    def bytes(self) -> int:
        """Of both operands and the result, each once."""
        a, b, d = (np.dtype(jnp.dtype(name)).itemsize for name in (self.a, self.b, self.d))
        return self.batch * (a * self.m * self.k + b * self.k * self.n + d * self.m * self.n)


@dataclass(frozen=True)
class Override:
    """What was fastest.

    Attributes:
        kernel: a row of the table, or "xla".
        options: all of the kernel's options.
        us: its device time when it was measured, in microseconds.
        instead_us: the time of what would run without the entry.
    """

    kernel: str
    options: tuple[tuple[str, int], ...]
    us: float
    instead_us: float


def slug(device: str) -> str:
    """A file's name for a device."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def to_json(device: str, entries: dict[Key, Override], **more: Any) -> str:
    """The content of a device's file."""
    rows = [{**asdict(key), **asdict(o), "options": dict(o.options)} for key, o in sorted(entries.items())]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    head = json.dumps({"device": device, **more}, indent=1)[1:-2]
    return f'{{{head},\n "products": [\n{lines}\n ]\n}}\n' if rows else f'{{{head},\n "products": []\n}}\n'


def from_json(text: str) -> dict[Key, Override]:
    """The entries of such a content."""
    entries = {}
    for row in json.loads(text)["products"]:
        key = Key(**{name: row.pop(name) for name in Key.__dataclass_fields__})
        entries[key] = Override(**{**row, "options": tuple(row["options"].items())})
    return entries


@dataclass(frozen=True)
class Found:
    """A measurement that holds for a product: of which product it is, and on which device."""

    measured: Override
    key: Key
    device: str


def find(device: str, key: Key) -> Found | None:
    """What was measured for a product on a device, or else for one that is alike, or on a device of the same chip."""
    return _held(device, key) or inherited(device, key)


def inherited(device: str, key: Key) -> Found | None:
    """What was measured on a device of the same chip, if other memory should not change it."""
    if device not in SAME_CHIP:
        return None
    found = _held(SAME_CHIP[device], key)
    moving = 1e6 * key.bytes / KNOWN_DEVICES[device].bandwidth
    return found if found and moving <= _MEMORY_SHARE * found.measured.us else None


def _held(device: str, key: Key) -> Found | None:
    held = overrides(device)
    return next((Found(held[k], k, device) for k in (key, key.alike()) if k in held), None)


@cache
def overrides(device: str) -> dict[Key, Override]:
    """The entries for a device by its name; none where there is no file."""
    file = files(__name__) / f"{slug(device)}.json"
    return from_json(file.read_text()) if file.is_file() else {}
