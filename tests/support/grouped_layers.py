"""Grouped products with what follows them: both forms by one signature, in jaxgemm and in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from grouped import by_rows, compiled, owned
from twins import JNP

import jaxgemm


@dataclass(frozen=True)
class Layer:
    """A function of rows, their weights and one operand more, and of sizes.

    Attributes:
        extra: shape of the operand that follows the weights, from theirs: a bias, or weights of the other product.
        ours: (x, w, extra, sizes, **keywords) -> result.
        exact: (x, w, extra, sizes, offset, activation) -> result in float64, differentiable.
        target: what XLA calls where a kernel computes all of it.
    """

    extra: Callable[[int, int, int], tuple[int, ...]]
    ours: Callable[..., jax.Array]
    exact: Callable[..., jax.Array]
    target: str

    def shapes(self, m: int, k: int, n: int, held: int) -> list[tuple[int, ...]]:
        return [(m, k), (held, k, n), self.extra(held, k, n)]


def _fused(x: Any, w: Any, bias: Any, sizes: Any, **keywords: Any) -> jax.Array:
    return jaxgemm.ragged_dot(x, w, sizes, bias=bias, **{"activation": "silu"} | keywords)


def _gated(x: Any, w: Any, up: Any, sizes: Any, **keywords: Any) -> jax.Array:
    return jaxgemm.ragged_gated(x, w, up, sizes, **keywords)


@compiled
def _exact_fused(x: Any, w: Any, bias: Any, sizes: Any, offset: int = 0, activation: str | None = "silu") -> jax.Array:
    z = by_rows(x, w, sizes, offset)
    rows, groups = owned(sizes, x.shape[0], w.shape[0], offset)
    return z.at[rows].set(JNP[activation](z[rows] + jnp.asarray(bias, jnp.float64)[groups]))


@compiled
def _exact_gated(x: Any, w: Any, up: Any, sizes: Any, offset: int = 0, activation: str | None = "silu") -> jax.Array:
    return JNP[activation](by_rows(x, w, sizes, offset)) * by_rows(x, up, sizes, offset)


LAYERS = {
    "fused": Layer(lambda held, _, n: (held, n), _fused, _exact_fused, "jaxgemm_grouped_gemm"),
    "gated": Layer(lambda held, k, n: (held, k, n), _gated, _exact_gated, "jaxgemm_grouped_gated_gemm"),
}

layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


def in_turn(name: str, names: Iterable[str], layer: Layer) -> bool:
    """Whether this layer's gradients are taken in this case: cases take those of one layer and of the other in turn."""
    return [*names].index(name) % 2 == [*LAYERS.values()].index(layer)


def gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """Of a sum of squares, by all three operands."""
    return jax.grad(lambda *args: jnp.sum(function(*args).astype(jnp.float64) ** 2), (0, 1, 2))
