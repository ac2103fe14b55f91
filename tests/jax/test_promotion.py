"""How types and ranks are promoted: as jnp does, under every setting that JAX has for it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax import linen as nn
from flax import nnx
from jax.sharding import PartitionSpec as P
from meshes import mesh, put
from oracle import Product

import jaxgemm
from jaxgemm.flax import linen as our_linen
from jaxgemm.flax import nnx as our_nnx

KERNELS = ("auto", "host")
kernels = pytest.mark.parametrize("kernel", KERNELS)

BF = array(np.linspace(-1, 1, 16).reshape(4, 4), jnp.bfloat16)
F = BF.astype(jnp.float32)
I8 = jnp.arange(16, dtype=jnp.int8).reshape(4, 4)
MATMUL = (((1,), (0,)), ((), ()))


def like(got, expected, eps=1e-2):
    """Same type, weakness included, and values."""
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.weak_type == y.weak_type
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=eps, atol=eps)


def weak(x):
    return jnp.where(jnp.asarray(x) > 0.25, 1.5, 0.0)


# --- Strict dtypes --------------------------------------------------------------------------------------------

#: Programs that mix no types: (what we are given to multiply with, x) -> result.
PURE = {
    "matmul": lambda product, x: product(x, x),
    "fp32 result": lambda product, x: product(x, x, preferred_element_type=jnp.float32),
    "a weak operand": lambda product, x: product(x, weak(x)),
    "vmap": lambda product, x: jax.vmap(lambda row: product(row, x, preferred_element_type=jnp.float32))(x),
}


@kernels
@pytest.mark.parametrize("name", PURE)
def test_strict_dtypes(name, kernel):
    ours, theirs = (partial(PURE[name], f) for f in (partial(jaxgemm.matmul, kernel=kernel), jnp.matmul))
    with jax.numpy_dtype_promotion("strict"):
        like(ours(BF), theirs(BF))
        gradients = [jax.grad(lambda x, f=f: jnp.sum(f(x).astype(jnp.float32)))(BF) for f in (ours, theirs)]
        like(*gradients)
        like(*(jax.jvp(f, (BF,), (BF,)) for f in (ours, theirs)))


@kernels
@pytest.mark.parametrize("given", ["plain", "bias", "c", "array alpha", "all"])
def test_strict_dtypes_of_gemm(given, kernel, rng):
    """The epilogue is in the accumulator's type, which the caller has not mixed in."""
    every = given == "all"
    keywords = {"beta": 0.5} if given == "c" or every else {}
    keywords |= {"activation": "gelu"} if every else {}
    types = ("bfloat16", "bfloat16", "bfloat16", "float32")
    product = Product.random(rng, (5, 6, 7), types, bias=given == "bias" or every, alpha=2.0, **keywords)
    arrays = {name: array(x) for name, x in product.arrays.items()}
    alpha = array(2.0, jnp.bfloat16) if given == "array alpha" else 2.0

    def run(arrays):
        return jaxgemm.gemm(**arrays, **{**product.keywords, "alpha": alpha}, kernel=kernel)

    with jax.numpy_dtype_promotion("strict"):
        got = run(arrays)
        gradient = jax.grad(lambda arrays: jnp.sum(run(arrays).astype(jnp.float32)))(arrays)
    if kernel == "host":
        product.check(np.asarray(got))
    like(got, run(arrays))
    like(gradient, jax.grad(lambda arrays: jnp.sum(run(arrays).astype(jnp.float32)))(arrays))


MIXED = {
    "matmul": lambda k: jaxgemm.matmul(BF, F, kernel=k),
    "gemm": lambda k: jaxgemm.gemm(BF, F, kernel=k),
    "c": lambda k: jaxgemm.gemm(BF, BF, F, kernel=k),
    "c for a wider result": lambda k: jaxgemm.gemm(BF, BF, BF, out_dtype=jnp.float32, kernel=k),
    "bias": lambda k: jaxgemm.gemm(BF, BF, bias=F[0], kernel=k),
    "alpha": lambda k: jaxgemm.gemm(BF, BF, alpha=F[0, 0], kernel=k),
    "beta": lambda k: jaxgemm.gemm(BF, BF, BF, beta=F[0, 0], kernel=k),
    "gated": lambda k: jaxgemm.gated_gemm(BF, F, F, kernel=k),
    "integers": lambda k: jaxgemm.matmul(I8, BF, kernel=k),
    "einsum": lambda k: our_linen.Einsum(
        (4, 4), "ab,bc->ac", promote_dtype=as_they_are, use_bias=False, kernel=k
    ).apply({"params": {"kernel": F}}, BF),
    "layer's bias": lambda k: our_linen.Dense(4, promote_dtype=as_they_are, kernel=k).apply(
        {"params": {"kernel": BF, "bias": F[0]}}, BF
    ),
}


