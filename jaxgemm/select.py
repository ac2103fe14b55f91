"""Which kernel runs a problem: a pure function of the problem, its precision and the device.

``auto`` takes one of our kernels where these were measured against XLA's own product (benchmarks/results): the
one whose cost model expects the least time, or what jaxgemm/tuning holds for this very product on this device.
Everything else goes to XLA, with the reason.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgemm import precision as prec
from jaxgemm import tuning, wire
from jaxgemm._runtime import ffi
from jaxgemm.dtypes import ELEMENT_TYPES
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device, Kernel, UnsupportedError, find_kernel, kernels
from jaxgemm.problem import Problem
from jaxgemm.xla_hopper import better_left, unaligned, unaligned_microseconds

#: The largest workspace a kernel may ask XLA for, in bytes.
MAX_WORKSPACE = 1 << 30
#: How many of a kernel's configurations a choice remembers for ``explain``.
SHOWN = 4
#: Kernels for batch-invariant products, in order of preference: the fastest for their types first.
INVARIANT = ("sm90", "sm80", "shared_pipeline", "register_blocked", "host")
#: The number of rows that a batch-invariant product's configuration is chosen for, whatever its own.
INVARIANT_ROWS = 256


@dataclass(frozen=True)
class Candidate:
    """A value for each option of a kernel, and the device time in microseconds that its cost model expects."""

    config: tuple[int, ...]
    microseconds: float


@dataclass(frozen=True)
class Choice:
    """What runs a problem.

    Attributes:
        kernel: a row of the table, or None for XLA's own product.
        config: values for the kernel's options, in their order; empty: the kernel's own defaults.
        workspace: bytes of scratch memory that the call asks XLA for.
        why: one sentence.
        considered: configurations of the kernel, best first by its cost model, the chosen one among them.
    """

    kernel: Kernel | None
    config: tuple[int, ...]
    workspace: int
    why: str
    considered: tuple[Candidate, ...] = ()


def check(kernel: Kernel, config: tuple[int, ...], problem: Problem, device: Device) -> tuple[str, int]:
    """(why the kernel cannot run the problem, or "", and its workspace bytes), by the compiled constraints."""
    if kernel.platform != device.platform:
        return f"kernel '{kernel.name}' runs on {kernel.platform}, the program is for {device.platform}", 0
    if any(name not in ELEMENT_TYPES for name in problem.dtypes):
        a, b, d = problem.dtypes
        supported = ", ".join(f"{t[0]} x {t[1]} -> {t[2]}" for t in kernel.types)
        return f"kernel '{kernel.name}' got {a} x {b} -> {d}; it supports {supported}", 0
    reason, workspace = ffi.check(_call(kernel, config, problem), device.arch)
    return reason, workspace


def candidates(kernel: Kernel, config: tuple[int, ...], problem: Problem, device: Device) -> list[Candidate]:
    """The kernel's configurations for a problem, best first by its cost model; none if it has no model.

    ``config`` fixes the options that are not 0 in it.
    """
    found = ffi.candidates(_call(kernel, config, problem), device.arch, device.sm_count, device.bandwidth)
    return [Candidate(tuple(values), microseconds) for values, microseconds in found]


def _call(kernel: Kernel, config: tuple[int, ...], problem: Problem) -> Any:
    return ffi.Call(wire.attributes(kernel.name, config, problem), list(problem.dtypes), problem.gated)


def select(
    problem: Problem,
    device: Device,
    *,
    precision: prec.Precision = None,
    kernel: str = "auto",
    options: tuple[tuple[str, int], ...] = (),
    batch_invariant: bool = False,
) -> Choice:
    """The kernel for a problem.

    Args:
        problem: what is to be computed.
        device: where.
        precision: canonical precision (:func:`jaxgemm.precision.canonical`).
        kernel: "auto", "xla", or a name from the table.
        options: (name, value) pairs of the kernel's options.
        batch_invariant: whether the choice must not depend on m or the batch, nor a row's bits on other rows.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run the problem.
    """
    if kernel == "xla":
        return _xla("XLA's product was asked for by name")
    if batch_invariant:
        return _invariant(problem, device, precision, kernel, options)
    if kernel == "auto":
        return _automatic(problem, device, precision)
    row = find_kernel(kernel)
    config = configuration(row, options)
    reason = prec.refusal(precision, np.dtype(jnp.dtype(problem.dtypes[0])), row.tf32)
    if reason:
        reason = f"kernel '{kernel}': {reason}"
    else:
        choice = resolve(kernel, config, problem, device)
        if isinstance(choice, Choice):
            return replace(choice, why="asked for by name")
        reason = choice
    raise UnsupportedError(reason)


def _invariant(
    problem: Problem,
    device: Device,
    precision: prec.Precision,
    kernel: str,
    options: tuple[tuple[str, int], ...],
) -> Choice:
    """The kernel and configuration of the same product with ``INVARIANT_ROWS`` rows, and no batch."""
    a, b = problem.a, problem.b
    stand_in = replace(
        problem,
        m=INVARIANT_ROWS,
        batch=(1, 1),
        a=replace(a, transposed=False, ld=max(problem.k, 1), batch_stride=(0, 0)),
        b=replace(b, batch_stride=(0, 0)),
        epilogue=Epilogue(),
    )
    dtype = np.dtype(jnp.dtype(problem.dtypes[0]))
    reasons = []
    for name in INVARIANT if kernel == "auto" else (kernel,):
        row = find_kernel(name)
        reason = prec.refusal(precision, dtype, row.tf32)
        chosen: Choice | str = f"kernel '{name}': {reason}" if reason else _pinned(row, options, stand_in, device)
        if isinstance(chosen, Choice):
            free = {name for name, value in row.pins.items() if not value} - dict(options).keys()
            config = tuple(0 if name in free else x for name, x in zip(row.options, chosen.config, strict=False))
            found = resolve(row.name, config, problem, device)
            if not isinstance(found, Choice):  # another kernel would be one that follows m
                raise UnsupportedError(f"batch_invariant: {found}")
            why = f"batch-invariant: chosen for {INVARIANT_ROWS} rows, whatever there are"
            return replace(found, why=why, considered=chosen.considered)
        reasons.append(chosen)
    raise UnsupportedError(f"batch_invariant: {'; '.join(reasons)}")


def _pinned(row: Kernel, options: tuple[tuple[str, int], ...], problem: Problem, device: Device) -> Choice | str:
    """The kernel with every option that matters to the order of sums fixed, or why that cannot be."""
    if row.batch_invariant:
        return resolve(row.name, configuration(row, options), problem, device)
    if not row.pins:
        return f"kernel '{row.name}' does not promise that a row's bits are the same for every m"
    given, held = dict(options), {name: value for name, value in row.pins.items() if value}
    for name, value in held.items():
        if given.get(name, 0) not in (0, value):
            return f"option {name} of kernel '{row.name}' must be {value}, got {given[name]}"
    return resolve(row.name, configuration(row, tuple({**given, **held}.items())), problem, device)


def select_gated(problem: Problem, device: Device, *, precision: prec.Precision, kernel: str) -> Choice:
    """The kernel that computes a gated pair of products in one launch; no kernel where they are to be composed.

    Raises:
        UnsupportedError: a kernel asked for by name has a gated form that cannot run this.
    """
    if kernel == "xla":
        return _xla("XLA's products were asked for by name")
    if kernel != "auto" and not find_kernel(kernel).gated:
        return _xla(f"kernel '{kernel}' has no gated form")
    rows = [row for row in kernels() if row.gated and row.platform == device.platform]
    if kernel == "auto" and not rows:
        return _xla(f"no kernel for {device.platform} has a gated form")
    reasons = []
    for row in rows if kernel == "auto" else [find_kernel(kernel)]:
        reason = prec.refusal(precision, np.dtype(jnp.dtype(problem.dtypes[0])), row.tf32)
        found = f"kernel '{row.name}': {reason}" if reason else resolve(row.name, (), problem, device)
        if isinstance(found, Choice):
            if kernel != "auto":
                return replace(found, why="asked for by name")
            composed = _composed(problem, device)
            if _expected(found) <= _SPARED * composed:
                return replace(found, why=f"one launch; two products and what follows should take {composed:.0f} us")
            found = f"one launch expects {_expected(found):.0f} us, two products should take {composed:.0f}"
        elif kernel != "auto":
            raise UnsupportedError(found)
        reasons.append(found)
    return _xla("; ".join(reasons))


#: What may be expected of one launch, by that of two, as it keeps no results between them.
_SPARED = 1.02
#: Of the kernel that follows a gated pair of products: its least time in microseconds, and bytes a microsecond.
_COMBINING = (2.0, 4e6)


def _composed(problem: Problem, device: Device) -> float:
    """Microseconds that a gated pair should take as two products, be they XLA's or ours, and what follows them."""
    a, _, d = problem.dtypes
    single = replace(problem, epilogue=Epilogue(), gated=False)
    tried = [resolve(name, (), single, device) for name in CONTENDERS.get(a, (0, 0, ()))[2]]
    product = min((_expected(found) for found in tried if isinstance(found, Choice)), default=math.inf)
    if unaligned(problem):
        product = min(product, unaligned_microseconds(single))
    least, rate = _COMBINING
    moved = problem.m * problem.n * 3 * np.dtype(jnp.dtype(d)).itemsize  # two products, and what they become
    return 2 * product + least + moved / rate


