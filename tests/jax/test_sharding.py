"""Products whose operands XLA spreads over devices: right, and with no more communication than jnp's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_close, assert_no_more, mesh, put, traffic

import jaxgemm
from jaxgemm.choice import xla_times

Product = Callable[..., jax.Array]


def ours(kernel: str) -> Product:
    return lambda *args, **kwargs: jaxgemm.gemm(*args, **kwargs, kernel=kernel)


def theirs(a, b, c=None, *, alpha=1.0, beta=1.0, bias=None, activation=None, transpose_b=False):
    z = alpha * jnp.matmul(a, b.mT if transpose_b else b)
    z = z if c is None else z + beta * c
    z = z if bias is None else z + bias
    return z if activation is None else {"gelu": jax.nn.gelu, "tanh": jnp.tanh}[activation](z)


@dataclass(frozen=True)
class Case:
    """A program over a product, with the shapes and shardings of its operands.

    Attributes:
        program: takes the product, gives the function of the operands.
        shapes, specs: of the operands.
        out: sharding that the result is asked for in; None: whatever comes out.
        collectives: exactly these, where that is a promise of its own.
    """

    program: Callable[[Product], Callable[..., Any]]
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[P, ...]
    out: P | None = None
    collectives: dict[str, int] | None = None


def _plain(product: Product) -> Callable[..., Any]:
    return product


def _bias(product: Product) -> Callable[..., Any]:
    return lambda a, b, bias: product(a, b, bias=bias, activation="gelu")


def _everything(product: Product) -> Callable[..., Any]:
    return lambda a, b, c, bias: product(a, b, c, alpha=0.5, beta=-2.0, bias=bias, activation="tanh")


def _transposed(product: Product) -> Callable[..., Any]:
    return lambda a, b: product(a, b, transpose_b=True)


def _vmap(product: Product) -> Callable[..., Any]:
    return jax.vmap(product, in_axes=(0, None))


def _vmap_both(product: Product) -> Callable[..., Any]:
    return jax.vmap(lambda a, b, c: product(a, b, c, activation="tanh"))


def _mlp(product: Product) -> Callable[..., Any]:
    def loss(x, up, down):
        # Squares: a sum whose terms cancel has an error that is large beside itself.
        return jnp.sum(product(product(x, up, activation="gelu"), down) ** 2)

    return jax.value_and_grad(loss, argnums=(0, 1, 2))


def _layers(product: Product) -> Callable[..., Any]:
    def loss(x, stack):
        return jnp.sum(lax.scan(lambda x, w: (product(x, w, activation="tanh"), None), x, stack)[0] ** 2)

    return jax.grad(loss, argnums=1)


A, B = (64, 48), (48, 32)
MLP = ((64, 32), (32, 128), (128, 32))
NONE: dict[str, int] = {}

CASES = {
    "data parallel": Case(_plain, (A, B), (P("x"), P()), collectives=NONE),
    "columns": Case(_plain, (A, B), (P(), P(None, "x")), collectives=NONE),
    "columns of a transposed operand": Case(_transposed, (A, B[::-1]), (P(), P("x")), collectives=NONE),
    "rows and columns": Case(_plain, (A, B), (P("x"), P(None, "y")), collectives=NONE),
    "contracted": Case(_plain, (A, B), (P(None, "x"), P("x")), collectives={"all-reduce": 1}),
    "contracted over two axes": Case(
        _plain, (A, B), (P(None, ("x", "y")), P(("x", "y"))), collectives={"all-reduce": 1}
    ),
    "contracted in two dimensions": Case(_plain, (A, B), (P("x", "y"), P("y")), collectives={"all-reduce": 1}),
    "contracted, columns as well": Case(_plain, (A, B), (P(None, "x"), P("x", "y")), collectives={"all-reduce": 1}),
    "contracted and scattered": Case(_plain, (A, B), (P(None, "x"), P("x")), out=P("x")),
    "contracted and scattered along columns": Case(_plain, (A, B), (P(None, "x"), P("x")), out=P(None, "x")),
    "contracted, one operand whole": Case(_plain, (A, B), (P(None, "x"), P())),
    "weights sharded along k, by the batch's axis": Case(_plain, (A, B), (P("x"), P("x"))),
    "weights sharded along n, by the batch's axis": Case(_plain, (A, B), (P("x"), P(None, "x"))),
    "weights sharded along both": Case(_plain, (A, B), (P("x"), P("x", "y"))),
    "contracted against columns": Case(_plain, (A, B), (P(None, "x"), P(None, "x"))),
    "result asked for in other parts": Case(_plain, (A, B), (P("x"), P()), out=P(None, "y")),
    "experts": Case(_plain, ((8, 16, 12), (8, 12, 20)), (P("x"), P("x")), collectives=NONE),
    "experts, contracted": Case(
        _plain, ((8, 16, 12), (8, 12, 20)), (P("x", None, "y"), P("x", "y")), collectives={"all-reduce": 1}
    ),
    "batch": Case(_plain, ((8, 16, 12), (12, 20)), (P("x"), P(None, "y")), collectives=NONE),
    "sequence": Case(_plain, ((4, 16, 12), (12, 20)), (P("y", "x"), P()), collectives=NONE),
    "bias and gelu": Case(_bias, (A, B, (32,)), (P("x"), P(None, "y"), P("y")), collectives=NONE),
    "bias and gelu, bias whole": Case(_bias, (A, B, (32,)), (P("x"), P(None, "y"), P())),
    "contracted, bias and gelu": Case(_bias, (A, B, (32,)), (P(None, "x"), P("x"), P()), collectives={"all-reduce": 1}),
    "epilogue": Case(_everything, (A, B, (64, 32), (32,)), (P("x"), P(None, "y"), P("x", "y"), P("y"))),
    "contracted, epilogue": Case(_everything, (A, B, (64, 32), (32,)), (P("y", "x"), P("x"), P("y"), P())),
    "contracted and scattered, epilogue": Case(
        _everything, (A, B, (64, 32), (32,)), (P(None, "x"), P("x"), P("x"), P()), out=P("x")
    ),
    "vmap": Case(_vmap, ((8, 6, 12), (12, 20)), (P("x"), P(None, "y")), collectives=NONE),
    "vmap, contracted": Case(_vmap, ((8, 6, 12), (12, 20)), (P("x", None, "y"), P("y")), collectives={"all-reduce": 1}),
    "vmap of everything": Case(_vmap_both, ((8, 6, 12), (8, 12, 20), (8, 6, 20)), (P("x"), P("x"), P("x"))),
    "training, data parallel": Case(_mlp, MLP, (P("x"), P(), P())),
    "training, tensor parallel": Case(_mlp, MLP, (P(), P(None, "x"), P("x"))),
    "training, both": Case(_mlp, MLP, (P("x"), P(None, "y"), P("y"))),
    "training, weights sharded by the batch's axis": Case(_mlp, MLP, (P("x"), P("x"), P(None, "x"))),
    "training, experts": Case(_mlp, ((8, 12, 16), (8, 16, 32), (8, 32, 16)), (P("x"), P("x", None, "y"), P("x", "y"))),
    "training, layers": Case(_layers, ((16, 32), (3, 32, 32)), (P("x"), P(None, None, "y"))),
}


def _operands(case: Case, rng) -> list[np.ndarray]:
    return [rng.standard_normal(shape).astype(np.float32) for shape in case.shapes]


def _jit(case: Case, product: Product, on) -> Any:
    out = None if case.out is None else NamedSharding(on, case.out)
    return jax.jit(case.program(product), out_shardings=out)


@pytest.mark.parametrize("name", CASES)
def test_program(name, rng):
    case, on = CASES[name], mesh()
    operands = _operands(case, rng)
    sharded = [put(x, on, spec) for x, spec in zip(operands, case.specs, strict=True)]
    program = _jit(case, ours("host"), on)
    got = program(*sharded)
    assert_close(got, case.program(theirs)(*(array(x, np.float64) for x in operands)))
    if case.out is not None:
        assert got.sharding.is_equivalent_to(NamedSharding(on, case.out), got.ndim)
    sent = traffic(program, *sharded)
    assert_no_more(sent, traffic(_jit(case, theirs, on), *sharded))
    if case.collectives is not None:
        assert sent.calls == case.collectives


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "name", ["data parallel", "contracted", "contracted, bias and gelu", "vmap, contracted", "training, both"]
)
def test_auto_is_what_jnp_is(name, dtype, rng):
    """In the bytes that are sent, too: what stands between a product and its epilogue is no wider than in jnp."""
    case, on = CASES[name], mesh()
    operands = [array(x, dtype) for x in _operands(case, rng)]
    sharded = [put(x, on, spec) for x, spec in zip(operands, case.specs, strict=True)]
    sent = traffic(_jit(case, ours("auto"), on), *sharded)
    assert sent == traffic(_jit(case, theirs, on), *sharded)


def test_one_mesh_axis(rng):
    """Rows and contracted axis both sharded by all devices, of which the contracted one must give way."""
    on = mesh((8,), ("x",))
    a, b = rng.standard_normal((24, 40)).astype(np.float32), rng.standard_normal((40, 12)).astype(np.float32)
    sharded = put(a, on, P("x")), put(b, on, P("x"))
    program = jax.jit(ours("host"), out_shardings=NamedSharding(on, P("x")))
    assert_close(program(*sharded), a.astype(np.float64) @ b)
    plain = jax.jit(jnp.dot, out_shardings=NamedSharding(on, P("x")))
    assert_no_more(traffic(program, *sharded), traffic(plain, *sharded))


def test_extents_that_do_not_divide(rng):
    """A constraint inside of a program may cut an axis into uneven parts."""
    on = mesh()
    a, b = rng.standard_normal((30, 21)).astype(np.float32), rng.standard_normal((21, 10)).astype(np.float32)

    def program(product):
        def f(a, b):
            a = lax.with_sharding_constraint(a, NamedSharding(on, P("x")))
            b = lax.with_sharding_constraint(b, NamedSharding(on, P("x", "y")))
            return product(a, b, activation="gelu")

        return jax.jit(f)

    assert_close(program(ours("host"))(a, b), theirs(a.astype(np.float64), b, activation="gelu"))
    assert_no_more(traffic(program(ours("host")), a, b), traffic(program(theirs), a, b))


@pytest.mark.parametrize(("rows", "axes"), [(30, "x"), (12, ("x", "y"))])
def test_sums_that_cannot_be_scattered(rows, axes, rng):
    """Rows that the mesh axes do not divide, or of several only the first."""
    on = mesh()
    a, b = rng.standard_normal((rows, 24)).astype(np.float32), rng.standard_normal((24, 10)).astype(np.float32)

    def constrained(x, *spec):
        return lax.with_sharding_constraint(x, NamedSharding(on, P(*spec)))

    def program(product):
        def f(a, b):
            d = constrained(product(constrained(a, None, axes), constrained(b, axes)), axes)
            return constrained(jnp.sin(d))

        return jax.jit(f)

    assert_close(program(ours("host"))(a, b), np.sin(a.astype(np.float64) @ b))
    assert_no_more(traffic(program(ours("host")), a, b), traffic(program(theirs), a, b))


def test_dot_general_in_any_order(rng):
    on = mesh()
    a, b = rng.standard_normal((6, 8, 4, 10)).astype(np.float32), rng.standard_normal((10, 8, 12, 4)).astype(np.float32)
    dims = (((3, 2), (0, 3)), ((1,), (1,)))
    sharded = put(a, on, P(None, "x", "y")), put(b, on, P(None, "x", None, "y"))
    program = jax.jit(lambda a, b: jaxgemm.dot_general(a, b, dims, kernel="host"))
    assert_close(program(*sharded), lax.dot_general(*(array(x, np.float64) for x in (a, b)), dims))
    assert_no_more(traffic(program, *sharded), traffic(lambda a, b: lax.dot_general(a, b, dims), *sharded))


def test_narrow_types_travel_narrow(rng):
    """Partial sums of 16-bit products are sent as the result's type, as jnp's are.

    XLA widens bfloat16 on the CPU, so float16 is what shows it.
    """
    on = mesh()
    a, b = (array(rng.standard_normal(s), np.float16) for s in (A, B))
    sharded = put(a, on, P(None, "x")), put(b, on, P("x"))
    program = jax.jit(ours("host"))
    assert_close(program(*sharded), jnp.dot(a.astype(jnp.float64), b.astype(jnp.float64)), rtol=2e-3)
    sent = traffic(program, *sharded)
    assert_no_more(sent, traffic(jnp.dot, *sharded))
    assert 2 * sent.total == traffic(program, *(x.astype(jnp.float32) for x in sharded)).total


def test_eager(rng):
    on = mesh()
    a, b = (rng.standard_normal(s).astype(np.float32) for s in (A, B))
    sharded = put(a, on, P("x")), put(b, on, P(None, "y"))
    got = jaxgemm.gemm(*sharded, kernel="host")
    assert_close(got, a.astype(np.float64) @ b)
    assert traffic(lambda a, b: jaxgemm.gemm(a, b, kernel="host"), *sharded).calls == NONE
    assert got.sharding.is_equivalent_to(NamedSharding(on, P("x", "y")), 2)


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_operands_that_are_not_placed(types, rng):
    """Where a mesh is set, a program of such operands has its devices, but no mesh that says how they are divided."""
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((8, 6), (2, 6, 5)))
    sizes = np.array([3, 4], np.int32)
    want = x @ w[0], jaxgemm.ragged_dot(x, w, sizes)
    with jax.set_mesh(mesh(types=types)):
        ours = jax.jit(lambda x, w, s: (jaxgemm.gemm(x, w[0], kernel="host"), jaxgemm.ragged_dot(x, w, s)))
        assert_close(ours(x, w, sizes), want)


@pytest.mark.parametrize("most", [0, 1 << 24], ids=["loop", "batch"])
def test_a_mesh_of_explicit_axes_around_what_xla_divides(most, monkeypatch, rng):
    """What ``auto_axes`` is given, and rows that are not placed beside sizes that are, with their gradients."""
    monkeypatch.setattr(xla_times, "_MOST_COPIES", most)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((8, 6), (2, 6, 12)))
    sizes = np.array([3, 4], np.int32)

    def products(x, w, sizes):
        dense = jaxgemm.gemm(x, w[0], activation="gelu", kernel="host")
        return jaxgemm.ragged_dot(x, w, sizes), jaxgemm.ragged_gated(x, w, w, sizes), dense

    def total(function, x, w, sizes):
        return sum(jnp.sum(jnp.sin(z)) for z in function(x, w, sizes))

    want = products(x, w, sizes), jax.grad(partial(total, products), (0, 1))(x, w, sizes)
    on = mesh(types="Explicit")
    with jax.set_mesh(on):
        divided = jax.sharding.auto_axes(products, out_sharding=P("y"))
        for function, *given in (
            (divided, put(x, on, P("y")), put(w, on, P(None, None, "x")), put(sizes, on, P())),
            (products, x, w, put(sizes, on, P())),
        ):
            got = jax.jit(function)(*given), jax.jit(jax.grad(partial(total, function), (0, 1)))(*given)
            jax.tree.map(assert_close, got, want)
