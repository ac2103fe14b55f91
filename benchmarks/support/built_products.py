"""What benchmarks/builds.py times: dense products of shapes.py's suites, gated pairs, groups, and lists of products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import gated_layers
import grouped_products
import jax
import jax.numpy as jnp
import numpy as np
from shapes import SUITES

import jaxgemm

#: Numbers that operands are cut out of, which is quicker than drawing them.
_POOL = 1 << 25
#: The largest operands that are timed, in bytes: both builds' processes keep several sets of them.
_MOST = 7e8
#: By name: the shapes (m, n, k) of a list of products.
LISTS = {
    "8 of 2048^3": ((2048, 2048, 2048),) * 8,
    "32 of 512^3": ((512, 512, 512),) * 32,
    "many widths": tuple((384 + 128 * i, 512 + 64 * i, 1024) for i in range(24)),
    "few rows": tuple((8 + 4 * i, 4096, 4096) for i in range(6)),
    "unaligned results": tuple((333 + 7 * i, 777 - 5 * i, 512) for i in range(40)),
}


@dataclass(frozen=True)
class Timed:
    """A product that builds are compared by.

    Attributes:
        name: what it is called.
        function: the function of its operands that a kernel's name gives.
        operands: their shapes and types.
        sizes: values of integer operands, in their order; all others are random.
    """

    name: str
    function: Callable[[str], Callable[..., Any]]
    operands: tuple[jax.ShapeDtypeStruct, ...]
    sizes: tuple[np.ndarray, ...] = ()

    @property
    def bytes(self) -> int:
        """Of all operands."""
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in self.operands)

    def inputs(self, seed: int) -> tuple[jax.Array, ...]:
        """Operands on the device."""
        sizes = iter(self.sizes)
        integers = [jnp.issubdtype(x.dtype, jnp.integer) for x in self.operands]
        return tuple(
            jnp.asarray(next(sizes)) if integer else _cut(x, 16384 * (seed + i))
            for i, (x, integer) in enumerate(zip(self.operands, integers, strict=True))
        )


@cache
def _pool(dtype: Any) -> np.ndarray:
    numbers: np.ndarray = np.random.default_rng(0).standard_normal(_POOL, np.float32).astype(dtype)
    return numbers


def _cut(x: jax.ShapeDtypeStruct, offset: int) -> jax.Array:
    count = math.prod(x.shape)
    pool = _pool(x.dtype)[offset:]
    found: jax.Array = jax.device_put((pool[:count] if count <= pool.size else np.resize(pool, count)).reshape(x.shape))
    return found


def products(suite: str) -> list[Timed]:
    """Those of a suite of shapes.py, or of "gated", "grouped" or "lists"."""
    if suite == "lists":
        found = [_listed(name, shapes) for name, shapes in LISTS.items()]
    elif suite == "gated":
        found = [_gated(layer) for layer in gated_layers.LAYERS["gated"]]
    elif suite == "grouped":
        found = [_grouped(x) for x in grouped_products.LAYERS["grouped"]]
    else:
        found = [Timed(str(x), _by(x.ours), tuple(x.operands)) for x in SUITES[suite].cases]
    return [x for x in found if x.bytes <= _MOST]


def _by(function: Callable[..., Any], **fixed: Any) -> Callable[[str], Callable[..., Any]]:
    return lambda kernel: partial(function, kernel=kernel, **fixed)


def _shapes(dtype: str, *shapes: Sequence[int]) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(tuple(shape), jnp.dtype(dtype)) for shape in shapes)


def _gated(layer: gated_layers.Layer) -> Timed:
    weights = (layer.k, layer.n)
    return Timed(str(layer), _by(jaxgemm.gated_gemm), _shapes(layer.dtype, (layer.m, layer.k), weights, weights))


def _grouped(layer: grouped_products.Layer) -> Timed:
    a, b, *up = _shapes(layer.dtype, *layer.shapes)
    sizes = jax.ShapeDtypeStruct((layer.groups,), jnp.dtype("int32"))
    return Timed(str(layer), layer.ours, (a, b, sizes, *up), (layer.sizes,))


def _listed(name: str, shapes: Sequence[tuple[int, int, int]]) -> Timed:
    a, b = [(m, k) for m, _, k in shapes], [(k, n) for _, n, k in shapes]

    def of(kernel: str) -> Callable[..., Any]:
        return lambda *x: jaxgemm.grouped_gemm(x[: len(a)], x[len(a) :], kernel=kernel)

    return Timed(name, of, _shapes("bfloat16", *a, *b))
