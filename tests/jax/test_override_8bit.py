"""What override makes of products of dequantised values: products of 8 bits, whose result the scales multiply."""

import gc
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax.linen import fp8_ops
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxprs import equations
from meshes import mesh, put
from scaled import scale, values
from scaled_programs import error, exact, same

import jaxgemm
from jaxgemm.override import _memo, override
from jaxgemm.products.dense import gemm_p
from jaxgemm.products.scaled import scaled_p

INTEGERS, FLOATS = ("int8", "uint8"), ("float8_e4m3fn", "float8_e5m2")
PAIRS = [*itertools.product(INTEGERS, repeat=2), *itertools.product(FLOATS, repeat=2)]
WIDE = ("bfloat16", "float16", "float32")
M, N, K, F32 = 6, 10, 24, "float32"
NARROW = {*INTEGERS, *FLOATS}


def types(function, *args):
    """The operands' types of jaxgemm's products in the function's jaxpr."""
    found = [eqn for eqn in equations(function, *args) if eqn.primitive in (gemm_p, scaled_p)]
    return [tuple(v.aval.dtype.name for v in eqn.invars[:2]) for eqn in found]


def together(*functions):
    """The results of all functions of the same operands, by one program."""
    return jax.jit(lambda *args: [function(*args) for function in functions])


def loss(function):
    return lambda *args: (function(*args).astype(jnp.float32) * jnp.cos(jnp.arange(N))).sum()


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_values_times_scales(pair, wide, rng):
    """As the plain program, but that nothing is rounded before the result: the errors are no larger."""
    a, b = values(rng, (M, K), pair[0]), values(rng, (K, N), pair[1])
    a_scale, b_scale = scale(rng, (M, 1), wide), scale(rng, (N,), wide)

    def function(a, b, a_scale, b_scale):
        return (a.astype(wide) * a_scale) @ (b_scale * b.astype(wide))

    args = a, b, a_scale, b_scale
    ours = override(function)
    assert types(ours, *args) == [pair]
    got, want = jax.jit(ours)(*args), (exact(a) * exact(a_scale)) @ (exact(b) * exact(b_scale))
    assert got.dtype == wide
    assert error(got, want) <= float(jnp.finfo(wide).eps)
    # The plain program's operands are rounded once more; its sums are not, here.
    rounded = [(exact(x) * exact(y)).astype(wide) for x, y in ((a, a_scale), (b, b_scale))]
    plain = (exact(rounded[0]) @ exact(rounded[1])).astype(wide)
    assert error(got, want) <= error(plain, want) + 2.0**-22
    (product,) = jaxgemm.explain(ours, *args, platform="cuda").products
    assert product.operands == f"{pair[0]}[{M},{K}] x {pair[1]}[{K},{N}]"


@jax.custom_jvp
def tripled(x, w):
    return x @ w


@tripled.defjvp
def _tripled_jvp(primals, tangents):
    (x, w), (dx, dw) = primals, tangents
    return tripled(x, w), 3 * (dx @ w + x @ dw)  # so that a lost rule shows


def _by_call(a, b, s, _t):
    dequantised = jax.jit(lambda x, s: (x.astype(s.dtype) * s, s))
    return dequantised(a, s)[0] @ b.astype(s.dtype)


