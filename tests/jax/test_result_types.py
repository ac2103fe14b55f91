"""Results of types that sums are not kept in: wider ones, narrower ones, and booleans.

Wider ones are XLA's, but those of short sums of 8-bit integers, which are tested in test_integers.py.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P
from meshes import mesh

import jaxgemm
from jaxgemm.flax import nnx as our_nnx

MATMUL = (((1,), (0,)), ((), ()))

#: Operand, result, what sums are kept in.
WIDER = (
    ("float32", "float64", "float32"),
    ("bfloat16", "float64", "float32"),
    ("float16", "float64", "float32"),
    ("int8", "int64", "int32"),
    ("uint8", "int64", "int32"),
    ("uint8", "uint64", "int32"),
    ("int8", "float32", "int32"),
    ("uint8", "float32", "int32"),
    ("uint8", "float64", "int32"),
)
#: Operand, result: what one rounding, or wrapping, makes of the sums.
NARROWER = (
    ("float64", "float32"),
    ("float32", "bfloat16"),
    ("float32", "float16"),
    ("bfloat16", "float16"),
    ("int8", "int8"),
    ("int8", "int16"),
    ("uint8", "uint32"),
)


def operands(dtype, rng):
    """Sums that wrap in int32, or that float32 rounds."""
    if jnp.issubdtype(jnp.dtype(dtype), jnp.integer):
        info = jnp.iinfo(dtype)
        extreme = np.full((2, 140001), info.min or info.max)
        return array(extreme, dtype), array(extreme.T, dtype)
    return tuple(array(1 + rng.standard_normal(s) / 64, dtype) for s in ((4, 70), (70, 3)))


def exact(x, y):
    kind = np.int64 if jnp.issubdtype(x.dtype, jnp.integer) else np.float64
    return np.asarray(x).astype(kind) @ np.asarray(y).astype(kind)


def check(got, expected):
    """Equal if integers, else within the result's own rounding of a few sums."""
    if jnp.issubdtype(got.dtype, jnp.integer):
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=1e-13 if got.dtype == np.float64 else 1e-4)


@pytest.mark.parametrize(("dtype", "out", "sums"), WIDER)
def test_wider_by_name_is_refused(dtype, out, sums, rng):
    x, y = operands(dtype, rng)
    calls = [
        partial(jaxgemm.matmul, x, y, preferred_element_type=out),
        partial(jaxgemm.dot_general, x, y, MATMUL, preferred_element_type=out),
    ]
    if np.dtype(out).kind in "iu" or jnp.issubdtype(x.dtype, jnp.floating):
        calls.append(partial(jaxgemm.gemm, x, y, out_dtype=out))
        calls.append(partial(jaxgemm.gemm, x, y, out_dtype=out, bias=array(np.zeros(y.shape[1]), out), alpha=2.0))
        calls.append(partial(jaxgemm.gemm, x, y, out_dtype=out, alpha=array(1, out)))
    most = {"int8": "holds 131071 products", "uint8": "holds 33025 products"}.get(dtype, f"cannot hold every {out}")
    why = f"got {dtype} x {dtype} -> {out}; it supports .*; kernels sum this product in {sums}, which {most}"
    for call in calls:
        for kernel in ("host", "sm90"):
            with pytest.raises(jaxgemm.UnsupportedError, match=why if kernel == "host" else kernel):
                call(kernel=kernel)
        with pytest.raises(jaxgemm.UnsupportedError, match=f"kernels sum this product in {sums}"):
            call(batch_invariant=True)


