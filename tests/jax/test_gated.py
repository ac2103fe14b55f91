"""gated_gemm: activation(x w_gate) * (x w_up), under every transformation, and right whatever computes it."""

import re

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads
from jaxprs import equations
from meshes import assert_close, assert_no_more, mesh, put, traffic
from oracle import dtype_of
from pairs import exact
from twins import JNP, assert_same, scalar

import jaxgemm
from jaxgemm.products.dense import gemm_p
from jaxgemm.products.gated import gated_gemm

kernels = pytest.mark.parametrize("kernel", ["auto", "host"])
EVERY = range(3)

#: How far a result may be from the exact one, relative to the largest element: rounding of operands excepted.
EPS = {"float32": 2e-5, "float64": 1e-13, "bfloat16": 2e-2, "float16": 2e-3}


def operands(rng, *, rows=(5,), k=12, n=7, dtype="float64"):
    shapes = (*rows, k), (k, n), (k, n)
    return tuple(array(rng.standard_normal(s) / (1 if i == 0 else k**0.5), dtype) for i, s in enumerate(shapes))


def theirs(activation="silu"):
    return lambda x, gate, up: JNP[activation](jnp.matmul(x, gate)) * jnp.matmul(x, up)


def ours(kernel, activation="silu", **keywords):
    return lambda x, gate, up: gated_gemm(x, gate, up, activation=activation, kernel=kernel, **keywords)


# --- Values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["auto", "xla", "host"])
def test_activations(kernel, rng):
    args = operands(rng)
    names = [None, *cases.ACTIVATIONS]
    every = jax.jit(lambda *x: [ours(kernel, act)(*x) for act in names])(*args)
    for name, got in zip(names, every, strict=True):
        assert_close(got, exact(*args, name), rtol=1e-13)
    assert_close(ours(kernel)(*args), exact(*args), rtol=1e-13)


@kernels
@pytest.mark.parametrize("dtype", EPS)
def test_element_types(kernel, dtype, rng):
    args = operands(rng, rows=(33,), k=70, n=20, dtype=dtype)
    got = jax.jit(ours(kernel))(*args)
    assert got.dtype == dtype_of(dtype)
    assert_close(got, exact(*args), rtol=EPS[dtype])


@kernels
@pytest.mark.parametrize(
    ("dtype", "out"),
    [("bfloat16", "float32"), ("float16", "float32"), ("float32", "bfloat16"), ("float32", "float64")],
)
def test_result_types(kernel, dtype, out, rng):
    args = operands(rng, rows=(33,), k=70, n=20, dtype=dtype)
    if out == "float64" and kernel == "host":  # its sums are in fp32
        with pytest.raises(jaxgemm.UnsupportedError, match="which cannot hold every float64"):
            ours(kernel, out_dtype=out)(*args)
        return
    got = jax.jit(ours(kernel, out_dtype=out))(*args)
    assert got.dtype == dtype_of(out)
    assert_close(got, exact(*args), rtol=EPS[out] if out == "float64" else max(EPS[out], EPS["float32"]))
    grads = jax.jit(jax.grad(lambda *x: jnp.sum(ours(kernel, out_dtype=out)(*x)), EVERY))(*args)
    assert [g.dtype for g in grads] == [dtype_of(dtype)] * 3


def test_it_is_rounded_once(rng):
    """Sums, activation and multiplication are in fp32: a 16-bit result is the fp32 one, rounded."""
    args = operands(rng, rows=(64,), k=96, n=40, dtype="bfloat16")
    wide = gated_gemm(*args, out_dtype=jnp.float32, kernel="host")
    np.testing.assert_array_equal(gated_gemm(*args, kernel="host"), wide.astype(jnp.bfloat16))


def test_the_default_precision_is_that_of_the_call(rng):
    """Not the one where the program is lowered."""
    with jax.default_matmul_precision("highest"):
        (eqn,) = jax.make_jaxpr(gated_gemm)(*operands(rng, dtype="float32")).jaxpr.eqns
    assert eqn.params["precision"] == (lax.Precision.HIGHEST,) * 2


def test_operands_of_different_types_are_promoted(rng):
    x, gate, up = operands(rng)
    got = gated_gemm(x.astype(jnp.bfloat16), gate.astype(jnp.float32), up.astype(jnp.float16))
    assert got.dtype == jnp.float32
    assert gated_gemm(np.asarray(x), np.asarray(gate), up.astype(jnp.float32)).dtype == jnp.float64
    with jax.enable_x64(False):
        assert gated_gemm(np.asarray(x), np.asarray(gate), np.asarray(up)).dtype == jnp.float32


