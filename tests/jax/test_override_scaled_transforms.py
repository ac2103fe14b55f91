"""Launches that scale, under override: mapped, differentiated, kept, over several devices, and by name."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh, put
from scaled import scale, values
from scaled_programs import (
    BF16,
    BOTH,
    E4M3,
    F32,
    INT8,
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
from jaxgemm.override import _memo, override


def test_second_derivatives(rng):
    a, b, s, t, bias = operands(rng)

    def function(s, t, bias):
        return jnp.tanh(0.01 * after(a, b, s, t) + bias)

    def derivatives(function):
        def total(*x):
            return jnp.sin(function(*x)).sum()

        return lambda *x: (jax.hessian(total, (0, 1))(*x), jax.jvp(function, x, x), jax.linearize(function, *x)[1](*x))

    ours = override(function)
    assert len(launches(ours, s, t, bias)) == 1
    same(*(jax.jit(derivatives(f))(s, t, bias) for f in (ours, function)))


def test_mapped(rng):
    """Over rows with scales of their own, weights, and scales alone."""
    a, b, s, t, bias = operands(rng, (E4M3, E4M3))

    def function(a, b, s, t, bias):
        return jax.nn.silu(after(a, b, s, t) + bias)

    every = [jnp.stack([x, x * 0.5]) for x in (a, b, s, t, bias)]
    for axes in ((0, None, 0, None, None), (None, 0, None, 0, 0), (None, None, 0, None, None), (0, 0, 0, 0, 0)):
        args = [x if axis is None else y for axis, x, y in zip(axes, (a, b, s, t, bias), every, strict=True)]
        mapped = [jax.vmap(f, axes) for f in (override(function), function)]
        same(*(jax.jit(f)(*args) for f in mapped))
        same(jax.jit(override(mapped[1]))(*args), jax.jit(mapped[1])(*args))
        gradients = [
            jax.vmap(jax.grad(lambda *x, f=f: f(*x).sum(), (2, 3)), axes) for f in (override(function), function)
        ]
        same(*(jax.jit(f)(*args) for f in gradients))


@pytest.mark.parametrize("policy", ["dots_saveable", "nothing_saveable"])
def test_checkpointed(policy, rng):
    args = operands(rng)
    saved = getattr(jax.checkpoint_policies, policy)

    def loss(layer):
        return lambda *x: jnp.sin(jax.checkpoint(layer, policy=saved)(*x)).sum()

    def layer(a, b, s, t, bias):
        return jnp.tanh(after(a, b, s, t) + bias)

    inside = jax.grad(override(loss(layer)), (2, 3, 4))
    assert dense(inside, *args).count((INT8, INT8)) == (1 if policy == "dots_saveable" else 2)
    want = jax.jit(jax.grad(loss(layer), (2, 3, 4)))(*args)
    for ours in (inside, override(jax.grad(loss(layer), (2, 3, 4)))):
        same(jax.jit(ours)(*args), want)


@pytest.mark.parametrize("pair", [(INT8, INT8), (E4M3, E4M3)])
@pytest.mark.parametrize("specs", [(P("x", None), P(None, "y")), (P("x", "y"), P("y", None)), (P(), P())])
def test_over_several_devices(specs, pair, rng):
    """Scales of rows and columns lie with these."""
    on = mesh()
    a, b = values(rng, (16, 32), pair[0]), values(rng, (32, 24), pair[1])
    s, t, bias = scale(rng, (16, 1)), scale(rng, (24,)), array(rng.standard_normal(24), F32)
    along = P(*specs[0][:1], None) if len(specs[0]) else P()
    placed = put(a, on, specs[0]), put(b, on, specs[1]), put(s, on, along), put(t, on, P(*specs[1][1:])), bias

    def before(a, b, s, t, bias):
        return jax.nn.silu((a.astype(BF16) * s) @ (b.astype(F32) * t) + bias)

    def behind(a, b, s, t, bias):
        return jax.nn.silu(after(a, b, s, t) + bias)

    z = exact(a) @ exact(b) * exact(s) * exact(t) + exact(bias)
    for function in (before, behind):
        compiled = jax.jit(override(function)).lower(*placed).compile()
        assert error(compiled(*placed), exact(jax.nn.silu(jnp.asarray(z)))) <= 2.0**-20
        assert "all-gather" not in compiled.as_text()
        gradients = [jax.jit(jax.grad(lambda *x, f=f: f(*x).sum(), (2, 3, 4))) for f in (override(function), function)]
        same(*(gradient(*placed) for gradient in gradients))


def test_where_a_call_says_that_its_results_lie(rng):
    """A jit that was given shardings stays, around the scale of a result and around a dequantisation."""
    on = mesh()
    rows = NamedSharding(on, P("x", None))
    a, b, s = values(rng, (16, 32)), values(rng, (32, 24)), scale(rng, (16, 1))

    def behind(a, b, s):
        return jax.jit(lambda z: z * s, out_shardings=rows)(dot(a, b).astype(F32))

    def before(a, b, s):
        return jax.jit(lambda a, s: a.astype(F32) * s, out_shardings=rows)(a, s) @ b.astype(F32)

    def given(a, b, s):
        return jax.jit(lambda z, s: z * s, in_shardings=(rows, rows))(dot(a, b).astype(F32), s)

    z = exact(a) @ exact(b) * exact(s)
    for function in (behind, before, given):
        assert launches(override(function), a, b, s) == []
        assert error(jax.jit(override(function))(a, b, s), z) <= 1e-5
    assert override(behind)(a, b, s).sharding == rows
    assert launches(override(lambda a, b, s: jax.jit(lambda z: z * s)(dot(a, b).astype(F32))), a, b, s) == [
        ((2, 0), PLAIN)
    ]


def test_by_a_kernel_that_is_named(rng):
    """One without a form for scales multiplies; jnp scales."""
    args = operands(rng)
    ours = override(after, kernel="host")
    assert launches(ours, *args[:4]) == [(BOTH, PLAIN)]
    same(jax.jit(ours)(*args[:4]), after(*args[:4]))
    floats = operands(rng, (E4M3, E4M3))[:4]  # which the kernel does not multiply
    assert not launches(override(after, kernel="host"), *floats)
    assert not launches(override(after, kernel="xla"), *floats)
    (product,) = jaxgemm.explain(override(after, kernel="sm90"), *floats, platform="cuda").products
    assert product.kernel == "sm90"
    assert not product.scaled


def test_operands_are_read_as_they_lie(rng):
    """No transposition is left in front of the launch."""
    a, b, s, t = values(rng, (K, M)), values(rng, (N, K)), scale(rng, (M, 1)), scale(rng, (N,))
    functions = (
        lambda a, b, s, t: after(a.T, b.T, s, t),
        lambda a, b, s, t: (a.astype(BF16) * s.T.astype(BF16)).T @ (b.astype(F32) * t[:, None]).T,
        lambda a, b, s, t: lax.dot_general(a, b, (((0,), (1,)), ((), ())), preferred_element_type="int32") * s * t,
        lambda a, b, s, t: (a.T.astype(F32) * s) @ (b.T.astype(F32) * t),
    )
    for function in functions:
        ours = override(function)
        text = jax.jit(ours).trace(a, b, s, t).lower(lowering_platforms=("cuda",)).as_text()
        assert "stablehlo.custom_call @jaxgemm_scaled" in text
        assert error(jax.jit(ours)(a, b, s, t), exact(a).T @ exact(b).T * exact(s) * exact(t)) <= 2.0**-7
        found = jaxgemm.explain(ours, a, b, s, t, platform="cuda").products
        assert [product.decision.problem.layout for product in found] == ["TT"]


def test_what_is_not_finite(rng):
    a, b, s, t, bias = operands(rng, (E4M3, E4M3))
    s, bias = s.at[1].set(np.nan).at[3].set(np.inf).at[4].set(0), bias.at[2].set(np.nan)
    for function in (
        lambda *x: after(*x) + x[4],
        lambda a, b, s, t, bias: (a.astype(F32) * s) @ (b.astype(F32) * t) + bias,
    ):
        assert len(launches(override(function), a, b, s, t, bias)) == 1
        with np.errstate(invalid="ignore"):
            want = exact(a) @ exact(b) * exact(s) * exact(t) + exact(bias)
        np.testing.assert_allclose(jax.jit(override(function))(a, b, s, t, bias), want, rtol=1e-5, atol=1e-5)


def test_types_stay_weak(rng):
    """A number multiplied by one of Python's gives way to other types."""
    a, b = values(rng, (M, K), E4M3), values(rng, (K, N), E4M3)

    def function(a, b):
        return lax.convert_element_type_p.bind(dot(a, b), new_dtype=jnp.dtype(F32), weak_type=True, sharding=None) * 2.0

    with jax.enable_x64(False):  # or the number would make it float64
        assert len(launches(override(function), a, b)) == 1
        assert jax.eval_shape(function, a, b).weak_type
        assert jax.eval_shape(override(function), a, b).weak_type


