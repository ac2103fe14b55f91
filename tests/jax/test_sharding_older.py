"""Programs that JAX's older partitioner divides, which asks for a result's sharding instead of reading a rule."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh

import jaxgemm

X, W, SIZES = (8, 4), (2, 4, 4), (2,)


@pytest.fixture(autouse=True)
def older():
    name = "jax_use_shardy_partitioner"
    if not hasattr(jax.config, name):
        pytest.skip("this JAX has one partitioner")
    before = getattr(jax.config, name)
    try:
        jax.config.update(name, False)
    except ValueError:
        pytest.skip("this JAX has one partitioner")
    yield
    jax.config.update(name, before)


def gated(x, w, sizes, *, product):
    return jax.nn.silu(product(x, w, sizes)) * product(x, w, sizes)


#: Ours, and the same by lax.
PRODUCTS = {
    "gemm": (lambda x, w, _: jaxgemm.gemm(x, w[0]), lambda x, w, _: x @ w[0]),
    "gemm, host": (lambda x, w, _: jaxgemm.gemm(x, w[0], kernel="host"), lambda x, w, _: x @ w[0]),
    "gated, host": (
        lambda x, w, _: jaxgemm.gated_gemm(x, w[0], w[1], kernel="host"),
        lambda x, w, _: jax.nn.silu(x @ w[0]) * (x @ w[1]),
    ),
    "list, host": (lambda x, w, _: jaxgemm.grouped_gemm([x], [w[0]], kernel="host")[0], lambda x, w, _: x @ w[0]),
    "rows": (jaxgemm.ragged_dot, lax.ragged_dot),
    "rows, xla": (lambda *a: jaxgemm.ragged_dot(*a, kernel="xla"), lax.ragged_dot),
    "rows, relu": (
        lambda *a: jaxgemm.ragged_dot(*a, activation="relu"),
        lambda *a: jax.nn.relu(lax.ragged_dot(*a)),
    ),
    "gated rows": (
        lambda x, w, sizes: jaxgemm.ragged_gated(x, w, w, sizes),
        lambda *a: gated(*a, product=lax.ragged_dot),
    ),
    "override": (jaxgemm.override(lax.ragged_dot), lax.ragged_dot),
    "override, host": (jaxgemm.override(lambda x, w, _: x @ w[0], kernel="host"), lambda x, w, _: x @ w[0]),
}


@pytest.mark.parametrize("specs", [(P("a"), P()), (P(None, "a"), P(None, "a")), (P(), P(None, None, "a"))], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_results_and_gradients_are_lax(name, specs, rng):
    ours, theirs = PRODUCTS[name]
    devices = mesh((2,), ("a",))
    x, w = (
        jax.device_put(array(rng.standard_normal(shape), np.float32), NamedSharding(devices, spec))
        for shape, spec in zip((X, W), specs, strict=True)
    )
    sizes = jax.device_put(array([3, 5]), NamedSharding(devices, P()))

    def both(function):
        value = jax.value_and_grad(lambda x, w, s: jnp.sum(jnp.sin(function(x, w, s))), (0, 1))
        return jax.jit(lambda *a: (function(*a), value(*a)))(x, w, sizes)

    jax.tree.map(lambda got, e: np.testing.assert_allclose(got, e, rtol=2e-5, atol=2e-5), both(ours), both(theirs))
