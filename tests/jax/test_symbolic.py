"""Extents that are symbols while a program is exported: XLA's product, or an error that says why."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export

import jaxgemm

CHECK = export.DisabledSafetyCheck.custom_call("jaxgemm_gemm")


def gated(x, w):
    return jaxgemm.gated_gemm(x, w, 2 * w)


def epilogue(x, w):
    return jaxgemm.gemm(x, w, x @ w, alpha=2.0, beta=0.5, bias=w[0], activation="gelu")


def gradients(x, w):
    return jax.grad(lambda *args: jnp.sum(jaxgemm.gemm(*args, activation="tanh")), (0, 1))(x, w)


def layer(x, w):
    return jax.nn.silu(x @ w) * (x @ (2 * w)) + w[0]


#: name: (function, shapes as symbols, shapes as numbers)
PROGRAMS = {
    "rows": (jaxgemm.gemm, ("m, 64", "64, 32"), ((3, 64), (64, 32))),
    "every extent": (jaxgemm.gemm, ("m, k", "k, n"), ((3, 5), (5, 2))),
    "epilogue": (epilogue, ("m, k", "k, n"), ((3, 5), (5, 2))),
    "vectors": (jaxgemm.matmul, ("k", "k"), ((5,), (5,))),
    "batches": (jaxgemm.matmul, ("b, m, k", "b, k, n"), ((4, 3, 5), (4, 5, 2))),
    "batches that broadcast": (jaxgemm.matmul, ("b, 1, m, k", "c, k, n"), ((4, 1, 3, 5), (6, 5, 2))),
    "dot_general": (
        lambda x, w: jaxgemm.dot_general(x, w, (((2, 1), (0, 1)), ((0,), (2,)))),
        ("b, m, k", "k, m, b"),
        ((4, 3, 5), (5, 3, 4)),
    ),
    "vmap": (jax.vmap(jaxgemm.gemm, (0, None)), ("b, m, k", "k, n"), ((4, 3, 5), (5, 2))),
    "gradients": (gradients, ("m, k", "k, n"), ((3, 5), (5, 2))),
    "gated": (gated, ("b, m, k", "k, n"), ((4, 3, 5), (5, 2))),
    "override": (jaxgemm.override(layer), ("b, m, k", "k, n"), ((4, 3, 5), (5, 2))),
    "override by name": (jaxgemm.override(layer, kernel="host"), ("b, m, k", "k, n"), ((4, 3, 5), (5, 2))),
}


def symbols(specs, dtype=jnp.float32):
    scope = export.SymbolicScope()
    return [jax.ShapeDtypeStruct(export.symbolic_shape(spec, scope=scope), dtype) for spec in specs]


@pytest.mark.parametrize("name", PROGRAMS)
def test_exported(name, rng):
    function, specs, shapes = PROGRAMS[name]
    args = [array(rng.standard_normal(shape), np.float32) for shape in shapes]
    got = export.export(jax.jit(function))(*symbols(specs)).call(*args)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(function(*args)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("platforms", [["cuda"], ["cpu", "cuda"]], ids="+".join)
@pytest.mark.parametrize("name", PROGRAMS)
def test_exported_for_cuda(name, platforms, dtype):
    function, specs, _ = PROGRAMS[name]
    with jax.default_matmul_precision("highest"):
        exported = export.export(jax.jit(function), platforms=platforms)(*symbols(specs, dtype))
    assert "jaxgemm_gemm" not in exported.mlir_module()


def test_flax_layers_are_exported():
    nnx = pytest.importorskip("flax.nnx")
    from jaxgemm.flax.nnx import LinearGeneral

    graph, state = nnx.split(LinearGeneral((8,), (4,), activation="relu", rngs=nnx.Rngs(0)))
    rows = symbols(["b, m, 8"])
    exported = export.export(jax.jit(lambda x: nnx.merge(graph, state)(x)), platforms=["cpu", "cuda"])(*rows)
    x = jnp.ones((2, 3, 8), jnp.float32)
    np.testing.assert_allclose(exported.call(x), nnx.merge(graph, state)(x), rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_explained(name, platform, dtype):
    function, specs, _ = PROGRAMS[name]
    with jax.default_matmul_precision("highest"):
        found = jaxgemm.explain(function, *symbols(specs, dtype), platform=platform)
    assert found.products or found.left
    assert all(product.kernel == "xla" for product in found.products)
    assert "symbolic" in str(found)


def test_the_explanation_names_the_extents():
    found = jaxgemm.explain(epilogue, *symbols(("m, 8", "8, n"), jnp.bfloat16), platform="cuda")
    why = "symbolic extents (m, n), and kernels are chosen by extents that are known"
    assert str(found.products[0]).splitlines() == [
        "bfloat16[m,8] x bfloat16[8,n] -> bfloat16",
        f"  kernel     xla: {why}",
        "  rule       symbolic-extents",
        "  epilogue   gelu(2 * a b + 0.5 * c + bias), written in jnp, which XLA may fuse",
    ]
    named = jaxgemm.explain(lambda x, w: jaxgemm.gemm(x, w, kernel="xla"), *symbols(("m, 8", "8, n")))
    assert named.products[0].decision.choice.why == "XLA's product was asked for by name"


REFUSED = {
    "kernel 'simt'": lambda x, w: jaxgemm.gemm(x, w, kernel="simt"),
    "kernel 'host'": lambda x, w: jax.grad(lambda x: jnp.sum(jaxgemm.matmul(x, w, kernel="host")))(x),
    "batch_invariant": lambda x, w: jaxgemm.gemm(x, w, batch_invariant=True),
    "kernel 'tiled'": lambda x, w: jaxgemm.gated_gemm(x, w, w, kernel="tiled"),
    "kernel 'sm90'": lambda x, w: jaxgemm.gated_gemm(x, w, w, kernel="sm90"),
}


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("asked", REFUSED)
def test_what_is_asked_for_by_name_is_refused(asked, platform):
    args, message = symbols(("m, 8", "8, n")), rf"{asked}: symbolic extents \(m, n\).*kernel 'auto'"
    with pytest.raises(jaxgemm.UnsupportedError, match=message):
        export.export(jax.jit(REFUSED[asked]), platforms=[platform], disabled_checks=[CHECK])(*args)
    with pytest.raises(jaxgemm.UnsupportedError, match=message):
        jaxgemm.explain(REFUSED[asked], *args, platform=platform)


def test_products_of_derivatives_are_left_to_xla():
    """What is derived from a product by name takes that kernel where it can, and XLA's product where not."""

    def transposed(ct, w):
        (out,) = jax.linear_transpose(lambda x: jaxgemm.gemm(x, w, kernel="host"), x)(ct)
        return out

    x, ct, w = symbols(("m, 8", "m, 4", "8, 4"))
    exported = export.export(jax.jit(transposed))(ct, w)
    np.testing.assert_array_equal(exported.call(*(jnp.ones(s, jnp.float32) for s in ((3, 4), (8, 4)))), 4.0)