@kernels
def test_leading_dimensions(kernel, rng):
    _, gate, up = operands(rng)
    xs = [array(rng.standard_normal((*rows, 12))) for rows in ((), (1,), (2, 3), (2, 1, 4))]

    def program(f):
        return jax.jit(lambda xs: [(f(x, gate, up), jax.grad(scalar(f), EVERY)(x, gate, up)) for x in xs])(xs)

    got = program(ours(kernel))
    assert_same(got, program(theirs()))
    for (value, _), x in zip(got, xs, strict=True):
        assert_close(value, exact(x, gate, up), rtol=1e-13)


@kernels
def test_empty(kernel):
    """Without a sum both products are 0, and so is the result, whatever the activation of 0 is."""
    given = [
        (jnp.ones((*rows, k)), jnp.ones((k, n)), jnp.ones((k, n)))
        for rows, k, n in (((0,), 12, 7), ((5,), 0, 7), ((5,), 12, 0), ((2, 0), 3, 4), ((0,), 0, 0))
    ]

    def program(given):
        both = [ours(kernel, activation) for activation in ("silu", "sigmoid")]
        return [[(f(*x), jax.grad(lambda *y, f=f: jnp.sum(f(*y)), EVERY)(*x)) for f in both] for x in given]

    for x, results in zip(given, jax.jit(program)(given), strict=True):
        for value, grads in results:
            np.testing.assert_array_equal(value, np.zeros((*x[0].shape[:-1], x[1].shape[1])), strict=True)
            assert [g.shape for g in grads] == [v.shape for v in x]
            assert not any(np.any(g) for g in grads)


@kernels
def test_specials_propagate(kernel, rng):
    x, gate, up = (np.array(v) for v in operands(rng))
    x[2, 3], gate[1, 4], up[5, 6] = np.nan, np.nan, np.inf
    got = np.asarray(ours(kernel)(x, gate, up))
    wrong = np.zeros(got.shape, bool)
    wrong[2], wrong[:, 4], wrong[:, 6] = True, True, True
    np.testing.assert_array_equal(np.isfinite(got), ~wrong)


# --- Transformations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, *cases.ACTIVATIONS])
def test_gradients_are_the_slopes(activation, rng):
    """Against finite differences, to second order, forward and reverse."""
    args = operands(rng, rows=(2,), k=3, n=2)
    check_grads(jax.jit(ours("host", activation)), args, order=2, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4)


TRANSFORMS = {
    "grads": lambda f: lambda *x: [jax.grad(scalar(f), i)(*x) for i in (0, 1, 2, EVERY)],
    "jvp": lambda f: lambda *x: jax.jvp(f, x, jax.tree.map(jnp.cos, x)),
    "jacfwd": lambda f: jax.jacfwd(f, EVERY),
    "hessian": lambda f: jax.hessian(scalar(f), EVERY),
    "linearize": lambda f: lambda *x: jax.linearize(f, *x)[1](*x),
    "scan": lambda f: lambda x, *w: lax.scan(lambda c, _: (c + f(c, *w).sum(), c), x, None, length=3),
    "grad of scan": lambda f: jax.grad(
        lambda x, *w: jnp.sum(lax.scan(lambda c, _: (jnp.sin(c + f(c, *w).sum()), None), x, None, length=3)[0]), EVERY
    ),
    "checkpoint": lambda f: jax.grad(scalar(jax.checkpoint(f)), EVERY),
    "checkpoint, dots saveable": lambda f: jax.grad(
        scalar(jax.checkpoint(f, policy=jaxgemm.checkpoint_policies.dots_saveable)), EVERY
    ),
}


@kernels
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transform(kernel, transform, rng):
    args = operands(rng)
    got, expected = (jax.jit(TRANSFORMS[transform](f))(*args) for f in (ours(kernel), theirs()))
    assert_same(got, expected)


VMAPS = (
    # in_axes of x, w_gate, w_up
    (0, None, None),
    (2, None, None),
    (None, 0, None),
    (None, None, 1),
    (None, 2, 0),
    (0, 0, 0),
    (1, 2, 1),
    (0, 1, None),
)


@kernels
def test_vmap(kernel, rng):
    """Over rows and over weights, with derivatives inside and outside, to either end of the result."""
    args = operands(rng)
    given = [
        [v if i is None else jnp.stack([v, 1 - v, 2 * v], i) for v, i in zip(args, axes, strict=True)] for axes in VMAPS
    ]

    def program(f):
        def mapped(given):
            for i, (axes, x) in enumerate(zip(VMAPS, given, strict=True)):
                yield jax.vmap(f, axes, (0, 1, -1)[i % 3])(*x)
                inside = jax.vmap(jax.grad(scalar(f), EVERY), axes)
                yield inside(*x) if i % 2 else jax.grad(scalar(jax.vmap(f, axes)), EVERY)(*x)

        return jax.jit(lambda given: [*mapped(given)])(given)

    assert_same(program(ours(kernel)), program(theirs()))


