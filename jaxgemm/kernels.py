"""The kernel table as Python sees it, and the device that a program is built for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import NamedTuple

import jax

from jaxgemm import roofline
from jaxgemm._runtime import ffi


class UnsupportedError(ValueError):
    """A kernel asked for by name cannot run the problem; the message says why and what it does support."""


class TypeRule(NamedTuple):
    """Element types that a kernel takes together, and how it multiplies them.

    Attributes:
        a, b, d: of the operands and the result.
        accumulator: of the sums.
        arithmetic: one of :data:`jaxgemm.precision.ARITHMETICS`.
        c, bias: of what is added.
    """

    a: str
    b: str
    d: str
    accumulator: str
    arithmetic: str
    c: str
    bias: str


@dataclass(frozen=True)
class Kernel:
    """One row of the kernel table.

    Attributes:
        name: what ``kernel=`` takes.
        family: the folder of its source: "cpu", "ladder", "simt", ...
        summary: one line on what it is.
        platform: "cpu" or "cuda".
        min_arch: lowest compute capability, times ten; 0 on CPU.
        max_arch: highest, or 0 for no limit.
        rules: the element types it is compiled for.
        options: keyword options of ``gemm`` and the values each takes, the default first; no values: any
            integer of at least 0.
        deterministic: whether every run gives the same bits.
        batch_invariant: whether the bits of a row do not depend on how many rows there are.
        built: whether this build holds its code.
        pins: options and values that make the kernel batch-invariant once all others are fixed; empty: none do. 0 is
            for an option that changes no sum, and is chosen for the problem at hand.
        gated: whether it computes :func:`jaxgemm.gated_gemm`'s pair of products in one launch.
        grouped: whether it computes the products of :func:`jaxgemm.ragged_dot`.
        scaled: whether it computes products of 8 bits with scales.
        many: whether it computes those of :func:`jaxgemm.grouped_gemm` in as few launches as it can.
    """

    name: str
    family: str
    summary: str
    platform: str
    min_arch: int
    max_arch: int
    rules: tuple[TypeRule, ...]
    options: dict[str, tuple[int, ...]]
    deterministic: bool
    batch_invariant: bool
    built: bool
    pins: dict[str, int] = field(default_factory=dict)
    scaled: bool = False
    gated: bool = False
    grouped: bool = False
    many: bool = False

    @cached_property
    def types(self) -> tuple[tuple[str, str, str, str], ...]:
        """The (a, b, d, accumulator) element types it is compiled for."""
        return tuple(dict.fromkeys(rule[:4] for rule in self.rules))

    @property
    def tf32(self) -> bool:
        """Whether fp32 operands are rounded to TF32 (10 bits of fraction) before they are multiplied."""
        return any(rule.arithmetic == "tf32" for rule in self.rules)

    def arithmetics(self, dtypes: Sequence[str]) -> tuple[str, ...]:
        """How it multiplies operands of the first two types; "plain" if it takes no such operands."""
        return tuple(rule.arithmetic for rule in self.rules if rule[:2] == (*dtypes[:2],)) or ("plain",)


@cache
def _table() -> dict[str, Kernel]:
    rows = [row | {"rules": tuple(TypeRule(*rule) for rule in row["rules"])} for row in ffi.kernels()]
    return {row["name"]: Kernel(**row) for row in rows}


def kernels() -> list[Kernel]:
    """Every row of the kernel table, in its order, whether or not this build or machine can run it."""
    return list(_table().values())


def find_kernel(name: str) -> Kernel:
    """The row of that name; ValueError, listing the names there are, if there is none."""
    try:
        return _table()[name]
    except KeyError:
        names = ", ".join(["auto", *_table()])
        raise ValueError(f"kernel: got {name!r}, expected one of {names}") from None


#: Options by names that they do not have any more.
_RENAMED = {("sm90", "group"): "walk_height"}


def configuration(kernel: Kernel, options: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """Option values in the table's order; ValueError for an option the kernel does not have."""
    if not options:
        return ()
    given = dict(options)
    unknown = sorted(set(given) - set(kernel.options))
    for name in unknown:
        if (kernel.name, name) in _RENAMED:
            raise ValueError(f"option {name} of kernel '{kernel.name}' is called {_RENAMED[kernel.name, name]}")
    if unknown:
        known = ", ".join(kernel.options) or "none"
        raise ValueError(f"kernel '{kernel.name}' has no option {', '.join(unknown)}; its options: {known}")
    return tuple(given.get(name, values[0] if values else 0) for name, values in kernel.options.items())


@dataclass(frozen=True)
class Device:
    """What kernel selection knows of a device.

    Attributes:
        platform: "cpu", "cuda", or another JAX platform, which has no kernels.
        name: the device's own name.
        arch: compute capability times ten; 0 where there is none.
        sm_count: streaming multiprocessors; 0 where there are none.
        bandwidth: of a GPU's memory, in bytes per second; 0 where it is not known, and taken to be an H200's.
    """

    platform: str
    name: str
    arch: int
    sm_count: int
    bandwidth: float = 0.0

    @property
    def bytes_per_us(self) -> float:
        """What a GPU's memory reads and writes in a microsecond."""
        return 1e-6 * (self.bandwidth or H200.bandwidth)


CPU = Device("cpu", "cpu", 0, 0)
#: Stands in when a program for CUDA is lowered on a machine that has no such device.
H200 = Device("cuda", "NVIDIA H200", 90, 132, roofline.KNOWN_DEVICES["NVIDIA H200"].bandwidth)


@cache
def device_for(platform: str) -> Device:
    """The device that a program lowered for ``platform`` is built for: the first local one."""
    if platform == "cpu":
        return CPU
    if platform != "cuda":
        return Device(platform, platform, 0, 0)
    try:
        device = jax.local_devices(backend="cuda")[0]
    except RuntimeError:
        return H200
    major, minor = str(device.compute_capability).split(".")
    limits = roofline.attached_device(device.local_hardware_id or 0)
    bandwidth = limits.bandwidth if limits else 0.0
    return Device("cuda", device.device_kind, int(major) * 10 + int(minor), int(device.core_count), bandwidth)


def default_platform() -> str:
    """The platform of JAX's default device, which ``jax.default_device`` sets."""
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    name = str(getattr(default, "platform", default) or jax.default_backend())
    return "cuda" if name == "gpu" else name