WRITTEN = {
    "converted only": lambda a, b, _s, _t: a.astype("bfloat16") @ b.astype("bfloat16"),
    "one operand scaled": lambda a, b, s, _t: (a.astype(F32) * s) @ b.astype(F32),
    "a number": lambda a, b, _s, _t: (0.5 * a.astype(F32)) @ (b.astype(F32) / 3),
    "one scale": lambda a, b, s, _t: (a.astype(F32) * s[0, 0]) @ (b.astype(F32) * s[:1]),
    "broadcast first": lambda a, b, s, t: (
        (a.astype("bfloat16") * jnp.broadcast_to(s, a.shape).astype("bfloat16"))
        @ (b.astype(F32) * jnp.broadcast_to(t, b.shape)).astype("bfloat16")
    ),
    "divided": lambda a, b, s, t: (a.astype(F32) / s) @ (b.astype(F32) / t[None]),
    "two scales": lambda a, b, s, t: (a.astype(F32) * s * s[0]) @ (t * (b.astype(F32) * 2.0)),
    "a scale that is computed": lambda a, b, s, t: (
        (a.astype(F32) * jnp.maximum(s, 0.02)) @ (b.astype(F32) * jnp.exp2(jnp.broadcast_to(t, b.shape)))
    ),
    "scaled, then converted": lambda a, b, s, t: (
        (a.astype(F32) * s).astype("bfloat16") @ (b.astype("float16") * t.astype("float16")).astype("bfloat16")
    ),
    "transposed": lambda a, b, s, t: (a.T.astype(F32) * s.T).T @ (b.T.astype(F32) * t[:, None]).T,
    "more axes": lambda a, b, s, t: jnp.einsum(
        "amk,kbn->ambn", (a.astype(F32) * s)[None], b.astype(F32)[:, None] * t
    ).reshape(M, N),
    "a wider result": lambda a, b, _s, _t: jnp.dot(
        a.astype("bfloat16"), b.astype("bfloat16"), preferred_element_type=F32
    ),
    "in a call": _by_call,
    "the product in a call": lambda a, b, s, t: tripled(a.astype(F32) * s, b.astype(F32) * t),
    "in jit": jax.jit(lambda a, b, s, t: (a.astype(F32) * s) @ (b.astype(F32) * t)),
    "in checkpoint": jax.checkpoint(lambda a, b, s, t: (a.astype(F32) * s) @ (b.astype(F32) * t)),
    "in scan": lambda a, b, s, t: lax.scan(
        lambda c, x: (c, (x[0].astype(F32) * x[1]) @ (b.astype(F32) * t)), 0, (a, s)
    )[1],
    "in cond": lambda a, b, s, t: lax.cond(
        s[0, 0] > 0, lambda: (a.astype(F32) * s) @ (b.astype(F32) * t), lambda: jnp.zeros((M, N), F32)
    ),
    "in vmap": lambda a, b, s, t: jax.vmap(lambda a, s: (a.astype(F32) * s) @ (b.astype(F32) * t))(a, s),
    "in shard_map": lambda a, b, s, t: jax.shard_map(
        override(lambda a, s: (a.astype(F32) * s) @ (b.astype(F32) * t)),
        mesh=mesh((2,), ("i",)),
        in_specs=(P("i"), P("i")),
        out_specs=P("i"),
    )(a, s),
}


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("name", WRITTEN)
def test_however_it_is_written(name, dtype, rng):
    function = WRITTEN[name]
    args = values(rng, (M, K), dtype), values(rng, (K, N), dtype), scale(rng, (M, 1)), scale(rng, (N,))
    ours = override(function)
    assert types(ours, *args) == [(dtype, dtype)]
    got, want = together(ours, function)(*args)
    assert jax.typeof(got) == jax.typeof(want)
    assert error(got, exact(want)) <= (2.0**-7 if want.dtype == "bfloat16" else 2.0**-20)
    mapped = [array(np.asarray(x)[None]) if i in (0, 2) else x for i, x in enumerate(args)]
    assert types(jax.vmap(ours, (0, None, 0, None)), *mapped)[-1] == (dtype,) * 2


@pytest.mark.parametrize("name", WRITTEN)
def test_derivatives_are_those_of_the_program(name, rng):
    """By scales, whether ``override`` is inside or outside."""
    function = loss(WRITTEN[name])
    args = values(rng, (M, K)), values(rng, (K, N)), scale(rng, (M, 1)), scale(rng, (N,))
    inside, outside = jax.grad(override(function), (2, 3)), override(jax.grad(function, (2, 3)))
    want, *found = together(jax.grad(function, (2, 3)), inside, outside)(*args)
    in_16_bits = any(v.aval.dtype == "bfloat16" for eqn in equations(function, *args) for v in eqn.outvars)
    rounding = 2.0**-6 if in_16_bits else 1e-5
    for got in found:
        same(got, want, rounding)


