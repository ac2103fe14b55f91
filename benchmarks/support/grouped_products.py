"""Products of groups of rows, and their gradients, beside lax.ragged_dot's and torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import moving
import numpy as np
import paths
import torch_products
from jax import lax
from paths import Function, forms, sets_of_operands

import jaxgemm
from jaxgemm.measure import timing
from jaxgemm.measure.bench import Bench

#: Which axes ``ragged_dot_general`` contracts.
NUMBERS = {
    "forward": lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0]),
    "d lhs": lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0]),
    "d rhs": lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], []),
}
#: Rows, columns and groups of a result that are compared with float64.
SAMPLED = 16
#: The path that reads the rows and the weights of as many groups as have any, and the shape of what it writes.
READ, READ_SHAPE = "reading weights", (512,)


@dataclass(frozen=True)
class Layer:
    """Rows (m, k), each times its group's weights, which are (groups, k, n).

    Attributes:
        form: "forward"; "d lhs", rows (m, n) times the transposed weights; "d rhs", the sums over each group's rows of
            (m, k) and (m, n); or "gated", ``silu(x gate) * (x up)``.
        m: rows of all groups together.
        equal: whether groups are equally large; else they are cut at random.
    """

    form: str
    m: int
    k: int
    n: int
    groups: int
    equal: bool = False
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        size = "equal" if self.equal else "unequal"
        types = "" if self.dtype == "bfloat16" else f", {self.dtype}"
        return f"{self.form} {self.m}x{self.n}x{self.k}, {self.groups} {size} groups{types}"

    @property
    def sizes(self) -> np.ndarray:
        """The sizes of the groups, which have all rows."""
        if self.equal:
            cuts = np.arange(1, self.groups) * self.m // self.groups
        else:
            cuts = np.sort(np.random.default_rng(0).integers(0, self.m + 1, self.groups - 1))
        return np.diff(cuts, prepend=0, append=self.m).astype(np.int32)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Of the operands but sizes."""
        rows, weights, ct = (self.m, self.k), (self.groups, self.k, self.n), (self.m, self.n)
        forms: dict[str, list[tuple[int, ...]]] = {
            "forward": [rows, weights],
            "d lhs": [ct, weights],
            "d rhs": [rows, ct],
            "gated": [rows, weights, weights],
        }
        return forms[self.form]

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.k * self.n * (1 + (self.form == "gated"))

    @property
    def decodes(self) -> bool:
        """Whether reading weights takes most of the time."""
        return self.form in ("forward", "d lhs") and self.m <= self.groups

    def inputs(self, seed: int) -> tuple[jax.Array, ...]:
        """Normal numbers, weights scaled so that products are of the rows' size; then sizes; then, where reading
        weights counts, as many of them as have rows.
        """
        keys = jax.random.split(jax.random.key(seed), len(self.shapes))
        made = [_normal(key, shape, self.dtype) for key, shape in zip(keys, self.shapes, strict=True)]
        scale = jnp.asarray(self.k**-0.5, self.dtype)
        a, b, *up = (x * scale if x.ndim == 3 else x for x in made)
        read = [b[: np.count_nonzero(self.sizes)]] if self.decodes else []
        return a, b, jnp.asarray(self.sizes), *up, *read

    def ours(self, kernel: str) -> Function:
        """The function by a kernel."""
        if self.form == "gated":
            pair = partial(jaxgemm.ragged_gated, activation="silu", kernel=kernel)
            return lambda x, gate, sizes, up: pair(x, gate, up, sizes)
        dot = partial(jaxgemm.ragged_dot_general, kernel=kernel)
        return lambda a, b, sizes, *_: dot(a, b, sizes, NUMBERS[self.form])

    def theirs(self, *operands: jax.Array) -> jax.Array:
        """The same by lax."""
        if self.form == "gated":
            return gated_by(lax.ragged_dot, *operands)
        a, b, sizes = operands[:3]
        return lax.ragged_dot_general(a, b, sizes, NUMBERS[self.form])

    def error(self, got: Any, inputs: Sequence[jax.Array]) -> float | None:
        """Difference from float64 over the largest number, in a sample; None for what is no product."""
        if got.shape == READ_SHAPE:
            return None
        rng = np.random.default_rng(0)
        index, want = (self._sums if self.form == "d rhs" else self._rows)(rng, inputs)
        return float(np.abs(np.asarray(got[index], np.float64) - want).max() / np.abs(want).max())

    def _rows(self, rng: np.random.Generator, inputs: Sequence[jax.Array]) -> tuple[Any, np.ndarray]:
        a, b, sizes, *up = inputs
        rows = rng.choice(self.m, min(self.m, SAMPLED), replace=False)
        owners = np.searchsorted(np.cumsum(np.asarray(sizes)), rows, side="right")
        width = self.shapes[1][1 if self.form == "d lhs" else 2]
        columns = rng.choice(width, min(width, SAMPLED), replace=False)

        def product(weights: jax.Array) -> np.ndarray:
            axis = 1 if self.form == "d lhs" else 2
            w = np.stack([np.asarray(jnp.take(weights[g], columns, axis - 1), np.float64) for g in owners])
            x = np.asarray(a[rows], np.float64)
            found: np.ndarray = np.einsum("rk,rck->rc" if self.form == "d lhs" else "rk,rkc->rc", x, w)
            return found

        want = product(b)
        if self.form == "gated":
            want = want / (1 + np.exp(-want)) * product(up[0])
        return (rows[:, None], columns[None]), want

    def _sums(self, rng: np.random.Generator, inputs: Sequence[jax.Array]) -> tuple[Any, np.ndarray]:
        a, b, sizes, *_ = inputs
        groups = rng.choice(self.groups, min(self.groups, SAMPLED), replace=False)
        k, n = (rng.choice(size, min(size, SAMPLED), replace=False) for size in (self.k, self.n))
        x, y = np.asarray(a[:, k], np.float64), np.asarray(b[:, n], np.float64)
        ends = np.cumsum(np.asarray(sizes))
        parts = [slice(ends[g] - self.sizes[g], ends[g]) for g in groups]
        want = np.stack([x[part].T @ y[part] for part in parts])
        return (groups[:, None, None], k[:, None], n[None]), want


