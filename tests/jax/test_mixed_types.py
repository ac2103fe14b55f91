"""dot_general of operands of different types: what lax.dot_general makes of them, and what a kernel by name does."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax import linen as nn
from flax import nnx
from jax import lax

import jaxgemm
from jaxgemm.flax import linen as our_linen
from jaxgemm.flax import nnx as our_nnx
from jaxgemm.products.xla_product import narrow_integers

MATMUL = (((1,), (0,)), ((), ()))
E4, E5 = "float8_e4m3fn", "float8_e5m2"

#: Types that jnp promotes to none.
APART = ((E4, E5), (E5, E4), (E4, "bfloat16"), ("bfloat16", E4), (E5, "float32"), ("bfloat16", "int4"))
#: Those that gemm multiplies as they are.
EIGHTS = APART[:2]
PAIRS = (
    *APART,
    ("int8", "float32"),
    ("float16", "bfloat16"),
    ("bfloat16", "float32"),
    ("float64", "float32"),
    ("int8", "uint8"),
    ("bool", "float32"),
    ("complex64", "float32"),
)


def random(rng, shape, dtype):
    if dtype == "bool":
        return array(rng.integers(0, 2, shape), dtype)
    if jnp.issubdtype(jnp.dtype(dtype), jnp.integer):
        return array(rng.integers(0 if dtype == "uint8" else -7, 7, shape), dtype)
    return array(rng.standard_normal(shape), dtype)


def wide(x):
    return np.asarray(x).astype(np.complex128 if jnp.iscomplexobj(x) else np.float64)


def same(got, expected):
    """The type and the very values of lax's."""
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(wide(x), wide(y)), got, expected)


def near(got, expected, eps):
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(wide(x), wide(y), rtol=eps, atol=4 * eps), got, expected)


def eps_of(*arrays):
    return max(float(jnp.finfo(x.dtype).eps) for x in arrays if jnp.issubdtype(x.dtype, jnp.inexact))


@pytest.mark.parametrize("preferred", [None, "float32"])
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_it_is_what_lax_computes(pair, preferred, rng):
    x, y = random(rng, (5, 16), pair[0]), random(rng, (16, 6), pair[1])
    if pair == ("complex64", "float32") and preferred:
        preferred = "complex128"
    ours, theirs = (
        partial(f, dimension_numbers=MATMUL, preferred_element_type=preferred)
        for f in (jaxgemm.dot_general, lax.dot_general)
    )
    expected, *found = jax.jit(lambda x, y: [f(x, y) for f in (theirs, ours, partial(ours, kernel="xla"))])(x, y)
    for got in (*found, ours(x, y)):
        same(got, expected)
    if jnp.issubdtype(expected.dtype, jnp.inexact):
        # XLA converts operands to the result's type first, so the bound is that of rounding them.
        error = abs(wide(expected) - wide(x) @ wide(y))
        assert (error <= 2 * eps_of(expected) * (abs(wide(x)) @ abs(wide(y)))).all()
    else:
        np.testing.assert_array_equal(expected, (wide(x) @ wide(y)).astype(np.int64).astype(expected.dtype))


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_vmap(pair, rng):
    x, y = random(rng, (3, 5, 16), pair[0]), random(rng, (16, 3, 6), pair[1])

    def mapped(f, x, y):
        every = ((0, 1), (x, y)), ((0, None), (x, y[:, 0])), ((None, 1), (x[0], y))
        return [jax.vmap(partial(f, dimension_numbers=MATMUL), axes)(*args) for axes, args in every]

    got, expected = jax.jit(lambda x, y: [mapped(f, x, y) for f in (jaxgemm.dot_general, lax.dot_general)])(x, y)
    if any(v.dtype.itemsize == 1 and jnp.issubdtype(v.dtype, jnp.floating) for v in (x, y)):
        same(got, expected)  # short sums of these are exact in fp32, in any order
    else:
        near(got, expected, 16 * eps_of(*got, np.ones((), np.float32)))