@pytest.mark.parametrize(("dtype", "out"), [row[:2] for row in WIDER])
@pytest.mark.parametrize("kernel", ["auto", "xla"])
def test_wider_is_xla_s(dtype, out, kernel, rng):
    x, y = operands(dtype, rng)
    ours = jaxgemm.matmul, partial(jaxgemm.dot_general, dimension_numbers=MATMUL)

    @jax.jit
    def products(x, y):
        found = [function(x, y, preferred_element_type=out, kernel=kernel) for function in ours]
        return lax.dot_general(x, y, MATMUL, preferred_element_type=out), *found

    expected, *found = products(x, y)
    check(expected, exact(x, y))
    for got in found:
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    if np.dtype(out).kind not in "iu" and not jnp.issubdtype(x.dtype, jnp.floating):
        return
    # What follows is in the result's type, not in that of sums.
    bias, c = (array(rng.integers(0, 9, s), out) for s in ((y.shape[1],), expected.shape))

    @jax.jit
    def followed(x, y, bias, c, alpha):
        gemm = partial(jaxgemm.gemm, x, y, out_dtype=out, kernel=kernel)
        mapped = jax.vmap(lambda bias: gemm(bias=bias))(bias[None])[0]
        return gemm(bias=bias), mapped, gemm(c=c, alpha=2.0, beta=3.0), gemm(alpha=alpha, bias=bias)

    added, mapped, with_c, doubled = followed(x, y, bias, c, array(2, out))
    check(added, exact(x, y) + np.asarray(bias))
    check(mapped, exact(x, y) + np.asarray(bias))
    check(with_c, 2 * exact(x, y) + 3 * np.asarray(c))
    check(doubled, 2 * exact(x, y) + np.asarray(bias))


def test_wider_in_other_products(rng):
    x, w = operands("float32", rng)
    gated = partial(jaxgemm.gated_gemm, x, w, w, out_dtype=jnp.float64)
    product = exact(x, w)
    np.testing.assert_allclose(jax.jit(gated)(), product / (1 + np.exp(-product)) * product, rtol=1e-13)
    layer = partial(our_nnx.Linear, 70, 3, preferred_element_type=jnp.float64, rngs=nnx.Rngs(0))
    plain = nnx.Linear(70, 3, preferred_element_type=jnp.float64, rngs=nnx.Rngs(0))
    ours = layer()
    np.testing.assert_allclose(*jax.jit(lambda x: (ours(x), plain(x)))(x), rtol=1e-13)
    gather = partial(jaxgemm.all_gather_matmul, axis_name="t", preferred_element_type=jnp.float64)

    def gathered(**how):
        return jax.shard_map(partial(gather, **how), mesh=mesh((2,), ("t",)), in_specs=(P("t"), P()), out_specs=P("t"))

    np.testing.assert_allclose(np.asarray(jax.jit(gathered())(x, w))[: len(x)], product, rtol=1e-13)
    for call in (
        lambda: gated(kernel="host"),
        lambda: layer(kernel="host")(x),
        lambda: gathered(kernel="host")(x, w),
    ):
        with pytest.raises(jaxgemm.UnsupportedError, match="kernels sum this product in float32"):
            call()

    def function(x, w):
        return jnp.matmul(x, w, preferred_element_type=jnp.float64)

    for kernel in ("auto", "host"):
        routed = jaxgemm.override(function, kernel=kernel)
        np.testing.assert_array_equal(*jax.jit(lambda x, w, f=routed: (f(x, w), function(x, w)))(x, w))
    (left,) = jaxgemm.explain(routed, x, w).left
    assert "kernels sum this product in float32" in left.why


def test_wider_derivatives(rng):
    x, w = operands("float32", rng)

    def gradients(matmul):
        def loss(x, w):
            return jnp.sum(jnp.sin(matmul(x, w, preferred_element_type=jnp.float64)))

        return jax.grad(loss, (0, 1))(x, w)

    both = jax.jit(lambda: (gradients(jaxgemm.matmul), gradients(jnp.matmul)))
    for got, expected in zip(*both(), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("dtype", "out"), NARROWER)
def test_narrower_by_name_is_rounded_once(dtype, out, rng):
    x, y = operands(dtype, rng)
    got = jaxgemm.matmul(x, y, preferred_element_type=out, kernel="host")
    assert got.dtype == jnp.dtype(out)
    if jnp.issubdtype(x.dtype, jnp.integer):
        np.testing.assert_array_equal(got, exact(x, y).astype(out))
    else:
        rounding = float(jnp.finfo(out).eps) / 2
        sums = 70 * float(jnp.finfo("float64" if out == "float32" else "float32").eps)
        np.testing.assert_allclose(np.asarray(got, np.float64), exact(x, y), rtol=rounding + sums)


# --- Booleans -------------------------------------------------------------------------------------------------


def booleans(rng, *shape):
    return array(rng.random(shape) < 0.2)


SHAPES = (
    ((5, 7), (7, 6)),
    ((7,), (7, 6)),
    ((5, 7), (7,)),
    ((7,), (7,)),
    ((3, 5, 7), (7, 6)),
    ((2, 1, 5, 7), (3, 7, 6)),
    ((5, 0), (0, 6)),
)


