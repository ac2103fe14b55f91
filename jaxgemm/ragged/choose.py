"""Which kernel computes a grouped product: one of ours in one launch, or XLA's dense products, one for each group."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxgemm import precision as prec
from jaxgemm import rules, xla_hopper
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device, UnsupportedError, find_kernel, kernels
from jaxgemm.problem import Groups, Matrix, Problem
from jaxgemm.ragged import by_xla
from jaxgemm.select import Choice, resolve


def problem(
    lhs: Any,
    rhs: Any,
    sizes: Any,
    *,
    sums: bool,
    transposed: bool,
    held: int,
    out: Any,
    epilogue: Epilogue | None = None,
    gated: bool = False,
) -> Problem:
    """The problem of a grouped product.

    Args:
        lhs, rhs, sizes: anything with a shape and a dtype, as the primitive ``jaxgemm_grouped`` has them.
        sums, transposed, held: as :class:`jaxgemm.ragged.product.Form` has them.
        out: type of the result.
        epilogue: a bias and an activation.
        gated: whether it is a pair of products.
    """
    outer = next((x.shape[0] for x, rank in ((lhs, 2), (rhs, 2 if sums else 3), (sizes, 1)) if len(x.shape) > rank), 1)
    rows, k = lhs.shape[-2:]
    n = rhs.shape[-2 if transposed else -1]
    step = 0 if len(lhs.shape) == 2 else rows * k
    a = Matrix(sums, max(k, 1), (step, 0))
    if sums:
        b = Matrix(False, max(n, 1), (0 if len(rhs.shape) == 2 else rows * n, 0))
    else:
        each = k * n
        b = Matrix(transposed, max(k if transposed else n, 1), (0 if len(rhs.shape) == 3 else held * each, each))
    return Problem(
        m=k if sums else rows,
        n=n,
        k=rows if sums else k,
        batch=(outer, held),
        a=a,
        b=b,
        dtypes=(np.dtype(lhs.dtype).name, np.dtype(rhs.dtype).name, np.dtype(out).name),
        epilogue=epilogue or Epilogue(),
        gated=gated,
        groups=Groups(sums, sizes.shape[-1], len(sizes.shape) > 1),
    )


#: By device and kernel: the microseconds that its call takes beside its launch, and those of XLA's products instead;
#: None: these are not modelled.
Beside = Callable[[Device, str], tuple[float, float | None]]


def choose(
    problem: Problem,
    device: Device,
    *,
    precision: prec.Precision,
    kernel: str,
    batch_invariant: bool = False,
    beside: Beside | None = None,
) -> Choice:
    """The kernel of a grouped product; no kernel where XLA computes dense ones.

    Args:
        problem: what a kernel is asked for.
        device: what it is asked of.
        precision, kernel, batch_invariant: as for ``jaxgemm.ragged_dot``.
        beside: where a kernel's problem is not what XLA would compute; None: it is.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run it, or none can that is batch-invariant.
    """
    if kernel == "xla" and not batch_invariant:
        return Choice(None, (), 0, "XLA's products were asked for by name", rule=rules.BY_NAME.name)
    if kernel == "xla":
        raise UnsupportedError("batch_invariant: XLA's products make no such promise")
    rows = [row for row in kernels() if row.grouped and row.platform == device.platform]
    if kernel != "auto":
        rows = [find_kernel(kernel)]
        if not rows[0].grouped:
            able = ", ".join(row.name for row in kernels() if row.grouped)
            raise UnsupportedError(f"kernel '{kernel}' has no grouped form; {able} has, and 'auto' runs everywhere")
    assert problem.groups is not None
    if 0 in (problem.m, problem.n, problem.k, *problem.batch, problem.groups.count):
        return Choice(None, (), 0, rules.GROUPED_NOTHING.says, rule=rules.GROUPED_NOTHING.name)
    reasons = [] if rows else [f"no kernel for {device.platform} has a grouped form"]
    for row in rows:
        reason = prec.refusal(precision, np.dtype(jnp.dtype(problem.dtypes[0])), row.tf32)
        found = f"kernel '{row.name}': {reason}" if reason else resolve(row.name, (), problem, device)
        if isinstance(found, Choice):
            more, theirs = beside(device, row.name) if beside else (0.0, dense_microseconds(problem, device))
            found = replace(found, contender=row.name, ours=more + found.considered[0].microseconds, theirs=theirs)
            return _weighed(found, by_name=kernel != "auto", batch_invariant=batch_invariant)
        reasons.append(found)
    if kernel != "auto" or batch_invariant:
        raise UnsupportedError(("batch_invariant: " if batch_invariant else "") + "; ".join(reasons))
    rule = rules.GROUPED_MISSING if not rows else rules.UNFIT
    return Choice(None, (), 0, "; ".join(reasons), rule=rule.name)


def _weighed(found: Choice, *, by_name: bool, batch_invariant: bool) -> Choice:
    """A kernel that can run the problem, or XLA where that should be faster."""
    ours, theirs = found.ours, found.theirs
    assert ours is not None
    if by_name:
        return replace(found, rule=rules.BY_NAME.name, why=rules.BY_NAME.says)
    if batch_invariant:  # sums are in one order, whatever the tile
        return replace(found, rule=rules.INVARIANT.name, why="batch-invariant: a row's sums have one order")
    if theirs is None or ours <= theirs:
        expected = "" if theirs is None else f"; dense products should take {theirs:.0f} us"
        return replace(found, rule=rules.GROUPED_ONE_LAUNCH.name, why=f"one launch for all groups{expected}")
    why = f"one launch expects {ours:.0f} us, dense products should take {theirs:.0f}"
    return replace(found, kernel=None, config=(), workspace=0, considered=(), rule=rules.GROUPED_DENSE.name, why=why)


#: Of XLA's products of float32: operations each microsecond, in TF32 (about what benchmarks/results/nvidia-h200/
#: grouped.json has of 8 large groups) and at full precision; and microseconds of all launches of one group.
_TF32_PER_US, _FP32_PER_US = 4e8, 5e7
_GROUP_US = 10.0


def dense_microseconds(problem: Problem, device: Device, *, full: bool = False) -> float | None:
    """What XLA's dense products should take, of all rows by each group's weights; None where that is not modelled.

    ``full``: whether those of float32 are at full precision.
    """
    if problem.dtypes[0] == "float32":
        return _float32_microseconds(problem, device, _FP32_PER_US if full else _TF32_PER_US)
    dense = replace(problem, batch=(problem.batch[0], 1), epilogue=Epilogue(), gated=False, groups=None)
    one = xla_hopper.microseconds(dense)
    return None if one is None else (1 + problem.gated) * math.ceil(problem.batch[1]) * one


def _float32_microseconds(problem: Problem, device: Device, per_us: float) -> float:
    """A batch takes as long as memory or arithmetic; a loop over groups as both, and it copies weights first."""
    outer, groups = problem.batch
    m, n, k = problem.m, problem.n, problem.k
    multiply = 2 * m * n * k / per_us
    bandwidth = device.bytes_per_us
    assert problem.groups is not None
    if not problem.groups.sums and by_xla.together(outer, math.ceil(groups), m, k, n):
        return _GROUP_US + outer * groups * max(multiply, 4 * (2 * m * k + k * n + 2 * m * n) / bandwidth)
    copies = 4 * (m * k + 3 * k * n + 3 * m * n) / bandwidth
    return groups * (_GROUP_US + outer * (multiply + copies))
