"""Grouped products with what follows them, and gated pairs, over several devices: each computes with what it has."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from grouped import GROUPS, SIZES, K, M, N, arrays
from grouped_layers import LAYERS, gradients, in_turn, layers
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_close, mesh, put, traffic

import jaxgemm
from jaxgemm.kernels import find_kernel

#: Shardings of x and of weights, that of the result if it is asked for, and the collectives.
SHARDED = {
    "rows": (P("x"), P(), None, {}),
    "rows over all devices": (P(("x", "y")), P(), None, {}),
    "columns": (P(), P(None, None, "x"), None, {}),
    "rows and columns": (P("x"), P(None, None, "y"), None, {}),
    "contracted": (P(None, "x"), P(None, "x"), None, {"all-reduce": 1}),
    "contracted, rows": (P("x", "y"), P(None, "y"), None, {"all-reduce": 1}),
    "contracted, scattered": (P(None, "x"), P(None, "x"), P("x"), None),
    "contracted, scattered by columns": (P("y", "x"), P(None, "x"), P("y", "x"), None),
    "groups": (P(), P("x"), None, {"all-reduce": 1}),
    "groups and columns": (P(), P("x", None, "y"), None, {"all-reduce": 1}),
    "groups and rows": (P("y"), P("x"), None, {"all-reduce": 1}),
    "groups, scattered": (P(), P("x"), P("x"), None),
    "groups, contracted": (P(None, "y"), P("x", "y"), None, None),
}


def beside(layer, weights):
    """The sharding of the operand that follows the weights, where these are sharded so."""
    group, _, columns = (*weights, None, None, None)[:3]
    return weights if layer is LAYERS["gated"] else P(group, columns)


@layers
@pytest.mark.parametrize("name", SHARDED)
def test_sharded(layer, name, rng):
    x, w, out, calls = SHARDED[name]
    on, args = mesh(), arrays(rng, *layer.shapes(M, K, N, GROUPS))
    operands = [put(v, on, spec) for v, spec in zip(args, (x, w, beside(layer, w)), strict=True)]
    program = jax.jit(layer.ours, out_shardings=None if out is None else NamedSharding(on, out))
    for sizes in SIZES.values():
        assert_close(program(*operands, array(sizes, np.int32)), layer.exact(*args, sizes))
    # Traced: sizes that XLA knows it would fold.
    sent = traffic(program, *operands, array(SIZES["all"], np.int32)).calls
    assert calls is None or sent == calls
    assert calls is None or not sent["all-gather"]
    if in_turn(name, SHARDED, layer):
        gradient = jax.jit(gradients(lambda *a: layer.ours(*a, jnp.asarray(SIZES["fewer"]))))
        assert_close(gradient(*operands), gradients(partial(layer.exact, sizes=SIZES["fewer"]))(*args), 1e-4)


@layers
@pytest.mark.parametrize("offset", [3, -2, 2**31 - 1])
def test_weights_of_some_groups(layer, offset, rng):
    on, args = mesh(), arrays(rng, *layer.shapes(M, K, N, 4))
    operands = [put(v, on, spec) for v, spec in zip(args, (P("y"), P("x"), P("x")), strict=True)]
    program = jax.jit(lambda *a: layer.ours(*a[:3], jnp.asarray(SIZES["all"]), group_offset=a[3]))
    assert_close(program(*operands, array([offset])), layer.exact(*args, SIZES["all"], offset))


@layers
@pytest.mark.parametrize("specs", [(P("x"), P()), (P(), P("x")), (P("y", "x"), P(None, "x")), (P("x"), P("x", "y"))])
def test_extents_that_do_not_divide(layer, specs, rng):
    on, sizes = mesh(), [7, 3, 0, 9, 4]
    args = arrays(rng, *layer.shapes(30, 10, 21, 5))

    def product(*args):
        given = zip(args, (*specs, beside(layer, specs[1])), strict=True)
        return layer.ours(
            *(lax.with_sharding_constraint(v, NamedSharding(on, s)) for v, s in given), jnp.asarray(sizes)
        )

    assert_close(jax.jit(product)(*args), layer.exact(*args, sizes))


@layers
@pytest.mark.parametrize("name", ["rows", "groups", "groups and rows", "contracted"])
def test_groups_are_isolated(layer, name, rng):
    """A sum over devices does not bring one group's NaN or infinity to the rows of others."""
    x, w, *_ = SHARDED[name]
    on, args, sizes = mesh(), arrays(rng, *layer.shapes(M, K, N, GROUPS)), SIZES["all"]
    want = np.asarray(layer.exact(*args, sizes))
    args[0][60:], args[1][1], args[2][4] = np.inf, np.nan, np.inf  # of groups of rows 60 to 63, none, and 28 to 36
    operands = [put(v, on, spec) for v, spec in zip(args, (x, w, beside(layer, w)), strict=True)]
    got = np.asarray(jax.jit(layer.ours)(*operands, array(sizes)))
    spoilt = np.zeros(M, bool)
    spoilt[60:] = spoilt[28:37] = True
    assert not np.isfinite(got[60:]).all()
    assert not np.isfinite(got[28:37]).all()
    assert_close(got[~spoilt], want[~spoilt])


