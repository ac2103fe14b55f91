"""Who computes what ``auto`` is left, in programs over several devices: each of them decides for its part."""

from __future__ import annotations

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_close, assert_no_more, mesh, put, traffic

import jaxgemm
from jaxgemm.choice import rules, select
from jaxgemm.choice.resolve import Choice, resolve

#: Rows of x, of which each of eight devices has some; and the most that the kernel is chosen for by ``few``.
ROWS, FEW = 64, 16
W, DOWN = (24, 40), (40, 24)


@pytest.fixture(params=["few", "many"])
def by_kernel(request, monkeypatch) -> bool:
    """Whether "host" is what ``auto`` takes for a device's part; XLA's product is what it takes for the whole then.

    With "many" it is the other way about.
    """
    few = request.param == "few"

    def automatic(problem, device, _precision, _options):
        found = resolve("host", (), problem, device)
        assert isinstance(found, Choice)
        chosen = (problem.m <= FEW) == few
        return replace(found, why="a test") if chosen else Choice.xlas(rules.UNFIT, "a test")

    monkeypatch.setattr(select, "_automatic", automatic)
    return few


def calls(text: str) -> bool:
    """Whether a program, as JAX or XLA prints it, calls a kernel."""
    return bool(re.search(r"custom[-_]call.*jaxgemm_(gemm|gated|many)", text))


def fresh(function):
    """Jitted as a function of its own, as JAX knows what became of another test's."""
    return jax.jit(lambda *args: function(*args))


def mlp(product):
    return lambda x, up, down: product(jax.nn.gelu(product(x, up)), down)


def operands(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_rows(types, by_kernel, rng):
    """Data parallel: forward, backward, and what is sent."""
    on = mesh((8,), ("x",), types)
    arrays = operands(rng, (ROWS, W[0]), W, DOWN)
    with jax.set_mesh(on):
        placed = [put(x, on, spec) for x, spec in zip(arrays, (P("x"), P(), P()), strict=True)]
        forward = jax.jit(mlp(jaxgemm.gemm))
        assert calls(forward.lower(*placed).compile().as_text()) == by_kernel
        assert not traffic(forward, *placed).calls
        assert_close(forward(*placed), mlp(jnp.dot)(*(array(x, np.float64) for x in arrays)))

        def step(product):
            return jax.jit(jax.grad(lambda *args: jnp.sum(mlp(product)(*args) ** 2), (0, 1, 2)))

        assert traffic(step(jaxgemm.gemm), *placed) == traffic(step(jnp.dot), *placed)


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_partial_sums(types, by_kernel, rng):
    """A sharded contracted axis: devices multiply parts of all rows, and one all-reduce follows."""
    on = mesh((8,), ("x",), types)
    x, w = operands(rng, (ROWS, W[0]), W)
    with jax.set_mesh(on):
        placed = put(x, on, P(None, "x")), put(w, on, P("x"))
        dims = (((1,), (0,)), ((), ()))
        asked = {"out_sharding": P()} if types == "Explicit" else {}
        product = jax.jit(lambda x, w: jaxgemm.dot_general(x, w, dims, **asked))
        assert calls(product.lower(*placed).compile().as_text()) == (not by_kernel)
        assert traffic(product, *placed).calls == {"all-reduce": 1}
        assert_close(product(*placed), x.astype(np.float64) @ w)


def test_what_is_xla_s_stays_whole(by_kernel, rng):
    """Where shardings are types, a product that is XLA's on each device is not divided by us."""
    on = mesh((8,), ("x",), "Explicit")
    with jax.set_mesh(on):
        x, w = (put(x, on, spec) for x, spec in zip(operands(rng, (ROWS, W[0]), W), (P("x"), P()), strict=True))
        text = fresh(jaxgemm.gemm).lower(x, w).as_text()
        assert calls(text) == by_kernel
        assert ("manual_computation" in text) == by_kernel


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_shard_map(types, by_kernel, rng):
    """Inside of a shard_map over all axes a product is the device's own; over some of them it is XLA's."""
    on = mesh((4, 2), ("x", "y"), types)
    x, w = operands(rng, (ROWS, W[0]), W)
    with jax.set_mesh(on):
        x, w = put(x, on, P("x")), put(w, on, P())
        specs = {"mesh": on, "in_specs": (P("x"), P()), "out_specs": P("x")}
        whole = fresh(jax.shard_map(jaxgemm.gemm, **specs))
        assert calls(whole.lower(x, w).as_text()) == by_kernel
        assert_close(whole(x, w), np.asarray(x, np.float64) @ np.asarray(w))
        partly = fresh(jax.shard_map(jaxgemm.gemm, axis_names={"x"}, **specs))
        assert not calls(partly.lower(x, w).as_text())
        (product,) = jaxgemm.explain(partly, x, w).products
        assert product.kernel == "xla"
        assert product.decision.choice.rule == rules.DIVIDED.name


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_exported(types, by_kernel, rng):
    """XLA divides an exported program by itself, unless it says how operands are sharded."""
    on = mesh((8,), ("x",), types)
    with jax.set_mesh(on):
        placed = [put(x, on, s) for x, s in zip(operands(rng, (ROWS, W[0]), W), (P("x"), P()), strict=True)]
        exported = export.export(fresh(jaxgemm.gemm), disabled_checks=[_CALL])(*placed)
        assert calls(exported.mlir_module()) == (by_kernel and types == "Explicit")
        assert_close(exported.call(*placed), np.asarray(placed[0], np.float64) @ np.asarray(placed[1]))


_CALL = export.DisabledSafetyCheck.custom_call("jaxgemm_gemm")


def test_batch_of_experts(by_kernel, rng):
    on = mesh((8,), ("x",))
    x, w = operands(rng, (8, FEW, W[0]), (8, *W))
    placed = put(x, on, P("x")), put(w, on, P("x"))
    product = fresh(jaxgemm.matmul)
    assert calls(product.lower(*placed).compile().as_text()) == by_kernel
    assert not traffic(product, *placed).calls
    assert_close(product(*placed), x.astype(np.float64) @ w)


def test_products_that_are_composed(by_kernel, rng):
    """Pairs and lists of products are dense products of these devices, each with its own decision."""
    on = mesh((8,), ("x",))
    x, w = operands(rng, (ROWS, W[0]), W)
    x, w = put(x, on, P("x")), put(w, on, P())
    pair = fresh(jaxgemm.gated_gemm)
    assert calls(pair.lower(x, w, w).compile().as_text()) == by_kernel
    several = jax.jit(lambda x, w: jaxgemm.grouped_gemm([x, x], [w, w]))
    assert calls(several.lower(x, w).compile().as_text()) == by_kernel
    for product in several(x, w):
        assert_close(product, np.asarray(x, np.float64) @ np.asarray(w))


# --- What explain says for a GPU ------------------------------------------------------------------------------


def kinds(*args):
    found = jaxgemm.explain(*args, platform="cuda")
    return found, [(p.kernel, p.operands.split(" ")[0]) for p in found.products]


def bf16(*shape, sharding=None):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)


