"""The call of a kernel: one custom call, whose target depends on the kind of product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from jaxgemm import wire
from jaxgemm._runtime import GATED_TARGET, GROUPED_GATED_TARGET, GROUPED_TARGET, MANY_TARGET, SCALED_TARGET, TARGET
from jaxgemm.choice.resolve import Choice
from jaxgemm.problem import Problem

#: The size of a workspace is a multiple of so many bytes.
_ALIGNMENT = 256


def call(choice: Choice, problem: Problem, shape: tuple[int, ...], operands: Sequence[jax.Array]) -> jax.Array:
    """The result of the problem, of this shape, by the chosen kernel.

    Operands are a, b[, b_up][, sizes, offset][, c][, bias][, a_scale][, b_scale].
    """
    assert choice.kernel is not None
    targets = (GROUPED_TARGET, GROUPED_GATED_TARGET) if problem.groups else (TARGET, GATED_TARGET)
    attributes = wire.attributes(choice.kernel.name, choice.config, replace(problem, arithmetic=choice.arithmetic))
    target = SCALED_TARGET if problem.scales else targets[problem.gated]
    return _run(target, choice, [shape], problem.dtypes[2], operands, attributes)[0]


def call_list(choice: Choice, problems: Sequence[Problem], operands: Sequence[jax.Array]) -> list[jax.Array]:
    """The results of several problems, of shape (m, n) each, by one call. Operands are all a, then all b."""
    assert choice.kernel is not None
    asked = [replace(problem, arithmetic=choice.arithmetic) for problem in problems]
    attributes = wire.many_attributes(choice.kernel.name, choice.config, asked)
    shapes = [(p.m, p.n) for p in problems]
    return _run(MANY_TARGET, choice, shapes, problems[0].dtypes[2], operands, attributes)


def _run(
    target: str,
    choice: Choice,
    shapes: Sequence[tuple[int, ...]],
    dtype: str,
    operands: Sequence[jax.Array],
    attributes: dict[str, Any],
) -> list[jax.Array]:
    results = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes]
    if choice.workspace:
        results.append(jax.ShapeDtypeStruct((-(-choice.workspace // _ALIGNMENT) * _ALIGNMENT,), jnp.uint8))
    return list(jax.ffi.ffi_call(target, results)(*operands, **attributes))[: len(shapes)]