@pytest.mark.parametrize("preferred", [None, "float32"])
@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair != ("int8", "uint8")], ids="-".join)
def test_derivatives(pair, preferred, rng):
    x, y = random(rng, (5, 16), pair[0]), random(rng, (16, 6), pair[1])
    if pair == ("complex64", "float32") and preferred:
        preferred = "complex128"
    inexact = [i for i, v in enumerate((x, y)) if jnp.issubdtype(v.dtype, jnp.inexact)]

    def derivatives(dot_general):
        def product(*given):
            operands = [x, y]
            for i, value in zip(inexact, given, strict=True):
                operands[i] = value
            return dot_general(*operands, MATMUL, preferred_element_type=preferred)

        def loss(*given):
            return jnp.sum(jnp.real(product(*given)).astype(jnp.float32))

        args = [(x, y)[i] for i in inexact]
        return jax.grad(loss, tuple(range(len(args))))(*args), jax.jvp(product, args, args)

    ours, theirs = jax.jit(lambda: [derivatives(f) for f in (jaxgemm.dot_general, lax.dot_general)])()
    near(ours, theirs, 4 * eps_of(x, y, *jax.tree.leaves(theirs)))


@pytest.mark.parametrize("pair", APART, ids="-".join)
def test_a_kernel_by_name_refuses_what_jnp_does_not_promote(pair, rng):
    x, y = random(rng, (5, 16), pair[0]), random(rng, (16, 6), pair[1])
    for how in ({"kernel": "host"}, {"batch_invariant": True}):
        with pytest.raises(jaxgemm.UnsupportedError, match=f"got {pair[0]} x {pair[1]}") as error:
            jaxgemm.dot_general(x, y, MATMUL, **how)
        assert "it supports float32 x float32 -> float32" in str(error.value)
    for function in (jaxgemm.matmul, jnp.matmul) if pair in EIGHTS else (jaxgemm.matmul, jaxgemm.gemm, jnp.matmul):
        with pytest.raises(jax.dtypes.TypePromotionError):
            function(x, y)


@pytest.mark.parametrize("pair", [*EIGHTS, ("int8", "uint8"), ("uint8", "int8")], ids="-".join)
def test_gemm_takes_two_types_of_8_bits(pair, rng):
    """Into float32, or int32; jnp widens such integers, and takes no two types of such floats."""
    x, y = random(rng, (5, 16), pair[0]), random(rng, (16, 6), pair[1])
    products = jax.jit(
        lambda x, y: [f(x, y) for f in (jaxgemm.gemm, jaxgemm.matmul, jnp.matmul)[: 1 if pair in EIGHTS else 3]]
    )
    got, *rest = products(x, y)
    assert got.dtype == (np.float32 if pair in EIGHTS else np.int32)
    np.testing.assert_allclose(got, wide(x) @ wide(y), rtol=1e-6, atol=1e-5)
    if pair not in EIGHTS:
        same(*rest)


@pytest.mark.parametrize("preferred", [None, "float32", "float64"])
@pytest.mark.parametrize(
    "pair",
    [
        ("int8", "float32"),
        ("float16", "bfloat16"),
        ("bfloat16", "float32"),
        ("float64", "float32"),
    ],
    ids="-".join,
)
def test_a_kernel_by_name_has_them_in_one_type(pair, preferred, rng):
    """Of both operands' values, not of what is left of them in the other's type."""
    x, y = random(rng, (5, 16), pair[0]), random(rng, (16, 6), pair[1])
    if (preferred, pair[0]) == ("float32", "float64"):
        preferred = None
    expected = jax.eval_shape(
        partial(lax.dot_general, dimension_numbers=MATMUL, preferred_element_type=preferred), x, y
    )
    ours = partial(jaxgemm.dot_general, dimension_numbers=MATMUL, preferred_element_type=preferred)
    ways = {"kernel": "host"}, {"batch_invariant": True}
    for got in jax.jit(lambda x, y: [ours(x, y, **how) for how in ways])(x, y):
        assert got.dtype == expected.dtype
        exact = wide(x) @ wide(y)
        sums = 32 * min(eps_of(got), eps_of(np.float32(0)))
        assert (abs(wide(got) - exact) <= eps_of(got) * abs(exact) + sums * (abs(wide(x)) @ abs(wide(y)))).all()


