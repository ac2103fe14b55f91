"""Eight CPU devices, and what a program on them sends.

Importing this asks for the devices, which must happen before anything starts JAX's CPU backend.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

COUNT = 8

with contextlib.suppress(RuntimeError):  # started already: perhaps with as many
    jax.config.update("jax_num_cpu_devices", COUNT)


def mesh(shape: tuple[int, ...] = (4, 2), names: tuple[str, ...] = ("x", "y"), types: str = "Auto") -> Mesh:
    """A mesh of CPU devices; ``types`` is "Auto" or "Explicit"."""
    devices = jax.devices("cpu")
    assert len(devices) >= COUNT, (
        "JAX's CPU backend was started with fewer devices before tests/support/meshes.py was imported"
    )
    axis_types = (getattr(AxisType, types),) * len(names)
    return jax.make_mesh(shape, names, axis_types=axis_types, devices=devices[: math.prod(shape)])


def put(x: Any, on: Mesh, spec: PartitionSpec) -> jax.Array:
    return jax.device_put(x, NamedSharding(on, spec))


KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
_BITS = {"pred": 8, "s8": 8, "u8": 8, "bf16": 16, "f16": 16, "s32": 32, "u32": 32, "f32": 32, "s64": 64, "f64": 64}
_CALL = re.compile(rf"= (?P<shape>\(.*?\)|\S+) (?P<kind>{'|'.join(KINDS)})(?P<start>-start)?\((?P<rest>.*)$", re.M)


@dataclass
class Traffic:
    """What each device of a compiled program receives.

    Attributes:
        calls: collectives by kind.
        received: bytes by kind, as a ring exchanges them.
    """

    calls: Counter[str] = field(default_factory=Counter)
    received: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.received.values())


def _bytes(shape: str) -> int:
    parts = re.findall(r"([a-z]+\d*)\[([\d,]*)\]", shape)
    return sum(_BITS[kind] // 8 * math.prod(int(n) for n in extents.split(",") if n) for kind, extents in parts)


def _group_size(rest: str) -> int:
    """How many devices take part in one collective together."""
    if iota := re.search(r"replica_groups=\[(\d+),(\d+)\]", rest):
        return int(iota[2])
    if listed := re.search(r"replica_groups=\{\{([\d,]*)\}", rest):
        return len(listed[1].split(","))
    if named := re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\S+)? \{(.*?)\}", rest):
        extents = dict(re.findall(r"'(\w+)'=(\d+)", named[1]))
        # An axis may be taken in part: 'axis':(offset)extent.
        parts = re.findall(r"'(\w+)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or extents[axis]) for axis, part in parts)
    if "replica_groups={}" in rest:
        return COUNT
    raise AssertionError(f"a collective without groups: {rest[:200]}")


def traffic(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Traffic:
    """The collectives in the compiled HLO of a function (or of what ``jax.jit`` has made of it)."""
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    text = jitted.lower(*args, **kwargs).compile().as_text()
    out = Traffic()
    for call in _CALL.finditer(text):
        assert not call["start"], "asynchronous collectives are counted for no backend yet"
        kind, size = call["kind"], _bytes(call["shape"])
        devices = 2 if kind == "collective-permute" else _group_size(call["rest"])
        share = {
            "all-gather": (devices - 1) / devices,
            "all-reduce": 2 * (devices - 1) / devices,
            "reduce-scatter": devices - 1,  # the shape is that of one part
            "all-to-all": (devices - 1) / devices,
            "collective-permute": 1,
        }[kind]
        out.calls[kind] += 1
        out.received[kind] += round(share * size)
    return out


def assert_no_more(ours: Traffic, theirs: Traffic) -> None:
    """No more bytes, and nothing is gathered where the other gathers nothing."""
    assert ours.total <= theirs.total, (ours, theirs)
    assert theirs.calls["all-gather"] or not ours.calls["all-gather"], (ours, theirs)


def assert_close(got: Any, expected: Any, rtol: float = 2e-5) -> None:
    """Trees of arrays agree, each within ``rtol`` of its largest element."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        y = np.asarray(y, np.float64)
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=rtol, atol=rtol * np.abs(y).max(initial=0))
