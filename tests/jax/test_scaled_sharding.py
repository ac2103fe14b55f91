"""Scaled products of operands on several devices: what is sent, which shardings results have, and what explain says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_close, mesh, put, traffic
from scaled import check, exact, scale, values

import jaxgemm
from jaxgemm.choice import rules

BATCH, M, N, K = 8, 16, 24, 32
both = pytest.mark.parametrize("types", ["Auto", "Explicit"])

#: How a, b, their scales and the bias are sharded; and the sharding of the result where shardings are types.
PLACED = {
    "batches": (P("x"), P(), P("x"), P(), P(), P("x", None, None)),
    "batches and rows": (P("x", "y"), P(), P("x", "y"), P(), P(), P("x", "y", None)),
    "rows": (P(None, "x"), P(), P(None, "x"), P(), P(), P(None, "x", None)),
    "rows along both": (P(None, ("x", "y")), P(), P(None, ("x", "y")), P(), P(), P(None, ("x", "y"), None)),
    "columns": (P(), P(None, "y"), P(), P(None, "y"), P("y"), P(None, None, "y")),
    "batches and columns": (P("x"), P(None, "y"), P("x"), P(None, "y"), P("y"), P("x", None, "y")),
    "scales alone": (P(), P(), P("x"), P(None, "y"), P(), P("x", None, "y")),
}


def arrays(rng, dtype="int8"):
    bias = array(rng.standard_normal(N), np.float32)
    a, b = values(rng, (BATCH, M, K), dtype), values(rng, (K, N), dtype)
    return a, b, scale(rng, (BATCH, M, 1)), scale(rng, (1, N)), bias


def product(a, b, s, t, bias):
    return jaxgemm.gemm(a, b, a_scale=s, b_scale=t, bias=bias, activation="relu")


def wanted(a, b, s, t, bias):
    return np.maximum(exact(a, b, s, t) + np.asarray(bias), 0)


@both
@pytest.mark.parametrize("case", PLACED)
def test_nothing_is_sent(case, types, rng):
    *specs, out = PLACED[case]
    on, given = mesh(types=types), arrays(rng)
    placed = [put(x, on, spec) for x, spec in zip(given, specs, strict=True)]
    f = jax.jit(product)
    assert not traffic(f, *placed).calls
    got = f(*placed)
    check(got, wanted(*given))
    if types == "Explicit":
        assert got.sharding.spec == out
        assert jax.typeof(product(*placed)).sharding.spec == out


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
def test_sums_are_added_up_before_they_are_scaled(dtype, rng):
    """As many bytes as lax sends, for rows of several matrices too."""
    on, given = mesh(), arrays(rng, dtype)
    specs = P("x", None, "y"), P("y"), P("x"), P(), P()
    placed = [put(x, on, spec) for x, spec in zip(given, specs, strict=True)]
    sent = traffic(jax.jit(product), *placed)
    assert sent.calls == {"all-reduce": 1}
    sums = np.int32 if dtype == "int8" else np.float32
    dot = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=sums))
    assert sent.total == traffic(dot, *placed[:2]).total
    check(jax.jit(product)(*placed), wanted(*given), 2.0**-19)


def test_sums_over_devices_where_shardings_are_types(rng):
    """Ambiguous, as without scales; of one operand's part it is not."""
    on, given = mesh(types="Explicit"), arrays(rng)
    a, b, *rest = given
    rest = [put(x, on, P()) for x in rest]
    a = put(a, on, P("x", None, "y"))
    for refused in (lambda a, b, *_: jaxgemm.gemm(a, b), product):
        with pytest.raises(Exception, match="Contracting dimensions are sharded"):
            refused(a, put(b, on, P("y")), *rest)
    got = jax.jit(product)(a, put(b, on, P()), *rest)
    assert got.sharding.spec == P("x", None, None)
    check(got, wanted(*given))


def test_shardings_that_contradict_each_other(rng):
    on, (a, b, s, *_) = mesh(types="Explicit"), arrays(rng)
    with pytest.raises(Exception, match="incompatible shardings"):
        jaxgemm.gemm(put(a, on, P("x")), put(b, on, P()), a_scale=put(s, on, P("y")))


@both
def test_derivatives(types, rng):
    on, given = mesh(types=types), arrays(rng)
    placed = [put(x, on, spec) for x, spec in zip(given, PLACED["batches and columns"], strict=False)]
    weights = array(rng.standard_normal((BATCH, M, N)), np.float32)

    def loss(moving, a, b, weights):
        return (weights * product(a, b, *moving)).sum()

    f = jax.jit(jax.grad(loss))
    got = f(tuple(placed[2:]), *placed[:2], put(weights, on, P("x", None, "y")))
    assert_close(got, f(given[2:], *given[:2], weights), rtol=1e-4)
    assert not traffic(f, tuple(placed[2:]), *placed[:2], put(weights, on, P("x", None, "y"))).calls["all-gather"]