@pytest.mark.gpu
def test_on_a_gpu(rng):
    """Sums of integers are exact there, too."""
    a, b, s, t, bias = operands(rng)

    @override
    def program(a, b, s, t, bias):
        before = (a.astype(BF16) * s.astype(F32)) @ (b.T.astype(F32) * t[:, None]).T
        return before, after(a, b.T.T, s, t), jax.nn.silu(after(a.reshape(2, 3, K), b, s[0, 0], t) + bias)

    z = exact(a) @ exact(b) * exact(t)
    each = exact(s[0, 0]) * z + exact(bias)
    want = exact(s) * z, exact(s) * z, (each / (1 + np.exp(-each))).reshape(2, 3, N)
    assert len(launches(program, a, b, s, t, bias)) == 3
    for got, expected in zip(jax.jit(program)(a, b, s, t, bias), want, strict=True):
        assert error(got, expected) <= 2.0**-20


def test_memory_is_given_back(rng):
    """What is kept of a jaxpr does not keep the jaxpr."""
    args = operands(rng)
    gc.collect()
    before = len(_memo)
    for i in range(30):
        override(lambda *x, i=i: jnp.tanh(after(*x) * i + x[4]))(*args)
    gc.collect()
    assert len(_memo) <= before + 8  # JAX's own caches hold a few
