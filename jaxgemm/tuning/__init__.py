"""Measured choices that ``auto`` prefers to a model's: one JSON file a device, made by benchmarks/tune.py.

A file holds only the products for which the models were seen to be wrong, so it is short, and reviewed like code.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from jaxgemm import precision as prec
from jaxgemm import wire
from jaxgemm._runtime import ffi
from jaxgemm.dtypes import ELEMENT_TYPES, named
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import configuration, find_kernel
from jaxgemm.problem import Problem, plan
from jaxgemm.roofline import KNOWN_DEVICES

#: Devices of the same chip, with as many multiprocessors at the same clock. Only the memory differs, so what was
#: measured on the other holds where moving the bytes takes this part of the time at most.
SAME_CHIP = {"NVIDIA H100 80GB HBM3": "NVIDIA H200"}
_MEMORY_SHARE = 0.5
_FOLDER = files(__name__)


@dataclass(frozen=True, order=True)
class Key:
    """The products that an entry is for: extents, how the operands lie, and types, whatever the epilogue.

    Attributes:
        m, n, k: extents.
        batch: products in one call.
        layout: which operand is stored transposed, as in "NT".
        a, b, d: element types of the operands and the result.
        arithmetic: one of :data:`jaxgemm.precision.ARITHMETICS`: what an algorithm's name asks for; of other precisions
            "tf32" where that is allowed, else "plain".
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
        operand = named(a)
        tf32 = "tf32" in prec.arithmetics(precision, operand)
        arithmetic = prec.emulated(precision, operand) or ("tf32" if tf32 else "plain")
        return cls(p.m, p.n, p.k, p.batch[0] * p.batch[1], p.layout, a, b, d, arithmetic)

    def alike(self) -> Key | None:
        """The product of the other 16-bit type, if this is of one: it takes the same code and the same time."""
        other = {"bfloat16": "float16", "float16": "bfloat16"}.get(self.a)
        alone = {self.a, self.b, self.d} == {self.a}
        return replace(self, a=other, b=other, d=other) if other and alone else None

    def problem(self) -> Problem:
        """The product, of operands without gaps, with no epilogue and in the plain arithmetic."""
        (m, k), b = (self.m, self.k), self.batch
        lhs = (b, k, m) if self.layout[0] == "T" else (b, m, k)
        rhs = (b, self.n, k) if self.layout[1] == "T" else (b, k, self.n)
        contract = (1 if self.layout[0] == "T" else 2,), (2 if self.layout[1] == "T" else 1,)
        view = plan(lhs, rhs, (contract, ((0,), (0,))))
        types = self.a, self.b, self.d
        return view.problem(types, Epilogue())

    @property
    def bytes(self) -> int:
        """Of both operands and the result, each once."""
        a, b, d = (named(name).itemsize for name in (self.a, self.b, self.d))
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
    """The entries of such a content; ValueError for one that :func:`to_json` does not write or no kernel can run."""
    content = json.loads(text)
    rows = content.get("products") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise ValueError("expected an object with a list of products")
    entries = {}
    for row in rows:
        try:
            key, entry = _entry(row)
        except ValueError as error:
            raise ValueError(f"{error}, in {json.dumps(row)}") from None
        entries[key] = entry
    return entries


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


#: What each field of an entry may be.
_FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("m", "n", "k", "batch"), _count),
    "layout": lambda x: x in ("NN", "NT", "TN", "TT"),
    **dict.fromkeys(("a", "b", "d"), lambda x: isinstance(x, str) and x in ELEMENT_TYPES),
    "arithmetic": lambda x: isinstance(x, str) and x in prec.ARITHMETICS,
    "kernel": lambda x: isinstance(x, str),
    "options": lambda x: isinstance(x, dict) and all(map(_count, x.values())),
    **dict.fromkeys(("us", "instead_us"), _time),
}


def _entry(row: Any) -> tuple[Key, Override]:
    if not isinstance(row, dict) or row.keys() != _FIELDS.keys():
        raise ValueError(f"expected an object of {', '.join(_FIELDS)}")
    if wrong := [name for name, allows in _FIELDS.items() if not allows(row[name])]:
        raise ValueError(f"wrong {', '.join(wrong)}")
    key = Key(**{name: row[name] for name in Key.__dataclass_fields__})
    rest = {name: row[name] for name in Override.__dataclass_fields__}
    entry = Override(**rest | {"options": tuple(row["options"].items())})
    if entry.kernel != "xla" and (why := _refusal(key, entry)):
        raise ValueError(why)
    return key, entry


def _refusal(key: Key, entry: Override) -> str:
    """Why the kernel cannot run the product with operands that are packed and no epilogue; empty if it can."""
    row = find_kernel(entry.kernel)
    config = configuration(row, entry.options)
    if not row.built:
        return ""
    problem = key.problem()
    allowed = key.arithmetic, *{"plain": ("bf16_x6",), "tf32": ("bf16_x3", "plain")}.get(key.arithmetic, ())
    arithmetic = next((x for x in row.arithmetics(problem.dtypes) if x in allowed), key.arithmetic)
    call = wire.attributes(row.name, config, replace(problem, arithmetic=arithmetic))
    why: str = ffi.check(ffi.Call(call, list(problem.dtypes), False), row.min_arch)[0]
    return why


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
    """The entries for a device by its name; none where there is no file, or one that is wrong, of which a warning says.

    What a wrong file says is not trusted in part: all of its products are chosen by the models.
    """
    file = _FOLDER / f"{slug(device)}.json"
    try:
        return from_json(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:
        warnings.warn(f"{file} is passed over, and the cost models choose: {error}", RuntimeWarning, stacklevel=2)
        return {}