@partial(jax.jit, static_argnums=(1, 2))
def _normal(key: jax.Array, shape: tuple[int, ...], dtype: str) -> jax.Array:
    """Normal numbers; those of weights are made one group after the other, as that takes more memory than they fill."""
    if len(shape) == 2:
        return jax.random.normal(key, shape, dtype)
    found: jax.Array = lax.map(lambda key: jax.random.normal(key, shape[1:], dtype), jax.random.split(key, shape[0]))
    return found


def gated_by(dot: Callable[..., jax.Array], *operands: jax.Array) -> jax.Array:
    """A gated pair as it is written with two products."""
    x, gate, sizes, up = operands
    return jax.nn.silu(dot(x, gate, sizes)) * dot(x, up, sizes)


SIZES = (
    (8192, 4096, 14336, 8),
    (16384, 2048, 16384, 16),
    (8192, 7168, 4096, 64),
    (4096, 2880, 5760, 32),
    (2048, 2048, 1408, 64),
    (512, 4096, 14336, 8),
    (128, 7168, 2048, 256),
    (64, 2048, 1408, 64),
    (8, 4096, 14336, 8),
)
GATED = ((8192, 4096, 14336, 8), (4096, 2880, 2880, 32), (512, 4096, 14336, 8), (8, 4096, 14336, 8))
#: Prompts and decoding, by experts that are few and large and by many, with random sizes, and one of each with equal
#: ones; some in float32.
LAYERS = {
    "grouped": (
        *(Layer(form, *size) for size in SIZES for form in NUMBERS),
        *(Layer(form, *size, equal=True) for size in (SIZES[0], SIZES[-1]) for form in NUMBERS),
        *(Layer("gated", *size) for size in GATED),
    ),
    "grouped_fp32": tuple(Layer(form, *SIZES[i], dtype="float32") for i in (0, 2, 4, -1) for form in NUMBERS),
}
KERNELS = ("auto",)


def measure(bench: Bench, layer: Layer, kernels: Sequence[str]) -> list[dict[str, Any]]:
    """One row a path, with XLA's faster path's time over this one's."""
    moved = jnp.dtype(layer.dtype).itemsize * sum(int(np.prod(shape)) for shape in layer.shapes)
    inputs = [layer.inputs(bench.seed + i) for i in range(sets_of_operands(bench, moved))]
    jax.block_until_ready(inputs)
    found = forms(bench, kernels, layer.ours, layer.theirs)
    if layer.form == "gated":
        found["jaxgemm two products"] = partial(gated_by, jaxgemm.ragged_dot), {}
    others: dict[str, Callable[[], timing.Program]] = {}
    on_gpu = bench.device.platform == "gpu"
    if on_gpu and layer.form in NUMBERS and layer.dtype == "bfloat16" and torch_products.installed():
        others["torch"] = partial(torch_products.grouped, layer.form, inputs)
    if on_gpu and layer.decodes:
        others[READ] = partial(reading, bench.device, inputs[0])
    rows = paths.measure(bench, str(layer), found, inputs, layer.error, others)
    for row in rows:
        row["tflops"] = 1e-6 * layer.flops / row["us"] if row.get("us") and row["path"] != READ else None
    return rows


def reading(device: jax.Device, operands: Sequence[jax.Array]) -> timing.Program:
    """Reads what the last operand holds."""
    move = jax.ffi.ffi_call(moving.ready(device), jax.ShapeDtypeStruct(READ_SHAPE, jnp.uint32))
    program: timing.Program = jax.jit(lambda *given: move(given[0], given[-1])).lower(*operands).compile()
    return program


COLUMNS = ("layer", *paths.COLUMNS, "TFLOP/s")


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    return [*paths.cells(row), "-" if row["tflops"] is None else f"{row['tflops']:.0f}"]