@both
def test_mapped(types, rng):
    on, given = mesh(types=types), arrays(rng)
    placed = [put(x, on, spec) for x, spec in zip(given, PLACED["batches and columns"], strict=False)]
    f = jax.jit(jax.vmap(product, in_axes=(0, None, 0, None, None)))
    assert not traffic(f, *placed).calls
    got = f(*placed)
    check(got, wanted(*given))
    assert types == "Auto" or got.sharding.spec == P("x", None, "y")
    each = jax.jit(jax.vmap(lambda a, s: jaxgemm.gemm(a, placed[1], a_scale=s)))
    numbers = put(scale(rng, (BATCH,)), on, P("x"))
    check(each(placed[0], numbers), exact(given[0], given[1], np.asarray(numbers)[:, None, None]))


@both
@pytest.mark.parametrize("names", [{"x"}, {"x", "y"}], ids=["some axes", "all axes"])
def test_inside_of_a_shard_map(types, names, rng):
    on, given = mesh(types=types), arrays(rng)
    specs = P("x"), P(), P("x"), P(), P()
    f = jax.jit(jax.shard_map(product, mesh=on, in_specs=specs, out_specs=P("x"), axis_names=names))
    placed = [put(x, on, spec) for x, spec in zip(given, specs, strict=True)]
    check(f(*placed), wanted(*given))
    (found,) = jaxgemm.explain(f, *placed, platform="cuda").products
    assert found.decision.choice.rule == (rules.SCALED_ONE_LAUNCH if len(names) == 2 else rules.DIVIDED).name
    f.trace(*placed).lower(lowering_platforms=("cuda",))
    gradient = jax.jit(jax.grad(lambda moving, a, b: f(a, b, *moving).sum()))
    theirs = jax.grad(lambda moving, a, b: product(a, b, *moving).sum())(given[2:], *given[:2])
    assert_close(gradient(tuple(placed[2:]), *placed[:2]), theirs, rtol=1e-4)


# --- What explain says -----------------------------------------------------------------------------------------


def described(f, *args):
    found = jaxgemm.explain(f, *args, platform="cuda")
    (one,) = found.products
    return found, one


WIDE = ((BATCH, 1024, 512), "int8"), ((512, 2048), "int8"), ((BATCH, 1024, 1), "float32"), ((1, 2048), "float32")
WIDE += (((2048,), "float32"),)


@both
@pytest.mark.parametrize("jit", [False, True])
def test_explained_on_several_devices(types, jit):
    """jnp scales what the devices multiply. Of which shape that is, is known where shardings are types."""
    on = mesh(types=types)
    specs = PLACED["batches and columns"][:5]
    structs = [jax.ShapeDtypeStruct(*x, sharding=NamedSharding(on, spec)) for x, spec in zip(WIDE, specs, strict=True)]
    found, one = described(jax.jit(product) if jit else product, *structs)
    parts = "int8[2,1024,512] x int8[512,1024]" if types == "Explicit" else "int8[8,1024,512] x int8[512,2048]"
    assert (one.operands, one.result, one.kernel) == (parts, "int32", "sm90")
    assert dict(zip(one.decision.choice.kernel.options, one.decision.choice.config, strict=True))["grid"] == 2
    assert one.scaled.startswith(
        "applied by jnp: one launch is on one device, and this program is divided over several"
    )
    assert ("8 devices" in found.note) == (types == "Auto")
    # What is lowered is what is said.
    text = jax.jit(product).trace(*structs).lower(lowering_platforms=("cuda",)).as_text()
    assert "jaxgemm_scaled_gemm" not in text
    assert types == "Auto" or "@jaxgemm_gemm(" in text


def test_explained_on_one_device():
    structs = [jax.ShapeDtypeStruct(*x) for x in WIDE]
    _, one = described(product, *structs)
    assert (one.result, one.scaled) == ("float32", "")
    one_device = mesh((1,), ("x",))
    structs = [jax.ShapeDtypeStruct(*x, sharding=NamedSharding(one_device, P())) for x in WIDE]
    assert described(jax.jit(product), *structs)[1].scaled == ""


@both
def test_other_kinds_that_one_launch_computes_on_one_device_alone(types):
    """Gated pairs and lists of products are explained as composed, too."""
    on = mesh(types=types)

    def of(*shape, rows=None):
        return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(on, P(rows)))

    x, w = of(4096, 1024, rows="x"), of(1024, 4096)
    found = jaxgemm.explain(jaxgemm.gated_gemm, x, w, w, platform="cuda").products
    assert [p.gated.split(",")[0] for p in found] == ["gate", "up"]
    assert all(rules.DIVIDED.name in p.gated for p in found)
    alone = [jax.ShapeDtypeStruct(y.shape, y.dtype) for y in (x, w, w)]
    assert len(jaxgemm.explain(jaxgemm.gated_gemm, *alone, platform="cuda").products) == 1
    small = of(256, 128, rows="x"), of(128, 256)
    found = jaxgemm.explain(lambda x, w: jaxgemm.grouped_gemm([x, x], [w, w]), *small, platform="cuda").products
    assert all("by itself" in p.many for p in found)
    assert len(found) == 2
