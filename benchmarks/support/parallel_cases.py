"""What parallel.py measures: an MLP block (a product, gelu, a product) over devices, and its overlapped products.

- tensor parallel: the hidden axis is sharded, and activations are whole on every device;
- data parallel: tokens are sharded, and weights are whole;
- fully sharded: both are, over the same devices, and the compiler chooses what it gathers;
- sequence parallel: as tensor parallel, with tokens sharded outside of the block, so that an all-gather stands
  before its first product and a reduce-scatter after its second;
- each of those two products with its collective, forward only. What product and collective take by themselves is
  measured as well: it bounds what overlapping them can give.

Blocks run forward and backward. Every case is written with jnp.dot's products and with ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm.measure.bench import parse_kernel

AXIS = "t"
#: The form that others are compared with.
BASE = "jnp.dot"

Function = Callable[..., Any]


@dataclass(frozen=True)
class Form:
    """One way to write a case.

    Attributes:
        name: BASE, or what is ours in it.
        function: of the case's arrays, jitted.
        is_part: does less than the case: a bound on it, not a form of it.
    """

    name: str
    function: Any
    is_part: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether XLA's options for collectives matter to it."""
        return self.name.startswith("overlapped")


@dataclass(frozen=True)
class Case:
    """What is measured, on one mesh.

    Attributes:
        name: as listed above.
        shapes, specs: of its arrays, the first of which has the tokens.
        forms: BASE first.
        exact: the result, of the whole arrays on one device.
        flops: operations of all devices together.
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[P, ...]
    forms: tuple[Form, ...]
    exact: Function
    flops: float


def make(mesh: Mesh, tokens: int, model: int, hidden: int, kernels: Sequence[str]) -> list[Case]:
    """All cases; ``kernels`` as the command line names them."""
    makers = _tensor_parallel, _data_parallel, _fully_sharded, _sequence_parallel, _gathered, _scattered
    return [maker(mesh, tokens, model, hidden, kernels) for maker in makers]


def _products(kernels: Sequence[str]) -> dict[str, Function]:
    out: dict[str, Function] = {BASE: jnp.dot}
    for text in kernels:
        kernel, options = parse_kernel(text)
        out[f"jaxgemm {text}"] = partial(jaxgemm.gemm, kernel=kernel, **options)
    return out


def _overlapped(function: Function, kernels: Sequence[str]) -> dict[str, Function]:
    names = dict.fromkeys(text.partition(":")[0] for text in kernels)
    return {f"overlapped {name}": partial(function, axis_name=AXIS, kernel=name) for name in names}


def _gather(x: jax.Array) -> Any:
    return lax.all_gather(x, AXIS, axis=0, tiled=True)


def _scatter(x: jax.Array) -> Any:
    return lax.psum_scatter(x, AXIS, scatter_dimension=0, tiled=True)


# --- Blocks ---------------------------------------------------------------------------------------------------


def _block(product: Function) -> Function:
    return lambda x, up, down: product(jax.nn.gelu(product(x, up)), down)


def _fused(product: Function) -> Function:
    return lambda x, up, down: product(product(x, up, activation="gelu"), down)


def _exact(x: jax.Array, up: jax.Array, down: jax.Array, _ct: jax.Array) -> jax.Array:
    return jax.nn.gelu(x @ up) @ down


def _blocks(
    name: str, mesh: Mesh, extents: tuple[int, int, int], specs: tuple[P, ...], blocks: dict[str, Function]
) -> Case:
    """Forward and backward of blocks: the result, and gradients sharded as what they are gradients of."""

    def step(block: Function, x: jax.Array, up: jax.Array, down: jax.Array, ct: jax.Array) -> Any:
        y, pull = jax.vjp(block, x, up, down)
        return y, pull(ct)

    x, up, down, y = (NamedSharding(mesh, spec) for spec in specs)
    forms = tuple(
        Form(label, jax.jit(partial(step, block), out_shardings=(y, (x, up, down)))) for label, block in blocks.items()
    )
    tokens, model, hidden = extents
    shapes = (tokens, model), (model, hidden), (hidden, model), (tokens, model)
    return Case(name, shapes, specs, forms, _exact, 12.0 * tokens * model * hidden)


def _plain_blocks(kernels: Sequence[str]) -> dict[str, Function]:
    products = _products(kernels)
    blocks = {name: _block(product) for name, product in products.items()}
    return blocks | {f"{name}, fused gelu": _fused(p) for name, p in products.items() if name != BASE}


def _tensor_parallel(mesh: Mesh, tokens: int, model: int, hidden: int, kernels: Sequence[str]) -> Case:
    specs = P(), P(None, AXIS), P(AXIS), P()
    return _blocks("tensor parallel", mesh, (tokens, model, hidden), specs, _plain_blocks(kernels))


def _data_parallel(mesh: Mesh, tokens: int, model: int, hidden: int, kernels: Sequence[str]) -> Case:
    specs = P(AXIS), P(), P(), P(AXIS)
    return _blocks("data parallel", mesh, (tokens, model, hidden), specs, _plain_blocks(kernels))


def _fully_sharded(mesh: Mesh, tokens: int, model: int, hidden: int, kernels: Sequence[str]) -> Case:
    specs = P(AXIS), P(None, AXIS), P(AXIS), P(AXIS)
    return _blocks("fully sharded", mesh, (tokens, model, hidden), specs, _plain_blocks(kernels))


def _sequence_parallel(mesh: Mesh, tokens: int, model: int, hidden: int, kernels: Sequence[str]) -> Case:
    specs = P(AXIS), P(None, AXIS), P(AXIS), P(AXIS)

    def plain(product: Function) -> Function:
        block = _block(product)
        return lambda x, up, down: _scatter(block(_gather(x), up, down))

    def overlapped(first: Function, second: Function) -> Function:
        return lambda x, up, down: second(jax.nn.gelu(first(x, up)), down)

    bodies = {name: plain(product) for name, product in _products(kernels).items()}
    firsts = _overlapped(jaxgemm.all_gather_matmul, kernels)
    seconds = _overlapped(jaxgemm.matmul_reduce_scatter, kernels)
    bodies |= {name: overlapped(first, seconds[name]) for name, first in firsts.items()}
    blocks = {
        name: jax.shard_map(body, mesh=mesh, in_specs=specs[:3], out_specs=specs[3]) for name, body in bodies.items()
    }
    return _blocks("sequence parallel", mesh, (tokens, model, hidden), specs, blocks)


# --- Products with their collective ---------------------------------------------------------------------------


def _pair(
    name: str,
    mesh: Mesh,
    arrays: Sequence[tuple[tuple[int, ...], P]],
    out: P,
    bodies: dict[str, Function],
    parts: dict[str, tuple[Function, P]],
) -> Case:
    shapes, specs = tuple(shape for shape, _ in arrays), tuple(spec for _, spec in arrays)

    def mapped(body: Function, out: P) -> Function:
        # A gathered array is the same on all devices, which its type does not say.
        return jax.jit(jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False))

    forms = [Form(label, mapped(body, out)) for label, body in bodies.items()]
    forms += [Form(label, mapped(body, spec), is_part=True) for label, (body, spec) in parts.items()]
    flops = 2.0 * shapes[0][0] * shapes[0][1] * shapes[1][1]
    return Case(name, shapes, specs, tuple(forms), lambda x, w, _: x @ w, flops)


def _gathered(mesh: Mesh, tokens: int, model: int, hidden: int, kernels: Sequence[str]) -> Case:
    products = _products(kernels)
    columns = P(None, AXIS)
    bodies: dict[str, Function] = {n: lambda x, w, _, p=p: p(_gather(x), w) for n, p in products.items()}
    for n, ours in _overlapped(jaxgemm.all_gather_matmul, kernels).items():
        bodies[n] = lambda x, w, _, ours=ours: ours(x, w)
    parts: dict[str, tuple[Function, P]] = {
        f"the product alone, {n}": (lambda _, w, whole, p=p: p(whole, w), columns) for n, p in products.items()
    }
    parts["the all-gather alone"] = lambda x, _w, _: _gather(x), P()
    whole = (tokens, model), P()  # what the product alone multiplies
    arrays = ((tokens, model), P(AXIS)), ((model, hidden), columns), whole
    return _pair("all_gather_matmul", mesh, arrays, columns, bodies, parts)


def _scattered(mesh: Mesh, tokens: int, model: int, hidden: int, kernels: Sequence[str]) -> Case:
    products = _products(kernels)
    rows = P(AXIS)
    bodies: dict[str, Function] = {n: lambda x, w, _, p=p: _scatter(p(x, w)) for n, p in products.items()}
    for n, ours in _overlapped(jaxgemm.matmul_reduce_scatter, kernels).items():
        bodies[n] = lambda x, w, _, ours=ours: ours(x, w)
    parts: dict[str, tuple[Function, P]] = {
        f"the product alone, {n}": (lambda x, w, _, p=p: p(x, w), rows) for n, p in products.items()
    }
    parts["the reduce-scatter alone"] = lambda _x, _w, sums: _scatter(sums), rows
    sums = (tokens * mesh.size, model), rows  # what the reduce-scatter alone adds up
    arrays = ((tokens, hidden), P(None, AXIS)), ((hidden, model), rows), sums
    return _pair("matmul_reduce_scatter", mesh, arrays, rows, bodies, parts)