def test_integers_that_the_other_type_cannot_hold():
    x, y = array(np.full((2, 2), 100003), "int32"), array(np.ones((2, 2)), "bfloat16")
    for kernel in ("auto", "host"):
        got = jaxgemm.dot_general(x, y, MATMUL, preferred_element_type=jnp.float32, kernel=kernel)
        np.testing.assert_array_equal(got, np.full((2, 2), 200006.0))


def test_types_that_lax_refuses():
    """With lax's own error."""
    x, y = jnp.ones((2, 2), jnp.complex64), jnp.ones((2, 2), jnp.float32)
    errors = []
    for function in (jaxgemm.dot_general, lax.dot_general):
        with pytest.raises(TypeError) as error:
            function(x, y, MATMUL, preferred_element_type="bfloat16")
        errors.append(str(error.value).splitlines()[0])
    assert errors[0] == errors[1]


def as_they_are(*values, **_):
    return list(values[0]) if isinstance(values[0], tuple) else list(values)


@pytest.mark.parametrize("pair", [*APART, ("bfloat16", "float32")], ids="-".join)
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_layers_pass_them_on(pair, activation, rng):
    x, w = random(rng, (5, 16), pair[0]), random(rng, (16, 6), pair[1])
    out = jax.eval_shape(partial(lax.dot_general, dimension_numbers=MATMUL), x, w)
    bias = random(rng, (6,), out.dtype)
    follow = (lambda v: v) if activation is None else jax.nn.gelu
    variables, pairs = {"params": {"kernel": w, "bias": bias}}, []
    for name, args in (("Dense", (6,)), ("DenseGeneral", (6,))):
        ours = getattr(our_linen, name)(*args, promote_dtype=as_they_are, activation=activation)
        theirs = getattr(nn, name)(*args, promote_dtype=as_they_are)
        pairs.append((partial(ours.apply, variables), partial(theirs.apply, variables)))
    for name, args in (("Linear", (16, 6)), ("LinearGeneral", (16, 6))):
        theirs = getattr(nnx, name)(*args, promote_dtype=as_they_are, rngs=nnx.Rngs(0))
        ours = getattr(our_nnx, name)(*args, promote_dtype=as_they_are, activation=activation, rngs=nnx.Rngs(0))
        for layer in (ours, theirs):
            layer.kernel, layer.bias = nnx.Param(w), nnx.Param(bias)
        pairs.append((ours, theirs))
    for got, expected in jax.jit(lambda x: [(ours(x), follow(theirs(x))) for ours, theirs in pairs])(x):
        near(got, expected, 2 * eps_of(out))
    if pair in APART:
        named = our_linen.Dense(6, promote_dtype=as_they_are, kernel="host")
        with pytest.raises(jaxgemm.UnsupportedError, match=f"got {pair[0]} x {pair[1]}"):
            named.apply(variables, x)