def as_they_are(*values, **_):
    return list(values)


@kernels
@pytest.mark.parametrize("name", MIXED)
def test_what_the_caller_mixes_is_jnp_own_error(name, kernel):
    MIXED[name](kernel)  # by default it is promoted
    with jax.numpy_dtype_promotion("strict"), pytest.raises(jax.dtypes.TypePromotionError, match="strict"):
        MIXED[name](kernel)


@kernels
def test_dot_general_promotes_nothing_that_strictness_could_forbid(kernel):
    with jax.numpy_dtype_promotion("strict"):
        like(jaxgemm.dot_general(BF, F, MATMUL, kernel=kernel), jax.lax.dot_general(BF, F, MATMUL))


@kernels
def test_strict_dtypes_of_everything_else(kernel):
    def gated(x):
        return jaxgemm.gated_gemm(x, BF, BF, out_dtype=jnp.float32, kernel=kernel)

    def block(x):
        x = jaxgemm.all_gather_matmul(x, BF, axis_name="t", preferred_element_type=jnp.float32, kernel=kernel)
        return jaxgemm.matmul_reduce_scatter(x.astype(jnp.bfloat16), BF, axis_name="t", kernel=kernel)

    def layer(x):
        return our_linen.Dense(4, dtype=jnp.bfloat16, activation="gelu", kernel=kernel).apply(params, x)

    params = nn.Dense(4).init(jax.random.key(0), F)
    mapped = jax.shard_map(block, mesh=mesh((2,), ("t",)), in_specs=P("t"), out_specs=P("t"))
    routed = jaxgemm.override(lambda x: jax.nn.gelu(x @ BF + BF[0]), kernel=kernel)
    for function in (gated, jax.jit(mapped), layer, routed):

        def both(f=function):
            return f(BF), jax.grad(lambda x: jnp.sum(f(x).astype(jnp.float32)))(BF)

        expected = both()
        with jax.numpy_dtype_promotion("strict"):
            like(both(), expected)


# --- Ranks ----------------------------------------------------------------------------------------------------


def layers(kernel):
    """Functions of x and a bias that broadcast no rank of their own."""
    dense = our_linen.Dense(4, activation="silu", kernel=kernel)
    einsum = our_linen.Einsum((4, 4), "ab,bc->ac", kernel=kernel)
    linear = our_nnx.Linear(4, 4, kernel=kernel, rngs=nnx.Rngs(0))
    general = our_nnx.LinearGeneral(4, (2, 2), kernel=kernel, rngs=nnx.Rngs(0))
    graph, state = nnx.split((linear, general))

    def in_nnx(x, _):
        linear, general = nnx.merge(graph, state)
        return linear(x), general(x)

    return {
        "gemm": lambda x, b: jaxgemm.gemm(x, F, bias=b, kernel=kernel),
        "activation": lambda x, b: jaxgemm.gemm(x, F, x, bias=b, activation="gelu", kernel=kernel),
        "array alpha": lambda x, b: jaxgemm.gemm(x, F, x, alpha=b[0], beta=b[1], bias=b, kernel=kernel),
        "batch": lambda x, b: jaxgemm.gemm(jnp.stack([x, x]), F, bias=b, kernel=kernel),
        "vmap of rows": lambda x, b: jax.vmap(lambda x: jaxgemm.gemm(x, F, bias=b, kernel=kernel))(x[None]),
        "vmap of biases": lambda x, b: jax.vmap(lambda b: jaxgemm.gemm(x, F, bias=b, kernel=kernel))(b[None]),
        "gated": lambda x, b: jaxgemm.gated_gemm(x, F, F * b[0], kernel=kernel),
        "override": jaxgemm.override(lambda x, b: jax.nn.silu(x @ F + b[None]), kernel=kernel),
        "matmul of other ranks": lambda x, b: jaxgemm.matmul(jnp.stack([x, x]), b, kernel=kernel),
        "linen Dense": lambda x, b: dense.apply({"params": {"kernel": F, "bias": b}}, x),
        "linen Einsum": lambda x, b: einsum.apply({"params": {"kernel": F, "bias": b}}, x),
        "nnx": in_nnx,
    }