@layers
def test_a_batch(layer, rng):
    """By vmap, sharded along the axis that is mapped, or along rows and columns."""
    on, sizes = mesh(), np.asarray([SIZES["all"], SIZES["fewer"], SIZES["more"], SIZES["all"]], np.int32)
    x, w, extra = arrays(rng, *layer.shapes(M, K, N, GROUPS))
    xs = np.stack([x, -x, 2 * x, x / 2])
    program = jax.jit(jax.vmap(layer.ours, (0, None, None, 0)))
    want = jnp.stack([layer.exact(one, w, extra, s) for one, s in zip(xs, sizes, strict=True)])
    for first, weights in ((P("x"), P()), (P("x", "y"), P()), (P(None, "x"), P(None, None, "y")), (P("y"), P("x"))):
        operands = put(xs, on, first), put(w, on, weights), put(extra, on, beside(layer, weights))
        given = put(sizes, on, P(first[0]))
        assert_close(program(*operands, given), want)
        assert traffic(program, *operands, given).calls == ({"all-reduce": 1} if weights == P("x") else {})


@layers
@pytest.mark.parametrize("check_vma", [True, False])
def test_inside_of_shard_map(layer, check_vma, rng):
    """Each device says by group_offset which experts it has."""
    args = arrays(rng, *layer.shapes(M, K, N, GROUPS))
    sizes = array(SIZES["fewer"], np.int32)

    def local(x, w, extra):
        first = lax.axis_index("x") * w.shape[0]
        return lax.psum(layer.ours(x, w, extra, sizes, group_offset=first), "x")

    mapped = jax.shard_map(local, mesh=mesh(), in_specs=(P(), P("x"), P("x")), out_specs=P(), check_vma=check_vma)
    assert_close(jax.jit(mapped)(*args), layer.exact(*args, SIZES["fewer"]))
    assert_close(jax.jit(gradients(mapped))(*args), gradients(partial(layer.exact, sizes=SIZES["fewer"]))(*args), 1e-4)
    assert traffic(mapped, *args).calls == {"all-reduce": 1}


def partly_mapped(product):
    """With rows by hand, and columns by XLA."""
    specs = P("x"), P(), P(), P("x")
    return jax.shard_map(
        lambda *a: product(*a[:3], a[3][0]), mesh=mesh(), in_specs=specs, out_specs=P("x"), axis_names={"x"}
    )


@layers
def test_inside_of_shard_map_over_some_axes(layer, rng):
    on, args = mesh(), arrays(rng, *layer.shapes(M, K, N, GROUPS))
    sizes = rng.integers(0, 4, (4, GROUPS)).astype(np.int32)
    weights = P(None, None, "y")
    operands = [put(v, on, s) for v, s in zip(args, (P("x"), weights, beside(layer, weights)), strict=True)]
    parts = [layer.exact(args[0][16 * i : 16 * i + 16], *args[1:], sizes[i]) for i in range(4)]
    assert_close(jax.jit(partly_mapped(layer.ours))(*operands, sizes), jnp.concatenate(parts))


@layers
def test_exported_for_several_devices(layer, rng):
    on, args = mesh(), arrays(rng, *layer.shapes(M, K, N, GROUPS))
    operands = [put(v, on, spec) for v, spec in zip(args, (P("y"), P("x"), P("x")), strict=True)]
    sizes = array(SIZES["all"], np.int32)
    exported = export.deserialize(export.export(jax.jit(layer.ours))(*operands, sizes).serialize())
    assert_close(jax.jit(exported.call)(*operands, sizes), layer.exact(*args, SIZES["all"]))


# --- Shardings that are types ---------------------------------------------------------------------------------

