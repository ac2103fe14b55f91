"""What a call says to its kernel, written in one place: ffi/check.h reads it, in the handler and in the binding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxgemm.problem import Matrix, Problem


def attributes(kernel: str, config: tuple[int, ...], problem: Problem) -> dict[str, Any]:
    """The attributes of a call, of the types that XLA hands over as they are.

    Args:
        kernel: a row of the kernel table, by name.
        config: values for the kernel's options, in their order; empty: the kernel's own defaults.
        problem: what is to be computed. Element types are not among the attributes: they are the buffers' own. Nor is
            whether it is gated, for which there is a target of its own. Only a grouped product has groups, and only a
            scaled one scales.
    """
    epilogue, groups = problem.epilogue, problem.groups
    grouped = {"groups": _integers(1 + groups.sums, groups.count, groups.sizes_batched)} if groups else {}
    scaled = {"scales": _integers(*problem.scales)} if problem.scales else {}
    return (
        grouped
        | scaled
        | {
            "kernel": kernel,
            "dims": _integers(problem.m, problem.n, problem.k, *problem.batch),
            "a": _matrix(problem.a),
            "b": _matrix(problem.b),
            "alpha": np.float64(epilogue.alpha),
            "beta": np.float64(epilogue.beta),
            "activation": epilogue.activation or "none",
            "config": _integers(*config),
            "has_bias": bool(epilogue.has_bias),
            "arithmetic": problem.arithmetic,
        }
    )


def many_attributes(kernel: str, config: tuple[int, ...], problems: Sequence[Problem]) -> dict[str, Any]:
    """The same for a call of many products, of one type and with operands that all lie as the first ones do."""
    first = problems[0]
    return {
        "kernel": kernel,
        "dims": _integers(*(n for p in problems for n in (p.m, p.n, p.k))),
        "transposed": _integers(first.a.transposed, first.b.transposed),
        "config": _integers(*config),
        "arithmetic": first.arithmetic,
    }


def _matrix(x: Matrix) -> np.ndarray:
    return _integers(x.transposed, x.ld, *x.batch_stride)


def _integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)