@kernels
@pytest.mark.parametrize("name", layers("auto"))
def test_no_rank_is_promoted(name, kernel):
    function = layers(kernel)[name]

    def program(x, b):
        def loss(x, b):
            return sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(x, b)))

        return function(x, b), jax.grad(loss, (0, 1))(x, b)

    with jax.numpy_rank_promotion("allow"):
        expected = program(F, F[1])
    with jax.numpy_rank_promotion("raise"):
        like(program(F, F[1]), expected, 1e-6)
        like(jax.jit(program)(F, F[1]), expected, 1e-6)


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_no_rank_is_promoted_on_a_mesh(types):
    """Also where the epilogue follows the devices' sum."""
    on = mesh((2, 2), ("x", "y"), types)
    # Where shardings are types a sum over devices needs out_sharding, which gemm does not take.
    specs = (P("x", "y"), P("y", None), P(None)) if types == "Auto" else (P("x", None), P(None, "y"), P("y"))
    x, w, b = (put(v, on, spec) for v, spec in zip((F, F, F[1]), specs, strict=True))
    for kernel in KERNELS:

        def function(x, w, b, kernel=kernel):
            return jaxgemm.gemm(x, w, bias=b, activation="relu", kernel=kernel)

        with jax.set_mesh(on), jax.numpy_rank_promotion("raise"):
            got = jax.jit(function)(x, w, b)
        np.testing.assert_allclose(got, jax.nn.relu(F @ F + F[1]), rtol=1e-5, atol=1e-6)


def test_the_caller_s_own_ranks_are_the_caller_s():
    with jax.numpy_rank_promotion("raise"), pytest.raises(ValueError, match="rank_promotion"):
        jaxgemm.override(lambda x: x @ F + F[0])(F)


# --- Weak types -----------------------------------------------------------------------------------------------

#: Two operands, given the weak float and the weak integer of the width that there is.
OPERANDS = {
    "bf16 and weak": lambda number, _: (BF, number),
    "weak and bf16": lambda number, _: (number, BF),
    "f32 and weak": lambda number, _: (F, number),
    "weak and weak": lambda number, _: (number, number),
    "weak integers and weak": lambda number, integer: (integer, number),
    "integers and weak": lambda number, _: (I8, number),
    "bf16 and weak integers": lambda _, integer: (BF, integer),
    "f16 and weak": lambda number, _: (BF.astype(jnp.float16), number),
    "weak integers": lambda _, integer: (integer, integer),
    "bf16 and f32": lambda *_: (BF, F),
    "booleans and weak": lambda number, _: (F > 0, number),
}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", OPERANDS)
def test_weak_types(name, x64):
    with jax.enable_x64(x64):
        a, b = OPERANDS[name](weak(F), jnp.where(F > 0, 2, 1))
        expected = jnp.matmul(a, b)
        like(jaxgemm.matmul(a, b), expected)
        like(jaxgemm.gemm(a, b), expected)
        like(jax.jit(jaxgemm.matmul)(a, b), expected)
        like(jaxgemm.matmul(a[0], b[0]), jnp.matmul(a[0], b[0]))
        like(jax.vmap(jaxgemm.matmul, (0, None))(a, b), jax.vmap(jnp.matmul, (0, None))(a, b))
        like(jaxgemm.matmul(a, b, preferred_element_type=expected.dtype), expected.astype(expected.dtype))
        like(jaxgemm.dot_general(a, b, MATMUL), jax.lax.dot_general(a, b, MATMUL))


@kernels
def test_weak_types_of_an_epilogue(kernel):
    """The result is weak if all that goes into it is."""
    number = weak(F)
    gemm = partial(jaxgemm.gemm, number, number, kernel=kernel)
    plain = number @ number
    like(gemm(alpha=2.0), 2.0 * plain, 1e-6)
    like(gemm(alpha=jnp.asarray(2.0), activation="relu"), jax.nn.relu(2.0 * plain), 1e-6)
    like(gemm(number), plain + number, 1e-6)
    like(gemm(bias=number[0]), plain + number[0], 1e-6)
    strong = number.astype(plain.dtype)
    for keywords in ({"c": strong}, {"bias": strong[0]}, {"alpha": strong[0, 0]}, {"out_dtype": plain.dtype}):
        assert not gemm(**keywords).weak_type
        assert gemm(**keywords).dtype == plain.dtype
    like(jaxgemm.gated_gemm(*[number] * 3, kernel=kernel), jax.nn.silu(plain) * plain, 1e-6)
    like(jaxgemm.gated_gemm(BF, number, BF, kernel=kernel), jax.nn.silu(BF @ number) * (BF @ BF), 2e-2)


def test_weak_types_of_overlapped_products_and_layers():
    number = weak(F)
    for function in (jaxgemm.all_gather_matmul, jaxgemm.matmul_reduce_scatter):
        body = partial(function, axis_name="t")
        mapped = jax.shard_map(body, mesh=mesh((2,), ("t",)), in_specs=(P("t"), P()), out_specs=P("t"), check_vma=False)
        assert mapped(BF, number).dtype == jnp.bfloat16
    einsum = our_linen.Einsum((4, 4), "ab,bc->ac", promote_dtype=as_they_are, use_bias=False)
    plain = nn.Einsum((4, 4), "ab,bc->ac", promote_dtype=as_they_are, use_bias=False)
    params = {"params": {"kernel": F}}
    like(einsum.apply(params, number), plain.apply(params, number))
