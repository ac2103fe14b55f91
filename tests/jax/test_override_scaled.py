"""Scales before and after products of 8 bits, and what follows them: a part of the launch, under override."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from meshes import mesh
from scaled import values
from scaled_programs import (
    BF16,
    BOTH,
    E4M3,
    E5M2,
    F32,
    INT8,
    INTEGERS,
    PLAIN,
    K,
    M,
    N,
    after,
    dense,
    dot,
    error,
    exact,
    launches,
    operands,
    same,
)

import jaxgemm
from jaxgemm.epilogue import ACTIVATIONS, Epilogue
from jaxgemm.override import override

PAIRS = [*itertools.product(INTEGERS, repeat=2), *itertools.product((E4M3, E5M2), repeat=2)]


@jax.custom_vjp
def rescaled(z, s, t):
    return z * (s * t[0])


rescaled.defvjp(lambda z, s, t: (rescaled(z, s, t), (z, s, t)), lambda kept, ct: (3 * ct, kept[1], kept[2]))


def halves(x):
    return x.reshape(2, 3, -1)


def rounded(x):
    return exact(x.astype(BF16))


#: Functions of a, b, scales of rows and columns, and a bias; what multiplies the product; and the launch's scales.
WRITTEN = {
    "before": (lambda a, b, s, t, _: (a.astype(F32) * s) @ (b.astype(F32) * t), lambda s, t: s * t, BOTH),
    "before, in 16 bits": (
        lambda a, b, s, t, _: (a.astype(BF16) * s.astype(BF16)) @ (b.astype(BF16) * t.astype(BF16)),
        lambda s, t: rounded(s) * rounded(t),
        BOTH,
    ),
    "before, of one": (lambda a, b, s, _t, _: (a.astype(F32) * s) @ b.astype(F32), lambda s, _: s, (2, 0)),
    "before, of all": (
        lambda a, b, s, t, _: (a.astype(F32) * s[0]) @ (t[0] * b.astype(F32)),
        lambda s, t: s[0] * t[0],
        (1, 1),
    ),
    "before, two of one": (
        lambda a, b, s, _t, _: (a.astype(F32) * s * 0.5) @ b.astype(F32),
        lambda s, _: 0.5 * s,
        (2, 1),
    ),
    "after": (after, lambda s, t: s * t, BOTH),
    "after, columns first": (lambda a, b, s, t, _: t * dot(a, b).astype(F32) * s, lambda s, t: s * t, BOTH),
    "after, one of rows": (lambda a, b, s, _t, _: dot(a, b).astype(F32) * s, lambda s, _: s, (2, 0)),
    "after, one of columns": (lambda a, b, _s, t, _: dot(a, b).astype(F32) * t, lambda _, t: t, (0, 2)),
    "after, of all": (lambda a, b, s, t, _: dot(a, b).astype(F32) * s[0, 0] * t[0], lambda s, t: s[0] * t[0], (1, 1)),
    "after, a number": (lambda a, b, s, _t, _: 0.5 * dot(a, b).astype(F32) * s, lambda s, _: 0.5 * s, (2, 1)),
    "after, divided": (lambda a, b, s, t, _: dot(a, b).astype(F32) / s / t, lambda s, t: 1 / (s * t), BOTH),
    "after, repeated": (
        lambda a, b, s, t, _: dot(a, b).astype(F32) * jnp.broadcast_to(s, (M, N)) * jnp.broadcast_to(t, (M, N)),
        lambda s, t: s * t,
        BOTH,
    ),
    "after, in 16 bits": (
        lambda a, b, s, t, _: dot(a, b, BF16) * s.astype(BF16) * t.astype(BF16),
        lambda s, t: rounded(s) * rounded(t),
        BOTH,
    ),
    "after, both at once": (lambda a, b, s, t, _: dot(a, b).astype(F32) * (s * t), lambda s, t: s * t, BOTH),
    "after, both at once, one divided": (
        lambda a, b, s, t, _: (t / s).astype(F32) * dot(a, b),
        lambda s, t: t / s,
        BOTH,
    ),
    "after, divided by both": (lambda a, b, s, t, _: dot(a, b) / (s * t), lambda s, t: 1 / (s * t), BOTH),
    "after, then rounded": (lambda *x: after(*x).astype(BF16), lambda s, t: s * t, BOTH),
    "after, in a call": (
        lambda a, b, s, _t, _: jax.jit(lambda z: z * s)(dot(a, b).astype(F32)),
        lambda s, _: s,
        (2, 0),
    ),
    "after, in a rule": (
        lambda a, b, s, t, _: rescaled(dot(a, b).astype(F32), s, t),
        lambda s, t: s * t[0],
        (2, 0),
    ),
    "before and after": (
        lambda a, b, s, _t, _: jnp.dot(a.astype(BF16), b.astype(BF16) * 2, preferred_element_type=F32) * s,
        lambda s, _: 2 * s,
        (2, 1),
    ),
    "converted, then scaled": (lambda a, b, s, t, _: (a.astype(F32) @ b.astype(F32)) * s * t, lambda s, t: s * t, BOTH),
    "a row": (
        lambda a, b, s, t, _: (dot(a[0], b).astype(F32) * t * s[0, 0])[None],
        lambda s, t: (s * t)[:1],
        (1, 2),
    ),
    "more axes": (
        lambda a, b, s, t, _: after(halves(a), b, halves(s), t).reshape(M, N),
        lambda s, t: s * t,
        BOTH,
    ),
    "more axes, one for each matrix": (
        lambda a, b, s, _t, _: (dot(halves(a), b).astype(F32) * halves(s)[:, :1]).reshape(M, N),
        lambda s, _: np.repeat(s[::3], 3, axis=0),
        (2, 0),
    ),
    "before, axes merged": (
        lambda a, b, s, t, _: (halves(a).astype(F32) * halves(s)).reshape(M, K) @ (b.astype(F32) * t),
        lambda s, t: s * t,
        BOTH,
    ),
    "before, axes split": (
        lambda a, b, s, t, _: (halves(a.astype(BF16) * s) @ (b.astype(F32) * t)).reshape(M, N),
        lambda s, t: s * t,
        BOTH,
    ),
    "before, axes of weights merged": (
        lambda a, b, _s, t, _: a.astype(F32) @ (b.reshape(3, 9, N).astype(F32) * t).reshape(K, N),
        lambda _, t: t,
        (0, 2),
    ),
    "before, one scale of merged axes": (
        lambda a, b, s, _t, _: (halves(a).astype(F32) * halves(s)[:, :1]).reshape(1, M, K)[0] @ b.astype(F32),
        lambda s, _: np.repeat(s[::3], 3, axis=0),
        (2, 0),
    ),
    "in jit": (jax.jit(after), lambda s, t: s * t, BOTH),
    "in checkpoint": (jax.checkpoint(after), lambda s, t: s * t, BOTH),
    "in scan": (
        lambda a, b, s, t, _: lax.scan(lambda c, x: (c, after(x[0][None], b, x[1], t)), 0, (a, s))[1][:, 0],
        lambda s, t: s * t,
        (1, 2),
    ),
    "in shard_map": (
        lambda a, b, s, t, _: jax.shard_map(
            override(lambda a, s: after(a, b, s, t)), mesh=mesh((2,), ("i",)), in_specs=P("i"), out_specs=P("i")
        )(a, s),
        lambda s, t: s * t,
        BOTH,
    ),
}


@pytest.mark.parametrize("dtype", [INT8, E4M3])
@pytest.mark.parametrize("name", WRITTEN)
def test_scales_however_they_are_written(name, dtype, rng):
    """One launch, whose result is no further from the exact value than the program's."""
    function, factor, scales = WRITTEN[name]
    args = operands(rng, (dtype, dtype))
    ours = override(function)
    assert launches(ours, *args) == [(scales, PLAIN)]
    assert not dense(ours, *args)
    got, plain = jax.jit(ours)(*args), jax.jit(function)(*args)
    assert jax.typeof(got) == jax.typeof(plain)
    factors = factor(*(exact(x) if "16" not in name else x for x in args[2:4]))
    want = (exact(args[0]) @ exact(args[1]))[: len(got)] * factors
    assert error(got, want) <= max(error(plain, want), 2.0**-21)
    (product,) = jaxgemm.explain(ours, *args, platform="cuda").products
    assert not product.scaled  # by the kernel
    assert product.decision.problem.scales == scales


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_what_follows_scales(pair, activation, rng):
    """A bias and an activation are taken up, before and after."""
    apply = ACTIVATIONS.get(activation, lambda z: z)
    args = operands(rng, pair)

    def scaled_before(a, b, s, t, bias):
        return apply((a.astype(F32) * s) @ (b.astype(F32) * t) + bias)

    def scaled_after(a, b, s, t, bias):
        return apply(after(a, b, s, t) + bias)

    def reshaped_bias(a, b, s, t, bias):
        return apply(after(a, b, s, t) + bias.astype(BF16)[None].astype(F32))

    *a_b, s, t, bias = args
    z = exact(a_b[0]) @ exact(a_b[1]) * exact(s) * exact(t)
    for function, of_bias in ((scaled_before, bias), (scaled_after, bias), (reshaped_bias, bias.astype(BF16))):
        assert launches(override(function), *args) == [(BOTH, Epilogue(has_bias=True, activation=activation))]
        want = apply(jnp.asarray(z + exact(of_bias)))
        assert error(jax.jit(override(function))(*args), exact(want)) <= 2.0**-20