def test_einsum_layers_promote_as_einsum_does(rng):
    for pair in (("bfloat16", "float32"), ("float16", "bfloat16"), ("int8", "bfloat16")):
        x, w = random(rng, (5, 16), pair[0]), random(rng, (16, 6), pair[1])
        layers = [m.Einsum((16, 6), "ab,bc->ac", False, promote_dtype=as_they_are) for m in (our_linen, nn)]
        got, expected = (layer.apply({"params": {"kernel": w}}, x) for layer in layers)
        near(got, expected, 2 * eps_of(expected))
    for pair in APART:
        x, w = random(rng, (5, 16), pair[0]), random(rng, (16, 6), pair[1])
        for layer in layers:
            with pytest.raises(jax.dtypes.TypePromotionError):
                layer.apply({"params": {"kernel": w}}, x)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_override_leaves_them(pair, rng):
    x, y = random(rng, (5, 16), pair[0]), random(rng, (16, 6), pair[1])

    def function(x, y):
        return lax.dot_general(x, y, MATMUL)

    for kernel in ("auto", "host"):
        routed = jaxgemm.override(function, kernel=kernel)
        same(routed(x, y), function(x, y))
        explained = jaxgemm.explain(routed, x, y)
        if narrow_integers(x, y) or (pair in EIGHTS and kernel == "auto"):  # ours to hand to XLA, padded on CUDA
            assert [product.kernel for product in explained.products] == ["xla"]
            continue
        (left,) = explained.left
        if pair in EIGHTS:
            assert left.why.startswith(f"kernel 'host' got {pair[0]} x {pair[1]}")
            continue
        assert left.why == f"no kernel multiplies {pair[0]} by {pair[1]}"


@pytest.mark.parametrize("dtype", [E4, E5])
def test_sums_of_8_bit_floats(dtype, rng):
    """They are in fp32 for whatever is wider than the operands."""
    x, y, bias = random(rng, (5, 64), dtype), random(rng, (64, 6), dtype), random(rng, (6,), "float32")

    @jax.jit
    def products(x, y, bias):
        scaled = jaxgemm.gemm(x, y, bias=bias, alpha=0.5, out_dtype=jnp.float32)
        theirs = lax.dot_general(x, y, MATMUL, preferred_element_type=jnp.float32)
        return scaled, (jaxgemm.gemm(x, y), theirs), (jaxgemm.matmul(x, y), x @ y)

    got, wide_ones, narrow_ones = products(x, y, bias)
    np.testing.assert_allclose(got, 0.5 * (wide(x) @ wide(y)) + wide(bias), rtol=1e-5, atol=1e-4)
    near(*wide_ones, 1e-6)
    same(*narrow_ones)


#: Operands, result: what the gradients' products are of.
GRADIENTS = (
    *((pair, out, out) for pair in ((E4, E4), (E5, E4), (E5, E5)) for out in ("float32", "bfloat16", "float16")),
    ((E4, E5), E5, None),  # a mixed product of 8 bits again
    (("bfloat16", E4), "bfloat16", "bfloat16"),
    ((E5, "float16"), "float16", "float16"),
    ((E5, "float32"), "float32", "float32"),
    (("bfloat16", E5), "float32", "float32"),
)


