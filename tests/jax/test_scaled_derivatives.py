"""Derivatives of scaled products: forward, backward, in Taylor mode and transposed, as of jnp's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax.experimental import jet
from jaxprs import equations
from meshes import assert_close
from scaled import check, exact, scale, values

import jaxgemm
from jaxgemm import checkpoint_policies

M, N, K = 6, 10, 24


def smooth(sums):
    """What is scaled, in jnp, of sums that are numbers."""

    def f(a_scale, b_scale, bias):
        return jnp.tanh(0.5 * (sums * a_scale) * b_scale + bias)

    return f


def scaled_by(a, b):
    """The same as a product."""

    def f(a_scale, b_scale, bias):
        return jaxgemm.gemm(a, b, a_scale=a_scale, b_scale=b_scale, bias=bias, alpha=0.5, activation="tanh")

    return f


@pytest.fixture(params=["int8", "float8_e4m3fn"])
def operands(request, rng):
    """a, b; a_scale, b_scale and bias, so that arguments of tanh are small; and sums in float32."""
    a, b = values(rng, (2, M, K), request.param), values(rng, (K, N), request.param)
    sums = exact(a, b)
    small = np.float32(1 / np.sqrt(abs(sums).max()))
    moving = small * scale(rng, (2, M, 1)) * 20, small * scale(rng, (1, N)) * 20, scale(rng, (N,))
    return a, b, moving, array(sums, np.float32)


def test_derivatives_of_scales_and_bias(operands, rng):
    """Forward, backward, and the second of each; as those of a function that multiplies nothing."""
    a, b, moving, sums = operands
    weights = array(rng.standard_normal(sums.shape), np.float32)
    ours, theirs = scaled_by(a, b), smooth(sums)
    tangents = tuple(array(rng.standard_normal(x.shape), np.float32) * x for x in moving)
    assert_close(jax.jvp(ours, moving, tangents), jax.jvp(theirs, moving, tangents), rtol=1e-4)

    def of(f):
        return jax.jit(jax.grad(lambda *x: (weights * f(*x)).sum(), (0, 1, 2)))

    assert_close(of(ours)(*moving), of(theirs)(*moving), rtol=1e-4)
    second = [jax.jvp(of(f), moving, tangents)[1] for f in (ours, theirs)]
    assert_close(*second, rtol=1e-3)


def test_taylor_mode(operands, rng):
    a, b, moving, sums = operands
    series = [[array(rng.standard_normal(x.shape), np.float32) * x for _ in range(3)] for x in moving]
    for activation in (None, "tanh", "relu"):
        after = {None: lambda x: x, "tanh": jnp.tanh, "relu": lambda x: jnp.maximum(x, 0)}[activation]

        def ours(s, t, bias, activation=activation):
            return jaxgemm.gemm(a, b, a_scale=s, b_scale=t, bias=bias, activation=activation)

        expected = jet.jet(lambda s, t, bias, after=after: after(sums * s * t + bias), moving, series)
        assert_close(jet.jet(ours, moving, series), expected, rtol=1e-4)
        assert_close(jax.jit(jet.jet, static_argnums=0)(ours, moving, series), expected, rtol=1e-4)


def test_taylor_mode_of_values(rng):
    """Of floats of 8 bits, whose coefficients are too: of small integers, so that all sums are exact."""
    a, b, da, db = (array(rng.integers(-3, 4, s), "float8_e4m3fn") for s in ((2, M, K), (K, N)) * 2)
    s = scale(rng, (2, M, 1))
    out, (first, second) = jet.jet(
        lambda a, b: jaxgemm.gemm(a, b, a_scale=s), (a, b), ([da, jnp.zeros_like(a)], [db, jnp.zeros_like(b)])
    )
    check(out, exact(a, b, s))
    check(first, exact(da, b, s) + exact(a, db, s))
    check(second, 2 * exact(da, db, s))


def test_linear_in_one_operand(operands, rng):
    """The transpose of the product, as a linear function of a scale or of the bias."""
    a, b, (s, t, bias), sums = operands
    ct, z = array(rng.standard_normal(sums.shape), np.float32), np.asarray(sums, np.float64)
    (of_s,) = jax.linear_transpose(lambda s: jaxgemm.gemm(a, b, a_scale=s, b_scale=t, alpha=2.0), s)(ct)
    check(of_s, 2 * (ct * z * np.asarray(t)).sum(-1, keepdims=True), 1e-5)
    (of_t,) = jax.linear_transpose(lambda t: jaxgemm.gemm(a, b, a_scale=s, b_scale=t), t)(ct)
    check(of_t, (ct * z * np.asarray(s)).sum((0, 1))[None], 1e-5)
    (of_bias,) = jax.linear_transpose(lambda x: jaxgemm.gemm(a, b, a_scale=s, bias=x), bias)(ct)
    check(of_bias, np.asarray(ct, np.float64).sum((0, 1)), 1e-5)
    x, gate, up = (y.astype(np.float32) for y in (a, b, b))
    (of_up,) = jax.linear_transpose(lambda w: jaxgemm.gated_gemm(x, gate, w, activation="relu"), up)(ct)
    want = jax.linear_transpose(lambda w: jax.nn.relu(x @ gate) * (x @ w), up)(ct)[0]
    assert_close(of_up, want, rtol=1e-4)
    with pytest.raises(NotImplementedError, match="tanh"):
        jax.linear_transpose(lambda s: jaxgemm.gemm(a, b, a_scale=s, activation="tanh"), s)(ct)


def test_integers_have_no_tangents(rng):
    a, b, s = values(rng, (2, M, K), "int8"), values(rng, (K, N), "int8"), scale(rng, (2, M, 1))
    none = [np.zeros(x.shape, jax.dtypes.float0) for x in (a, b)]
    product = lambda a, b, s: jaxgemm.gemm(a, b, a_scale=s)  # noqa: E731
    _, tangent = jax.jvp(product, (a, b, s), (*none, jnp.ones_like(s)))
    check(tangent, exact(a, b))
    out, back = jax.vjp(product, a, b, s)
    assert [x.dtype for x in back(out)] == [jax.dtypes.float0, jax.dtypes.float0, np.float32]


def test_checkpoints_keep_it_as_a_product(rng):
    a, b, s = values(rng, (2, M, K), "int8"), values(rng, (K, N), "int8"), scale(rng, (2, M, 1))
    for policy, kept in ((checkpoint_policies.dots_with_no_batch_dims_saveable, 1), (None, 2)):
        f = jax.checkpoint(lambda s, x: jnp.sin(jaxgemm.gemm(a, b, a_scale=s) * x).sum(), policy=policy)
        names = [eqn.primitive.name for eqn in equations(jax.grad(f, 1), s, np.float32(2))]
        assert sum(name.startswith("jaxgemm") for name in names) == kept