def test_in_batches_and_over_several_axes(rng):
    a, b = values(rng, (2, 3, 4, 5), "float8_e4m3fn"), values(rng, (5, 3, 6, 4), "float8_e5m2")
    a_scale, b_scale = scale(rng, (2, 3, 1, 1)), scale(rng, (3, 6, 1))

    def function(a, b, a_scale, b_scale):
        return jnp.einsum("bhdk,khnd->hbn", a.astype(F32) * a_scale, b.astype(F32) * b_scale)

    args = a, b, a_scale, b_scale
    assert types(override(function), *args) in ([FLOATS], [FLOATS[::-1]])
    want = np.einsum("bhdk,khnd->hbn", exact(a) * exact(a_scale), exact(b) * exact(b_scale))

    def total(*args):
        return function(*args).sum()

    got, *gradients = together(override(function), jax.grad(override(total), (2, 3)), jax.grad(total, (2, 3)))(*args)
    assert error(got, want) <= 2.0**-20
    same(*gradients)


def test_second_derivatives(rng):
    a, b, s, t = values(rng, (M, K)), values(rng, (K, N)), scale(rng, (M, 1)), scale(rng, (N,))

    def function(s, t):
        return jnp.sin(0.01 * (a.astype(F32) * s) @ (b.astype(F32) * t)).sum()

    def derivatives(function):
        return lambda *x: (jax.hessian(function)(*x), jax.hessian(function, 1)(*x), jax.jvp(function, x, x))

    same(*together(derivatives(override(function)), derivatives(function))(s, t), 1e-4)


def test_derivatives_of_fake_quantisation(rng):
    """A straight-through estimator keeps its rule, and a derivative that is quantised is a product of 8 bits."""

    @jax.custom_vjp
    def rounded(x):
        return (x / 0.02).astype("float8_e4m3fn").astype(x.dtype) * 0.02

    rounded.defvjp(lambda x: (rounded(x), None), lambda _, ct: (3 * ct,))

    @jax.custom_vjp
    def with_rounded_cotangent(x):
        return x

    def backward(_, ct):
        return ((ct / 0.1).astype("float8_e5m2").astype(ct.dtype) * 0.1,)

    with_rounded_cotangent.defvjp(lambda x: (x, None), backward)

    def function(x, w):
        return (with_rounded_cotangent(rounded(x) @ rounded(w)).astype(F32) * jnp.cos(jnp.arange(N))).sum()

    x, w = (array(rng.standard_normal(s), "bfloat16") for s in ((M, K), (K, N)))
    assert types(override(function), x, w) == [("float8_e4m3fn",) * 2]
    gradient = jax.grad(function, (0, 1))
    ours = override(gradient)
    found = sorted(types(ours, x, w))
    assert found == [("float8_e4m3fn", "float8_e4m3fn"), *[("float8_e5m2", "float8_e4m3fn")] * 2]
    want, *all_found = together(gradient, ours, jax.grad(override(function), (0, 1)))(x, w)
    for got in all_found:
        for ours_, theirs in zip(got, want, strict=True):
            assert ours_.dtype == theirs.dtype
            assert error(ours_, exact(theirs)) <= 2.0**-6


def test_a_transposition_is_read_through(rng):
    """No operand is copied in front of a kernel that takes it as it lies."""
    a, b, s = values(rng, (512, 256)), values(rng, (128, 256)), scale(rng, (128, 1))

    def function(a, b, s):
        return a.astype("bfloat16") @ (b.astype("bfloat16") * s.astype("bfloat16")).T

    (product,) = jaxgemm.explain(override(function, kernel="sm90"), a, b, s, platform="cuda").products
    assert "layout NT" in str(product)
    assert "copies     none" in str(product)