@pytest.mark.parametrize(("pair", "out", "multiplied"), GRADIENTS, ids=str)
def test_gradients_of_8_bit_floats(pair, out, multiplied, rng):
    """They have the operands' types, and are of products of one type; each is as exact as lax's."""
    x, y, ct = random(rng, (5, 48), pair[0]), random(rng, (48, 7), pair[1]), random(rng, (5, 7), out)

    def gradients(dot_general, x, y, ct):
        given = {"dimension_numbers": MATMUL, "preferred_element_type": out}
        return jax.vjp(partial(dot_general, **given), x, y)[1](ct)

    ours, theirs = jax.jit(lambda *args: [gradients(f, *args) for f in (jaxgemm.dot_general, lax.dot_general)])(
        x, y, ct
    )
    exact = wide(ct) @ wide(y).T, wide(x).T @ wide(ct)
    sums = abs(wide(ct)) @ abs(wide(y)).T, abs(wide(x)).T @ abs(wide(ct))
    for operand, got, expected, want, size in zip((x, y), ours, theirs, exact, sums, strict=True):
        assert got.dtype == expected.dtype == operand.dtype
        info = jnp.finfo(got.dtype)
        rounding = float(info.eps) / 2 * abs(want) + float(info.smallest_subnormal) / 2
        errors = [abs(wide(v) - want) for v in (got, expected)]
        for error in errors:
            assert (error <= 1.1 * rounding + 1.1 * eps_of(ct) * size).all()
        assert errors[0].max() <= errors[1].max() + 1e-6 * size.max()
    _, *products = jaxgemm.explain(partial(gradients, jaxgemm.dot_general), x, y, ct, platform="cuda").products
    types = {tuple(product.decision.problem.dtypes[:2]) for product in products}
    assert types == ({(multiplied, multiplied)} if multiplied else {(E4, E5), (E5, E5)})
    assert not any(product.decision.choice.rule == "other-type" for product in products)


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_gradients_in_lists_and_groups(out, rng):
    """Cotangents that an 8-bit float does not hold are multiplied as they are."""
    x, y, sizes = random(rng, (5, 48), E4), random(rng, (48, 7), E4), jnp.array([5])
    x, y = x / array(64, E4), y / array(64, E4)
    ct = 1000 * random(rng, (5, 7), out)
    assert abs(wide(ct)).max() > float(jnp.finfo(E4).max)
    products = (
        lambda x, y: jaxgemm.grouped_gemm([x], [y], preferred_element_type=out)[0],
        lambda x, y: jaxgemm.ragged_dot(x, y[None], sizes, preferred_element_type=out),
        lambda x, y: jaxgemm.matmul(x, y, preferred_element_type=out),
        lambda x, y: jnp.matmul(x, y, preferred_element_type=out),
    )
    *ours, expected = jax.jit(lambda *given: [jax.vjp(f, *given[:2])[1](given[2]) for f in products])(x, y, ct)
    exact = wide(ct) @ wide(y).T, wide(x).T @ wide(ct)
    for got in ours:
        same(got, expected)
        for v, want in zip(got, exact, strict=True):
            assert v.dtype == E4
            atol = 8 * eps_of(ct) * abs(want).max() + float(jnp.finfo(E4).smallest_subnormal) / 2
            np.testing.assert_allclose(wide(v), want, rtol=1 / 16 + eps_of(ct), atol=atol)


@pytest.mark.parametrize("out", ["float32", "bfloat16"])
def test_derivatives_of_scaled_8_bit_floats(out, rng):
    """Against float64, through alpha and a bias."""
    x, y = random(rng, (5, 48), E4), random(rng, (48, 7), E5)
    bias = random(rng, (7,), out)

    def loss(x, y, bias):
        z = jaxgemm.gemm(x, y, alpha=0.25, bias=bias, out_dtype=out).astype("float32")
        return 0.5 * jnp.sum(z * z)

    dx, dy, db = jax.jit(jax.grad(loss, (0, 1, 2)))(x, y, bias)
    z = 0.25 * wide(x) @ wide(y) + wide(bias)
    assert (dx.dtype, dy.dtype, db.dtype) == (x.dtype, y.dtype, out)
    terms = (
        (dx, 0.25 * z, wide(y).T),
        (dy, 0.25 * wide(x).T, z),
        (db, np.ones((1, 5)), z),
    )
    for got, left, right in terms:
        info, want, size = jnp.finfo(got.dtype), left @ right, abs(left) @ abs(right)
        assert abs(want).max() < float(info.max)
        rounding = float(info.eps) / 2 * abs(want) + float(info.smallest_subnormal) / 2
        assert (abs(wide(got) - want) <= 1.1 * rounding + 2 * eps_of(bias) * size).all()


def test_explain_says_whose_they_are():
    x, y = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16), jax.ShapeDtypeStruct((512, 512), jnp.int8)
    for platform in ("cpu", "cuda"):
        explained = jaxgemm.explain(partial(jaxgemm.dot_general, dimension_numbers=MATMUL), x, y, platform=platform)
        (product,) = explained.products
        assert product.kernel == "xla"
        assert "bfloat16[512,512] x int8[512,512] -> bfloat16" in str(explained)