def test_explained_by_parts():
    """A product that is XLA's as a whole, and a kernel's on each of eight devices, with a block for each tile."""
    x, w = bf16(8192, 2048), bf16(2048, 1024)
    assert kinds(jaxgemm.gemm, x, w)[1] == [("xla", "bfloat16[8192,2048]")]
    on = mesh((8,), ("x",), "Explicit")
    with jax.set_mesh(on):
        x, w = (bf16(*a.shape, sharding=NamedSharding(on, spec)) for a, spec in ((x, P("x")), (w, P())))
        found, parts = kinds(jaxgemm.gemm, x, w)
        assert parts == [("sm90", "bfloat16[1024,2048]")]
        choice = found.products[0].decision.choice
        assert dict(zip(choice.kernel.options, choice.config, strict=True))["grid"] == 2
        assert not found.note

        # Of a sum over devices each adds up a part, before what follows the product.
        x = bf16(512, 8192, sharding=NamedSharding(on, P(None, "x")))
        w = bf16(8192, 512, sharding=NamedSharding(on, P("x")))
        dims = (((1,), (0,)), ((), ()))
        assert kinds(lambda x, w: jaxgemm.dot_general(x, w, dims, out_sharding=P()), x, w)[1] == [
            ("sm90", "bfloat16[512,1024]")
        ]


def test_explained_where_xla_divides():
    """What each device has is not known before XLA compiles, so the product is explained whole, and that is said."""
    on = mesh((8,), ("x",))
    x, w = bf16(8192, 2048, sharding=NamedSharding(on, P("x"))), bf16(2048, 1024, sharding=NamedSharding(on, P()))
    found, parts = kinds(jaxgemm.gemm, x, w)
    assert parts == [("xla", "bfloat16[8192,2048]")]
    assert "8 devices" in found.note
    assert "each device decides for its part" in str(found).splitlines()[0]

    def body(x, w):
        return jaxgemm.gemm(x, w), lax.psum(jnp.sum(x), "x")

    mapped = jax.shard_map(body, mesh=on, in_specs=(P("x"), P()), out_specs=(P("x"), P()))
    assert kinds(mapped, bf16(8192, 2048), bf16(2048, 1024))[1] == [("sm90", "bfloat16[1024,2048]")]


def test_a_kernel_by_name_is_not_explained_away():
    on = jax.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    partly = jax.shard_map(
        lambda x, w: jaxgemm.gemm(x, w), mesh=on, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"}
    )
    found, _ = kinds(partly, bf16(1024, 1000), bf16(1000, 500))
    assert [p.decision.choice.rule for p in found.products] == [rules.DIVIDED.name]


# --- Shardings that no operand's type tells ---------------------------------------------------------------------

TOLD = {
    "in_shardings": lambda put, f: jax.jit(f, in_shardings=(put("x", "y"), put("y"))),
    "in_shardings, axes together": lambda put, f: jax.jit(f, in_shardings=(put(("y", "x")), put(None, None))),
    "out_shardings": lambda put, f: jax.jit(f, out_shardings=put("y", "x")),
    "constraint": lambda put, f: jax.jit(lambda x, w: lax.with_sharding_constraint(f(x, w), put("x", "y"))),
}


@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("shape", [(4, 2), (2, 3)])
def test_told_where_the_program_begins_or_ends(shape, told, rng):
    """Of operands that are not placed. They are divided all the same, over meshes of any extents."""
    on = mesh(shape, ("x", "y"))
    x, w = operands(rng, (24, 12), (12, 24))

    def program(product):
        return TOLD[told](lambda *spec: NamedSharding(on, P(*spec)), product)

    ours = program(lambda x, w: jaxgemm.gemm(x, w, kernel="host"))
    assert "CustomSPMDPartitioning" in ours.lower(x, w).as_text()
    assert_close(ours(x, w), x.astype(np.float64) @ w)
    assert_no_more(traffic(ours, x, w), traffic(program(lambda x, w: jnp.dot(x, w)), x, w))