def test_types_that_numpy_does_not_know(rng):
    """As those in which flax may keep scales."""
    a, b = values(rng, (M, K), "float8_e4m3fn"), values(rng, (K, N), "float8_e4m3fn")
    meta = jax.jit(lambda: lax.convert_element_type(jnp.full((1,), 0.5, F32), fp8_ops.fm32))()

    def function(a, b, meta):
        return (lax.convert_element_type(meta, F32) * a.astype(F32)) @ b.astype(F32)

    assert types(override(function), a, b, meta) == [("float8_e4m3fn",) * 2]


def test_memory_is_given_back(rng):
    """What is kept of a jaxpr does not keep the jaxpr."""
    a, b, s = values(rng, (M, K)), values(rng, (K, N)), scale(rng, (M, 1))
    gc.collect()
    before = len(_memo)
    for i in range(30):
        override(lambda a, b, s, i=i: (a.astype(F32) * s * i) @ b.astype(F32))(a, b, s)
    gc.collect()
    assert len(_memo) <= before + 8  # JAX's own caches hold a few


def test_what_is_kept_of_a_checkpointed_layer(rng):
    """A policy sees the product as the dot that it was."""
    args = values(rng, (M, K)), values(rng, (K, N)), scale(rng, (M, 1)), scale(rng, (N,))

    def layer(a, b, s, t):
        return jnp.sin((a.astype(F32) * s) @ (b.astype(F32) * t))

    for policy, products in (("dots_saveable", 1), ("nothing_saveable", 2)):
        kept = jax.checkpoint(layer, policy=getattr(jax.checkpoint_policies, policy))
        found = types(jax.grad(override(loss(kept)), (2, 3)), *args)
        assert found.count(("int8", "int8")) == products
        same(*together(jax.grad(override(loss(kept)), (2, 3)), jax.grad(loss(layer), (2, 3)))(*args))


def test_by_a_kernel_that_is_named(rng):
    args = values(rng, (M, K)), values(rng, (K, N)), scale(rng, (M, 1)), scale(rng, (N,))
    function = WRITTEN["in jit"]
    ours = override(function, kernel="host")
    assert types(ours, *args) == [("int8", "int8")]
    same(*together(ours, function)(*args))
    floats = [array(x, "float8_e4m3fn") for x in args[:2]]
    assert types(ours, *floats, *args[2:]) == [(F32, F32)]  # the kernel has no fp8
    assert types(override(function, kernel="xla"), *args) == [(F32, F32)]


def test_integers_between(rng):
    args = values(rng, (M, K)), values(rng, (K, N), "uint8"), scale(rng, (M, 1)), scale(rng, (N,))

    def function(a, b, s, t):
        return (a.astype("int32").astype(F32) * s) @ (b.astype("int16").astype(F32) * t)

    assert types(override(function), *args) == [("int8", "uint8")]
    same(*together(override(function), function)(*args))


def test_integers_that_stay_integers(rng):
    """Sums in int32 wrap as they do, however long they are."""
    a, b = values(rng, (2, 140_000), "uint8"), values(rng, (140_000, 2), "uint8")

    def function(a, b):
        return a.astype("int32") @ b.astype("int32")

    assert types(override(function), a, b) == [("uint8", "uint8")]
    np.testing.assert_array_equal(*together(override(function), function)(a, b))