@pytest.mark.parametrize("out", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kernel", ["auto", "xla"])
def test_narrower_than_float64_by_xla(out, kernel, rng):
    """XLA for CUDA compiles no product of float64 into float16."""
    shapes = ((38, 3), (3, 1031)), ((64, 64), (64, 64)), ((1, 20), (20, 1))
    operands = [tuple(array(rng.standard_normal(s)) for s in pair) for pair in shapes]
    calls = (
        partial(jaxgemm.gemm, out_dtype=out, kernel=kernel),
        partial(jaxgemm.dot_general, dimension_numbers=MATMUL, preferred_element_type=out, kernel=kernel),
    )
    eps = float(jnp.finfo(out).eps)
    products = jax.jit(lambda operands: [[call(x, y) for call in calls] for x, y in operands])
    for (x, y), found in zip(operands, products(operands), strict=True):
        for got in found:
            assert got.dtype == out
            np.testing.assert_allclose(np.asarray(got, np.float64), exact(x, y), rtol=eps, atol=eps / 2**10)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_a_product_of_booleans(shapes, rng):
    """Whether any pair is true."""
    a, b = (booleans(rng, *shape) for shape in shapes)
    expected = np.matmul(np.asarray(a, np.int64), np.asarray(b, np.int64)) > 0
    functions = jnp.matmul, jaxgemm.matmul, partial(jaxgemm.matmul, kernel="xla")
    for got in (jaxgemm.matmul(a, b), *jax.jit(lambda a, b: [function(a, b) for function in functions])(a, b)):
        assert got.dtype == jnp.bool_
        np.testing.assert_array_equal(got, expected)
    if a.ndim > 1 and b.ndim > 1:
        both = {"transpose_a": True, "transpose_b": True, "out_dtype": bool}
        plain, turned = jax.jit(lambda a, b: (jaxgemm.gemm(a, b), jaxgemm.gemm(a.mT, b.mT, **both)))(a, b)
        np.testing.assert_array_equal(plain, expected, strict=True)
        np.testing.assert_array_equal(turned, expected, strict=True)


def test_booleans_elsewhere(rng):
    a, b, x = booleans(rng, 5, 7), booleans(rng, 7, 6), array(rng.standard_normal((7, 6)))
    counts = np.asarray(a, np.int64) @ np.asarray(b, np.int64)
    np.testing.assert_array_equal(jaxgemm.dot_general(a, b, MATMUL), counts > 0, strict=True)
    for out in ("int32", "float32"):
        got = jaxgemm.matmul(a, b, preferred_element_type=out)
        np.testing.assert_array_equal(got, jnp.matmul(a, b, preferred_element_type=out), strict=True)
        np.testing.assert_array_equal(got, counts)
    np.testing.assert_allclose(jaxgemm.matmul(a, x), np.asarray(a, np.float64) @ np.asarray(x), rtol=1e-13)
    np.testing.assert_allclose(jaxgemm.gemm(a, x, kernel="host"), np.asarray(a, np.float64) @ np.asarray(x), rtol=1e-13)
    batched = jax.vmap(jaxgemm.gemm, (0, None))(jnp.stack([a, ~a]), b)
    np.testing.assert_array_equal(batched, [counts > 0, np.asarray(~a, np.int64) @ np.asarray(b, np.int64) > 0])


def test_booleans_in_a_program_that_is_differentiated(rng):
    a, b, x = booleans(rng, 5, 7), booleans(rng, 7, 6), array(rng.standard_normal((5, 6)))

    def loss(product, a, x):
        return jnp.sum(jnp.where(product(a > 0, b), x, 0.0))

    numbers = a.astype(jnp.float32)
    got, expected = (jax.grad(partial(loss, f), (0, 1))(numbers, x) for f in (jaxgemm.gemm, jnp.matmul))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize("how", [{"kernel": "host"}, {"batch_invariant": True}])
def test_no_kernel_multiplies_booleans(how):
    a = jnp.ones((4, 4), bool)
    for function in (jaxgemm.matmul, jaxgemm.gemm, partial(jaxgemm.dot_general, dimension_numbers=MATMUL)):
        with pytest.raises(jaxgemm.UnsupportedError, match="got bool x bool -> bool"):
            function(a, a, **how)