def test_nested_vmap(rng):
    x, gate, up = operands(rng, rows=(2, 3, 4))
    ups = jnp.stack([up, -up, up**2])

    def twice(f):
        return jax.jit(jax.vmap(jax.vmap(f, (0, None, 0)), (0, None, None)))(x, gate, ups)

    assert_same(twice(ours("host")), twice(theirs()))


def test_vmap_over_rows_alone_stays_one_product(rng):
    """Weights that are not mapped leave it what it was, with one more axis of x."""
    x, gate, up = operands(rng, rows=(3, 5))
    jaxpr = jax.make_jaxpr(jax.vmap(gated_gemm, (0, None, None)))(x, gate, up)
    assert [eqn.primitive.name for eqn in jaxpr.eqns] == ["jaxgemm_gated"]


def test_derivatives_are_products_of_narrow_types(rng):
    """As in jnp: what is kept for them has the result's type, and so have cotangents."""
    args = operands(rng, dtype="bfloat16")
    gradient = jax.grad(lambda *x: jnp.sum(gated_gemm(*x).astype(jnp.float32)), EVERY)
    products = [eqn for eqn in equations(gradient, *args) if eqn.primitive is gemm_p]
    found = [{v.aval.dtype.name for v in eqn.invars} for eqn in products]
    assert found == [{"bfloat16"}] * 6
    exact = jax.grad(lambda *x: jnp.sum(theirs()(*x)), EVERY)(*(v.astype(jnp.float64) for v in args))
    assert_close(gradient(*args), exact, rtol=5e-2)


def test_abstract_and_ahead_of_time(rng):
    args = operands(rng, dtype="bfloat16")
    structs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in args]
    got = jax.eval_shape(gated_gemm, *structs)
    assert (got.shape, got.dtype) == ((5, 7), jnp.bfloat16)
    compiled = jax.jit(gated_gemm).lower(*structs).compile()
    np.testing.assert_array_equal(compiled(*args), jax.jit(gated_gemm)(*args))


# --- Several devices ------------------------------------------------------------------------------------------

SPECS = {
    "data parallel": (P("x"), P(), P()),
    "columns": (P(), P(None, "x"), P(None, "x")),
    "rows and columns": (P("x"), P(None, "y"), P(None, "y")),
    "contracted": (P(None, "x"), P("x"), P("x")),
    "weights sharded by the batch's axis": (P("x"), P("x"), P("x")),
}


@kernels
@pytest.mark.parametrize("name", SPECS)
def test_sharded(name, kernel, rng):
    args = operands(rng, rows=(16,), k=24, n=8, dtype="float32")
    sharded = [put(v, mesh(), spec) for v, spec in zip(args, SPECS[name], strict=True)]
    program, plain = (
        jax.jit(lambda *x, f=f: (f(*x), jax.grad(scalar(f), EVERY)(*x))) for f in (ours(kernel), theirs())
    )
    got = program(*sharded)
    assert_close(got, plain(*(v.astype(jnp.float64) for v in args)))
    assert_close(got[0], exact(*args))
    assert_no_more(traffic(ours(kernel), *sharded), traffic(theirs(), *sharded))
    assert_no_more(traffic(program, *sharded), traffic(plain, *sharded))


@kernels
def test_sums_of_devices_are_no_wider_than_in_jnp(kernel, rng):
    args = operands(rng, rows=(16,), k=24, n=8, dtype="float16")
    sharded = [put(v, mesh(), spec) for v, spec in zip(args, SPECS["contracted"], strict=True)]
    assert_close(ours(kernel)(*sharded), exact(*args), rtol=EPS["float16"])
    assert_no_more(traffic(ours(kernel), *sharded), traffic(theirs(), *sharded))


@kernels
def test_inside_of_shard_map(kernel, rng):
    args = operands(rng, rows=(16,), k=24, n=8, dtype="float32")

    def program(f):
        specs = P("x"), P(None, "y"), P(None, "y")
        mapped = jax.shard_map(f, mesh=mesh(), in_specs=specs, out_specs=P("x", "y"))
        return jax.jit(jax.value_and_grad(scalar(mapped), EVERY))

    assert_close(program(ours(kernel))(*args), program(theirs())(*(v.astype(jnp.float64) for v in args)))
    assert_no_more(traffic(program(ours(kernel)), *args), traffic(program(theirs()), *args))


