"""gated_gemm beside what one would write instead, silu(x @ w_gate) * (x @ w_up), on layers of models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import paths
from paths import forms, sets_of_operands

import jaxgemm
from jaxgemm.measure.bench import Bench

SAMPLE = 16  # rows of the result that are compared with float64


@dataclass(frozen=True)
class Layer:
    """x (m, k), and two weights (k, n)."""

    m: int
    n: int
    k: int
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {self.dtype}"

    def inputs(self, seed: int) -> tuple[jax.Array, ...]:
        """Normal numbers, the weights scaled so that products are of x's size."""
        shapes = (self.m, self.k), (self.k, self.n), (self.k, self.n)
        keys = jax.random.split(jax.random.key(seed), 3)
        x, *w = (jax.random.normal(key, s, self.dtype) for key, s in zip(keys, shapes, strict=True))
        return x, *(v * jnp.asarray(self.k**-0.5, self.dtype) for v in w)


#: Prompts, a long sum, a few and single tokens, and a width of no round number.
LAYERS = {
    "gated": (
        Layer(4096, 14336, 4096),
        Layer(4096, 4096, 14336),
        Layer(2048, 11008, 4096),
        Layer(512, 14336, 4096),
        Layer(64, 14336, 4096),
        Layer(16, 14336, 4096),
        Layer(16, 4096, 4096),
        Layer(1, 14336, 4096),
        Layer(512, 6913, 2561),
    )
}
KERNELS = ("auto", "sm90")


def _theirs(x: jax.Array, gate: jax.Array, up: jax.Array) -> jax.Array:
    return jax.nn.silu(jnp.matmul(x, gate)) * jnp.matmul(x, up)


def _error(got: jax.Array, inputs: Sequence[jax.Array]) -> float:
    x, gate, up = (np.asarray(v, np.float64) for v in (inputs[0][:SAMPLE], *inputs[1:]))
    z = x @ gate
    want = z / (1 + np.exp(-z)) * (x @ up)
    return float(np.abs(np.asarray(got[:SAMPLE], np.float64) - want).max() / np.abs(want).max())


def measure(bench: Bench, layer: Layer, kernels: Sequence[str]) -> list[dict[str, Any]]:
    """One row a path, with XLA's faster path's time over this one's."""
    found = forms(bench, kernels, lambda name: partial(jaxgemm.gated_gemm, kernel=name), _theirs)
    moved = jnp.dtype(layer.dtype).itemsize * (layer.m * layer.k + 2 * layer.k * layer.n)
    inputs = [layer.inputs(bench.seed + i) for i in range(sets_of_operands(bench, moved))]
    return paths.measure(bench, str(layer), found, inputs, _error)


COLUMNS = ("m x n x k", *paths.COLUMNS)
cells = paths.cells
