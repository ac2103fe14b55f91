"""What models write around products and with them: several axes at once, heads that lie between, biases, residuals.

Beside each stands what one would write with jnp, as XLA compiles it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import paths
from paths import Function, forms, sets_of_operands

import jaxgemm
from jaxgemm.measure.bench import Bench

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Program:
    """One program of bf16 operands.

    Attributes:
        name: what it is.
        shapes: of the operands.
        ours: takes a kernel's name, gives the function.
        theirs: the same by jnp.
        dtype: of the operands.
        scaled: whether matrices are weights, of a size at which rows keep theirs.
    """

    name: str
    shapes: tuple[Shape, ...]
    ours: Callable[[str], Function]
    theirs: Function
    dtype: str = "bfloat16"
    scaled: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {', '.join('x'.join(map(str, shape)) for shape in self.shapes)}"

    def inputs(self, seed: int) -> tuple[jax.Array, ...]:
        """Normal numbers."""
        keys = jax.random.split(jax.random.key(seed), len(self.shapes))

        def normal(key: jax.Array, shape: Shape) -> jax.Array:
            scale = shape[0] ** -0.5 if self.scaled and len(shape) == 2 else 1.0
            return jax.random.normal(key, shape, self.dtype) * jnp.asarray(scale, self.dtype)

        return tuple(normal(key, shape) for key, shape in zip(keys, self.shapes, strict=True))

    def error(self, got: jax.Array, inputs: Sequence[jax.Array]) -> float:
        """Relative difference from float64, in the Frobenius norm."""
        with jax.enable_x64(True):
            want = np.asarray(jax.jit(self.theirs)(*(x.astype(jnp.float64) for x in inputs)))
        return float(np.linalg.norm(np.asarray(got, np.float64) - want) / np.linalg.norm(want))


def einsum(name: str, equation: str, *shapes: Shape) -> Program:
    """A contraction."""

    def ours(kernel: str) -> Function:
        return partial(jnp.einsum, equation, _dot_general=partial(jaxgemm.dot_general, kernel=kernel))

    return Program(f"{name} {equation}", shapes, ours, partial(jnp.einsum, equation))


def dense(name: str, theirs: Function, extra: dict[str, Shape], m: int, n: int, k: int, **options: Any) -> Program:
    """A product and what follows it; ``extra`` are further operands of gemm, by name."""

    def ours(kernel: str) -> Function:
        return lambda x, w, *rest: jaxgemm.gemm(x, w, kernel=kernel, **dict(zip(extra, rest, strict=True)), **options)

    return Program(name, ((m, k), (k, n), *extra.values()), ours, theirs)


def _biased(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
    return x @ w + bias


def _residual(x: jax.Array, w: jax.Array, c: jax.Array, bias: jax.Array) -> jax.Array:
    return x @ w + c + bias


def _scaled(x: jax.Array, w: jax.Array) -> jax.Array:
    return 0.125 * (x @ w)


def _normed(x: jax.Array) -> jax.Array:
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-5)).astype(x.dtype)


def _decoder(heads: int, x: jax.Array, *weights: jax.Array) -> jax.Array:
    """A transformer's layer, with a gated MLP, and what gives the logits."""
    wq, wk, wv, wo, gate, up, down, embedding = weights
    h = _normed(x)
    q, k, v = ((h @ w).reshape(*h.shape[:2], heads, -1) for w in (wq, wk, wv))
    scores = jnp.einsum("bthk,bshk->bhts", q, k) * q.shape[-1] ** -0.5
    seen = jnp.einsum("bhts,bshk->bthk", jax.nn.softmax(scores, axis=-1), v)
    x = x + seen.reshape(*h.shape[:2], -1) @ wo
    h = _normed(x)
    x = x + (jax.nn.silu(h @ gate) * (h @ up)) @ down
    return _normed(x) @ embedding.T


def decoder(batch: int, tokens: int, width: int, heads: int, hidden: int, words: int) -> Program:
    """The layer as it is, and with its products switched over."""
    theirs = partial(_decoder, heads)
    square, into, out = (width, width), (width, hidden), (hidden, width)
    shapes = (batch, tokens, width), *[square] * 4, into, into, out, (words, width)
    return Program("decoder", shapes, lambda kernel: jaxgemm.override(theirs, kernel=kernel), theirs, scaled=True)


PROGRAMS = {
    "programs": (
        einsum("heads", "btd,dhk->bthk", (4, 1024, 1024), (1024, 16, 64)),
        einsum("scores", "bthk,bshk->bhts", (4, 1024, 16, 64), (4, 1024, 16, 64)),
        einsum("values", "bhts,bshk->bthk", (4, 16, 1024, 1024), (4, 1024, 16, 64)),
        einsum("output", "bthk,hkd->btd", (4, 1024, 16, 64), (16, 64, 1024)),
        einsum("scores", "bthk,bshk->bhts", (2, 512, 32, 128), (2, 512, 32, 128)),
        einsum("scores", "bthk,bshk->bhts", (2, 300, 10, 50), (2, 300, 10, 50)),
        einsum("scores of a token", "bhk,bshk->bhs", (16, 16, 64), (16, 2048, 16, 64)),
        einsum("experts", "ecd,edf->ecf", (8, 512, 1024), (8, 1024, 4096)),
        dense("bias", _biased, {"bias": (4096,)}, 4096, 4096, 4096),
        dense("bias", _biased, {"bias": (8192,)}, 2048, 8192, 8192),
        dense("bias", _biased, {"bias": (4096,)}, 512, 4096, 1024),
        dense("residual and bias", _residual, {"c": (4096, 4096), "bias": (4096,)}, 4096, 4096, 4096),
        dense("residual and bias", _residual, {"c": (1024, 1024), "bias": (1024,)}, 1024, 1024, 4096),
        dense("scaled", _scaled, {}, 4096, 4096, 4096, alpha=0.125),
        decoder(1, 16, 2048, 16, 5504, 32000),
        decoder(1, 512, 2048, 16, 5504, 32000),
        decoder(4, 1000, 2048, 16, 5461, 32003),
    )
}
KERNELS = ("auto", "sm90")


def measure(bench: Bench, program: Program, kernels: Sequence[str]) -> list[dict[str, Any]]:
    """One row a path, with XLA's faster path's time over this one's."""
    found = forms(bench, kernels, program.ours, program.theirs)
    moved = jnp.dtype(program.dtype).itemsize * sum(int(np.prod(shape)) for shape in program.shapes)
    inputs = [program.inputs(bench.seed + i) for i in range(sets_of_operands(bench, moved))]
    return paths.measure(bench, str(program), found, inputs, program.error)


COLUMNS = ("program", *paths.COLUMNS)
cells = paths.cells