@lru_cache(maxsize=4096)
def resolve(name: str, config: tuple[int, ...], problem: Problem, device: Device) -> Choice | str:
    """A kernel with what its options leave open filled in by its cost model, or why it cannot run the problem."""
    row = find_kernel(name)
    reason, workspace = check(row, config, problem, device)
    if reason:
        return reason
    considered = tuple(candidates(row, config, problem, device)[:SHOWN])
    if considered:
        config = considered[0].config
        reason, workspace = check(row, config, problem, device)
    if not reason and workspace > MAX_WORKSPACE:
        reason = f"kernel '{row.name}' needs {workspace} bytes of workspace, the limit is {MAX_WORKSPACE}"
    return reason or Choice(row, config, workspace, "", considered)


def configuration(kernel: Kernel, options: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """Option values in the table's order; ValueError for an option the kernel does not have."""
    if not options:
        return ()
    given = dict(options)
    unknown = sorted(set(given) - set(kernel.options))
    if unknown:
        known = ", ".join(kernel.options) or "none"
        raise ValueError(f"kernel '{kernel.name}' has no option {', '.join(unknown)}; its options: {known}")
    return tuple(given.get(name, values[0] if values else 0) for name, values in kernel.options.items())


#: The kernels that ``auto`` chooses from, by operand type, and the architectures for which they were measured: from,
#: up to, kernels. Elsewhere XLA's product is the known quantity.
CONTENDERS: dict[str, tuple[int, int, tuple[str, ...]]] = {
    "bfloat16": (90, 90, ("sm90", "direct")),
    "float16": (90, 90, ("sm90", "direct")),
    "float32": (90, 90, ("simt", "gemv")),
}


def _automatic(problem: Problem, device: Device, precision: prec.Precision) -> Choice:
    """The contender that expects to take the least time, unless a measurement of this very product says otherwise."""
    if device.platform != "cuda":
        return _xla(f"on {device.platform} XLA's own product is the fastest there is")
    dtype = problem.dtypes[0]
    if reason := prec.refusal(precision, np.dtype(jnp.dtype(dtype)), False):
        return _xla(reason)
    if dtype == "float32" and not prec.wants_full_fp32(precision):
        return _xla("fp32 at this precision means tf32 to XLA, and no kernel of ours computes tf32 faster")
    first, last, names = CONTENDERS.get(dtype, (0, 0, ()))
    if not first <= device.arch <= last:
        where = f" on compute capability {device.arch / 10:.1f}" if names else ""
        return _xla(f"no kernel of ours is known to be faster for {dtype}{where}")
    if known := tuning.find(device.name, tuning.Key.of(problem)):
        measured = known.measured
        where = known.device if known.key.dtype == dtype else f"{known.device} for {known.key.dtype}"
        why = f"measured on {where}: {measured.us:.1f} us, otherwise {measured.instead_us:.1f} us"
        if measured.kernel == "xla":
            return _xla(why)
        config = configuration(find_kernel(measured.kernel), measured.options)
        found = resolve(measured.kernel, config, problem, device)
        if isinstance(found, Choice):
            return replace(found, why=why)
    tried = [resolve(name, (), problem, device) for name in names]
    choices = [found for found in tried if isinstance(found, Choice)]
    if not choices:
        return _xla("; ".join(str(reason) for reason in tried))
    best = min(choices, key=_expected)
    if reason := better_left(problem, _expected(best)):
        return _xla(reason)
    return replace(best, why=f"expected to be the fastest for {dtype} here")


def _expected(choice: Choice) -> float:
    return choice.considered[0].microseconds if choice.considered else math.inf


def _xla(why: str) -> Choice:
    return Choice(None, (), 0, why)