LEFT = {
    "a scale along k": lambda a, b, _s, _t: (a.astype(F32) * b[:, 0].astype(F32)) @ b.astype(F32),
    "one along k in part": lambda a, b, _s, _t: (
        ((a.reshape(M, 2, -1).astype(F32) * jnp.ones((1, 2, 1)).at[0, 0].set(2).astype(F32)).reshape(M, K))
        @ b.astype(F32)
    ),
    "a zero point": lambda a, b, s, _t: ((a.astype(F32) - 3) * s) @ b.astype(F32),
    "what is rounded again": lambda a, b, s, _t: jnp.round(a.astype(F32) * s) @ b.astype(F32),
    "fractions cut off": lambda a, b, s, _t: (a.astype(F32) * s).astype("int32") @ b.astype("int32"),
    "weights only": lambda a, b, s, _t: jnp.sin(a.astype(F32) * s) @ b.astype(F32),
    "integers by floats": lambda a, b, _s, _t: a.astype(F32) @ b.astype("float8_e4m3fn").astype(F32),
    "float64": lambda a, b, _s, _t: a.astype("float64") @ b.astype("float64"),
    "an algorithm": lambda a, b, _s, _t: jnp.dot(a.astype(F32), b.astype(F32), precision="F32_F32_F32"),
    "16-bit integers": lambda a, b, _s, _t: a.astype("int16") @ b.astype("int16"),
    "around shard_map": lambda a, b, _s, _t: jax.shard_map(
        lambda a: a.astype(F32) @ b.astype(F32), mesh=mesh((2,), ("i",)), in_specs=P("i"), out_specs=P("i")
    )(a),
}


@pytest.mark.parametrize("name", LEFT)
def test_the_rest_stays(name, rng):
    args = values(rng, (M, K)), values(rng, (K, N)), scale(rng, (M, 1)), scale(rng, (N,))
    ours = override(LEFT[name])
    assert not NARROW & {t for pair in types(ours, *args) for t in pair}
    same(*together(ours, LEFT[name])(*args))


@pytest.mark.parametrize(
    ("pair", "most"), [(("int8", "int8"), 131_071), (("uint8", "uint8"), 33_025), (("uint8", "int8"), 65_793)]
)
def test_sums_that_may_wrap_stay(pair, most):
    for k, narrow in ((most, True), (most + 1, False)):
        args = jax.ShapeDtypeStruct((2, k), pair[0]), jax.ShapeDtypeStruct((k, 3), pair[1])
        found = types(override(lambda a, b: a.astype(F32) @ b.astype(F32)), *args)
        assert found == [pair if narrow else (F32, F32)]


def test_a_precision_for_all_products(rng):
    a, b = values(rng, (M, K)), values(rng, (K, N))

    def function(a, b):
        return a.astype(F32) @ b.astype(F32)

    assert types(override(function, precision="highest"), a, b) == [("int8", "int8")]
    assert types(override(function, precision="BF16_BF16_F32_X6"), a, b) == [(F32, F32)]


def test_shardings_that_are_types_stay(rng):
    on = mesh((4, 2), types="Explicit")
    a, b = put(values(rng, (8, K)), on, P("x")), put(values(rng, (K, N)), on, P(None, "y"))
    with jax.set_mesh(on):
        assert types(override(lambda a, b: a.astype(F32) @ b.astype(F32)), a, b) == [(F32, F32)]


TYPED = [
    *itertools.product([("int8", "int8"), ("uint8", "int8")], ["int32", F32, "bfloat16"]),
    *itertools.product([FLOATS, FLOATS[:1] * 2], [F32, "bfloat16"]),
    (("int8", "int8"), None),
    (FLOATS[:1] * 2, None),
]


@pytest.mark.parametrize(("pair", "out"), TYPED)
def test_products_of_8_bits_keep_their_types(pair, out, rng):
    """Whatever follows them. If a scale does, sums are not rounded to 16 bits on the way."""
    a, b, s = values(rng, (M, K), pair[0]), values(rng, (K, N), pair[1]), scale(rng, (M, 1))

    function = lambda a, b, s: jnp.dot(a, b, preferred_element_type=out).astype(F32) * s  # noqa: E731
    ours = override(function)
    assert types(ours, a, b, s) == [pair]
    got, plain = together(ours, function)(a, b, s)
    same(got, plain if out is None else exact(a) @ exact(b) * exact(s))
    (product,) = jaxgemm.explain(ours, a, b, s, platform="cuda").products
    assert product.operands == f"{pair[0]}[{M},{K}] x {pair[1]}[{K},{N}]"