def _read_elsewhere(a, b, s, t, _):
    z = dot(a, b).astype(F32) * s
    return z * t + z.sum()


_ONE = "a launch takes one scale of rows, one of columns, and one of all in place of either"
#: Functions; the launches, none or one with fewer scales than follow; and why jnp applies scales, as explain says.
LEFT = {
    "both axes": (lambda a, b, s, t, _: dot(a, b).astype(F32) * (s + t), [], _ONE),
    "both axes, of integers": (
        lambda a, b, s, t, _: dot(a, b) * ((1e3 * s).astype("int8") * (1e3 * t).astype("int8")).astype(F32),
        [],
        _ONE,
    ),
    "both axes, rounded": (lambda a, b, s, t, _: dot(a, b) * (s * t).astype(E4M3).astype(F32), [], _ONE),
    "read elsewhere": (_read_elsewhere, [((2, 0), PLAIN)], ""),
    "read unscaled": (lambda a, b, s, _t, _: (lambda z: z * s + z.sum())(dot(a, b)), [], "read without its scales"),
    "by itself": (lambda a, b, _s, _t, _: (lambda z: z * z)(dot(a, b).astype(F32)), [], ""),
    "by what is made of it": (
        lambda a, b, _s, _t, _: jax.jit(lambda z: z * abs(z).max(1, keepdims=True))(dot(a, b).astype(F32)),
        [],
        "",
    ),
    "rounded between": (lambda a, b, s, t, _: jnp.round(dot(a, b).astype(F32) * s) * t, [((2, 0), PLAIN)], ""),
    "two of rows": (lambda a, b, s, _t, _: (a.astype(F32) * s * s) @ b.astype(F32), [((2, 0), PLAIN)], _ONE),
    "along a part of k": (
        lambda a, b, _s, t, _: (a.reshape(M, 3, 9).astype(F32) * t[:3, None]).reshape(M, K) @ (b.astype(F32) * t),
        [],
        "",
    ),
    "no scale": (lambda a, b, _s, _t, bias: jax.nn.relu(dot(a, b).astype(F32) + bias), [], ""),
    "a batch": (
        lambda a, b, s, _t, _: (
            lax.dot_general(halves(a), jnp.stack([b, b]), (((2,), (1,)), ((0,), (0,))), None, F32) * halves(s)
        ),
        [],
        "launches that scale multiply rows by one matrix",
    ),
    "integers": (lambda a, b, _s, _t, _: dot(a, b).astype("int32") * 3, [], ""),
    "in 16 bits, at highest": (
        lambda a, b, _s, t, _: jnp.dot(a, b, precision="highest", preferred_element_type=BF16) * t.astype(BF16),
        [],
        "XLA computes products of 8-bit floats at 'highest'",
    ),
    "an algorithm": (
        lambda a, b, s, _t, _: jnp.dot(a, b, precision="F32_F32_F32", preferred_element_type=F32) * s,
        [],
        "an algorithm",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_the_rest_stays(name, rng):
    function, expected, why = LEFT[name]
    args = operands(rng, (E4M3, E4M3))
    assert launches(override(function), *args) == expected
    for product in jaxgemm.explain(override(function), *args, platform="cuda").products:
        assert product.scaled.startswith("applied by jnp: ") == bool(why)
        assert why in product.scaled
    same(jax.jit(override(function))(*args), jax.jit(function)(*args))


@pytest.mark.parametrize(("pair", "most"), [((INT8, INT8), 131_071), (("uint8", "uint8"), 33_025)])
def test_sums_that_may_wrap_stay(pair, most):
    """As jnp has it they wrap, and are scaled then."""
    for k, expected in ((most, [((2, 0), PLAIN)]), (most + 1, [])):
        args = *(jax.ShapeDtypeStruct(s, t) for s, t in zip(((2, k), (k, 3)), pair, strict=True)), np.ones((2, 1), F32)
        ours = override(lambda a, b, s: dot(a, b).astype(F32) * s)
        assert launches(ours, *args) == expected
        (product,) = jaxgemm.explain(ours, *args, platform="cuda").products
        assert product.scaled == ("" if expected else "applied by jnp: sums may pass what int32 holds")


@pytest.mark.parametrize("name", [*WRITTEN, "with a bias and an activation"])
@pytest.mark.parametrize("dtype", [INT8, E4M3])
def test_derivatives_are_those_of_the_program(name, dtype, rng):
    """By the floats among the operands, whether ``override`` is inside or outside."""
    function = WRITTEN[name][0] if name in WRITTEN else lambda *x: jnp.tanh(after(*x) * 0.1 + x[4])
    args = operands(rng, (dtype, dtype))
    by = (2, 3, 4) if dtype == INT8 else (0, 1, 2, 3, 4)

    def loss(function):
        return lambda *args: (function(*args).astype(F32) * jnp.cos(jnp.arange(N))).sum()

    gradient = jax.grad(loss(function), by)
    want = jax.jit(gradient)(*args)
    for ours in (jax.grad(override(loss(function)), by), override(gradient)):
        found = jax.jit(ours)(*args)
        assert jax.tree.map(jax.typeof, found) == jax.tree.map(jax.typeof, want)
        rounding = 2.0**-6 if "16" in name or "rounded" in name or "before and" in name else 2.0**-16
        for got, expected in zip(found, want, strict=True):
            eps = float(jnp.finfo(expected.dtype).eps)
            same(got, expected, max(rounding, eps))


def test_scales_that_are_products(rng):
    """What one product's launch takes up may be what another's reads."""
    a, b, p, q = (values(rng, shape, E4M3) for shape in ((M, 1), (1, N), (M, K), (K, 1)))

    def function(a, b, p, q):
        return (a.astype(F32) * dot(p, q).astype(BF16).astype(F32)) @ b.astype(F32) + dot(p, q) * dot(a, b)

    want = jax.jit(function)(a, b, p, q)
    same(jax.jit(override(function))(a, b, p, q), want, 2.0**-7)
