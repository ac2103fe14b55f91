"""gated_gemm by precision, and with rows that depend on no other row."""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jaxprs import equations
from meshes import assert_close
from pairs import exact

import jaxgemm
from jaxgemm import gated_gemm
from jaxgemm.kernels import find_kernel
from jaxgemm.precision import canonical
from jaxgemm.products.dense import gemm_p

kernels = pytest.mark.parametrize("kernel", ["auto", "host"])
EVERY = range(3)
EPS = {"float32": 2e-5, "bfloat16": 2e-2}


def operands(rng, dtype, rows=5, k=12, n=7):
    shapes = (rows, k), (k, n), (k, n)
    return tuple(array(rng.standard_normal(s) / (1 if i == 0 else k**0.5), dtype) for i, s in enumerate(shapes))


@pytest.mark.parametrize("precision", ["highest", "F32_F32_F32", None])
def test_precision_is_that_of_both_products(precision, rng):
    args = operands(rng, "float32")
    gated = partial(gated_gemm, precision=precision, kernel="host")
    assert_close(jax.jit(gated)(*args), exact(*args), rtol=EPS["float32"])
    gradient = jax.grad(lambda *x: jnp.sum(gated(*x)), EVERY)
    (eqn,) = jax.make_jaxpr(gated)(*args).jaxpr.eqns
    found = [eqn, *(eqn for eqn in equations(gradient, *args) if eqn.primitive is gemm_p)]
    assert {eqn.params["precision"] for eqn in found} == {canonical(precision)}


def test_a_precision_that_the_kernel_does_not_keep(rng):
    args = operands(rng, "float32")
    with pytest.raises(jaxgemm.UnsupportedError, match="BF16_BF16_F32_X3"):
        gated_gemm(*args, precision="BF16_BF16_F32_X3", kernel="host")


@kernels
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_that_depend_on_no_other_row(kernel, dtype, rng):
    x, gate, up = operands(rng, dtype, rows=67, k=70, n=20)
    gated = partial(gated_gemm, kernel=kernel, batch_invariant=True)
    whole = gated(x, gate, up)
    assert_close(whole, exact(x, gate, up), rtol=EPS[dtype])
    for rows in (slice(0, 1), slice(3, 8), slice(40, 67)):
        np.testing.assert_array_equal(gated(x[rows], gate, up), whole[rows])
    np.testing.assert_array_equal(
        jax.vmap(gated, (0, None, None))(x[:66].reshape(6, 11, -1), gate, up).reshape(66, -1), whole[:66]
    )


def test_each_product_of_an_invariant_pair_is_by_itself(rng):
    args = operands(rng, "bfloat16")
    for platform in ("cpu", "cuda") if find_kernel("sm90").built else ("cpu",):
        found = jaxgemm.explain(partial(gated_gemm, batch_invariant=True), *args, platform=platform).products
        assert [p.decision.choice.rule for p in found] == ["batch-invariant"] * 2
        assert [p.gated.split(",")[0] for p in found] == ["gate", "up"]
    grads = jax.grad(lambda *x: jnp.sum(gated_gemm(*x, batch_invariant=True).astype(jnp.float32)), EVERY)(*args)
    assert [g.shape for g in grads] == [v.shape for v in args]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"precision": "exact"}, "precision: got 'exact', expected one of default, high, highest, "),
        (
            {"kernel": "xla", "batch_invariant": True},
            "batch_invariant: XLA's products do not promise it, got kernel='xla'",
        ),
    ],
)
def test_message(options, text, rng):
    with pytest.raises(ValueError, match=re.escape(text)):
        gated_gemm(*operands(rng, "float32"), **options)