#: Shardings of x, weights and result, and whether that is to be asked for.
EXPLICIT = {
    "rows": (P("x"), P(), P("x", None), False),
    "columns": (P(), P(None, None, "x"), P(None, "x"), False),
    "rows and columns": (P("x"), P(None, None, "y"), P("x", "y"), False),
    "contracted": (P(None, "x"), P(None, "x"), P(None, None), True),
    "contracted, scattered": (P(None, "x"), P(None, "x"), P("x", None), True),
    "groups": (P(), P("x"), P(None, None), True),
    "groups and columns": (P("y"), P("x"), P("y", None), True),
    "groups, scattered": (P("y"), P("x"), P(("y", "x"), None), True),
}


@layers
@pytest.mark.parametrize("name", EXPLICIT)
def test_explicit(layer, name, rng):
    x, w, out, ask = EXPLICIT[name]
    args, on = arrays(rng, *layer.shapes(M, K, N, GROUPS)), mesh(types="Explicit")
    with jax.set_mesh(on):
        operands = [put(v, on, spec) for v, spec in zip(args, (x, w, beside(layer, w)), strict=True)]
        sizes = array(SIZES["fewer"], np.int32)
        if ask:
            with pytest.raises(Exception, match="out_sharding"):
                jax.jit(layer.ours)(*operands, sizes)
        program = partial(layer.ours, **({"out_sharding": out} if ask else {}))
        got = jax.jit(program)(*operands, sizes)
        assert jax.typeof(got).sharding.spec == out
        assert_close(got, layer.exact(*args, SIZES["fewer"]))
        if not in_turn(name, EXPLICIT, layer):
            return
        back = jax.jit(gradients(lambda *a: program(*a, sizes)))(*operands)
        assert [jax.typeof(v) for v in back] == [jax.typeof(v) for v in operands]
        assert_close(back, gradients(partial(layer.exact, sizes=SIZES["fewer"]))(*args), 1e-4)


@layers
def test_explicit_vmap(layer, rng):
    x, w, extra = arrays(rng, *layer.shapes(M, K, N, GROUPS))
    on, sizes = mesh(types="Explicit"), array(SIZES["all"], np.int32)
    xs = np.stack([x, -x, 2 * x, x / 2])
    with jax.set_mesh(on):
        weights = P(None, None, "y")
        operands = put(xs, on, P("x")), put(w, on, weights), put(extra, on, beside(layer, weights))
        program = jax.vmap(lambda *a: layer.ours(*a, sizes), (0, None, None))
        got, back = jax.jit(lambda *a: (program(*a), gradients(program)(*a)))(*operands)
        assert jax.typeof(got).sharding.spec == P("x", None, "y")
        assert_close(got, jnp.stack([layer.exact(one, w, extra, SIZES["all"]) for one in xs]))
        assert [jax.typeof(v) for v in back] == [jax.typeof(v) for v in operands]


# --- Which kernel ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no CUDA kernels")
@layers
@pytest.mark.parametrize("given", [{}, {"kernel": "sm90"}], ids=str)
def test_a_shard_map_over_all_of_the_mesh_calls_the_kernel(layer, given):
    shapes = layer.shapes(512, 256, 384, 8)
    args = [*(jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes), jax.ShapeDtypeStruct((8,), jnp.int32)]
    specs = P(), P("x"), P("x"), P()
    local = lambda *a: lax.psum(layer.ours(*a, **given, group_offset=2 * lax.axis_index("x")), "x")  # noqa: E731
    mapped = jax.jit(jax.shard_map(local, mesh=mesh(), in_specs=specs, out_specs=P()))
    text = mapped.trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("@jaxgemm") == text.count(f"@{layer.target}(") == 1


@layers
@pytest.mark.parametrize("given", [{"kernel": "sm90"}, {"batch_invariant": True}], ids=str)
def test_a_kernel_is_refused_where_xla_divides_the_program_by_itself(layer, given):
    """As no rule of ours is asked there; on a machine without its device, because of that."""
    args = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in layer.shapes(512, 256, 384, 8)]
    args.append(jax.ShapeDtypeStruct((4, 8), jnp.int32))
    mapped = jax.jit(partly_mapped(partial(layer.ours, **given)))
    divided = "XLA divides this program over several devices by itself"
    why = divided if find_kernel("sm90").built else "this build has none"
    with pytest.raises(jaxgemm.UnsupportedError, match=why):
        mapped.trace(*args).lower(lowering_platforms=("cuda",))