@pytest.mark.parametrize("kernel", ["auto", "xla"])
def test_inside_of_shard_map_over_some_axes(kernel, rng):
    args = operands(rng, rows=(16,), k=24, n=8, dtype="float32")
    sharded = [put(v, mesh(), spec) for v, spec in zip(args, (P("x"), P(None, "y"), P(None, "y")), strict=True)]
    specs = P("x"), P(), P()
    mapped = jax.shard_map(ours(kernel), mesh=mesh(), in_specs=specs, out_specs=P("x"), axis_names={"x"})
    assert_close(jax.jit(mapped)(*sharded), exact(*args))
    plain = jax.shard_map(theirs(), mesh=mesh(), in_specs=specs, out_specs=P("x"), axis_names={"x"})
    assert_no_more(traffic(mapped, *sharded), traffic(plain, *sharded))


def test_inside_of_shard_map_over_some_axes_no_kernel_of_ours_runs(rng):
    args = operands(rng, rows=(16,), k=24, n=8, dtype="float32")
    specs = P("x"), P(), P()
    mapped = jax.shard_map(ours("host"), mesh=mesh(), in_specs=specs, out_specs=P("x"), axis_names={"x"})
    with pytest.raises(jaxgemm.UnsupportedError, match="kernel 'host' inside of a shard_map over some of the mesh's"):
        jax.jit(mapped)(*args)


@kernels
@pytest.mark.parametrize("name", ["data parallel", "columns", "rows and columns"])
def test_shardings_that_are_types(name, kernel, rng):
    args = operands(rng, rows=(16,), k=24, n=8, dtype="float32")
    on = mesh(types="Explicit")
    with jax.set_mesh(on):
        sharded = [put(v, on, spec) for v, spec in zip(args, SPECS[name], strict=True)]
        got, expected = (jax.jit(f)(*sharded) for f in (ours(kernel), theirs()))
        assert jax.typeof(got) == jax.typeof(expected)
        assert_close(got, exact(*args))
        gradient, plain = (jax.jit(jax.grad(scalar(f), EVERY)) for f in (ours(kernel), theirs()))
        got, expected = gradient(*sharded), plain(*sharded)
        assert_no_more(traffic(gradient, *sharded), traffic(plain, *sharded))
        assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)
        assert_close(got, expected)


# --- Errors ---------------------------------------------------------------------------------------------------

X, W = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
ALIKE = "gated_gemm: w_gate and w_up must be (k, n) alike, got "

ERRORS = {
    "integers": (
        (X.astype(np.int8), W.astype(np.int8), W.astype(np.int8)),
        {},
        TypeError,
        "gated_gemm: expected floating-point operands, got int8, int8, int8",
    ),
    "complex": (
        (X, W.astype(np.complex64), W),
        {},
        TypeError,
        "gated_gemm: expected floating-point operands, got float32, complex64, float32",
    ),
    "weights of two shapes": ((X, W, W[:, :3]), {}, ValueError, f"{ALIKE}(4, 5) and (4, 3)"),
    "batches of weights": ((X, W[None], W[None]), {}, ValueError, f"{ALIKE}(1, 4, 5) and (1, 4, 5)"),
    "vectors of weights": ((X, W[0], W[0]), {}, ValueError, f"{ALIKE}(5,) and (5,)"),
    "inner dimensions": (
        (X.T, W, W),
        {},
        ValueError,
        "gated_gemm: inner dimensions differ: x has shape (4, 3), the weights (4, 5)",
    ),
    "x is a scalar": (
        (np.float32(1), W, W),
        {},
        ValueError,
        "gated_gemm: inner dimensions differ: x has shape (), the weights (4, 5)",
    ),
    "activation": (
        (X, W, W),
        {"activation": "swish"},
        ValueError,
        f"gated_gemm: activation: got 'swish', expected None or one of {', '.join(cases.ACTIVATIONS)}",
    ),
    "kernel": ((X, W, W), {"kernel": "fastest"}, ValueError, "kernel: got 'fastest', expected one of auto, "),
    "out_dtype of integers": (
        (X, W, W),
        {"out_dtype": int},
        TypeError,
        "out_dtype must be a floating-point type, got int",
    ),
    "out_dtype is no type": ((X, W, W), {"out_dtype": "float31"}, TypeError, "float31"),
    "another platform's": (
        (X, W, W),
        {"kernel": "naive"},
        jaxgemm.UnsupportedError,
        "kernel 'naive' runs on cuda, the ",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_message(name):
    args, keywords, exception, text = ERRORS[name]
    for call in (lambda: gated_gemm(*args, **keywords), lambda: jax.jit(lambda: gated_gemm(*args, **keywords)).lower()):
        with pytest.raises(exception, match=re.escape(text)):
            call()
