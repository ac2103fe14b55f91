"""``vmap`` along a sharded axis: it stays sharded, and nothing is gathered."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from meshes import assert_close, assert_no_more, mesh, put, traffic

import jaxgemm

kernels = pytest.mark.parametrize("kernel", ["auto", "host"])
MATRIX = (((1,), (0,)), ((), ()))


def compare(ours, theirs, *args):
    """The same values and types as the other, and no more communication."""
    got, expected = jax.jit(ours)(*args), jax.jit(theirs)(*args)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)
    assert_close(got, expected)
    assert_no_more(traffic(ours, *args), traffic(theirs, *args))
    return got


def arrays(rng, *shapes):
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def placed(values, axes, specs, on):
    """Operands with these shardings, mapped or not; one that is not is the first along the mapped axis."""
    return [
        put(x if i == 0 else x[0], on, P(*(spec if i == 0 else spec[1:])))
        for x, i, spec in zip(values, axes, specs, strict=True)
    ]


def compare_epilogues(ours, theirs, axes, transform, values, specs):
    """Both mapped over these axes, or the gradients of both."""
    on = mesh(types="Explicit")
    with jax.set_mesh(on):
        programs = [ours, theirs]
        if transform == "gradient":
            programs = [jax.grad(lambda *x, f=f: jnp.sum(f(*x)), range(len(values))) for f in programs]
        compare(*(jax.vmap(f, axes) for f in programs), *placed(values, axes, specs, on))


#: name: (in_axes, out_axes), for operands of axes (mapped, rows, k) and (mapped, k, columns)
AXES = {"rows": ((0, None), 0), "columns": ((None, 0), 0), "both": ((0, 0), 0), "columns, last": ((None, 0), 2)}


@kernels
@pytest.mark.parametrize("out", [P(None, None), P(None, "y")], ids=str)
@pytest.mark.parametrize("transform", ["value", "gradient inside", "gradient outside"])
@pytest.mark.parametrize("axes", AXES)
def test_out_sharding(axes, transform, out, kernel, rng):
    in_axes, out_axes = AXES[axes]
    a, b = arrays(rng, (4, 6, 8), (4, 8, 10))
    on = mesh(types="Explicit")
    with jax.set_mesh(on):
        specs = ("x", None, "y"), ("x", "y", None)
        args = placed((a, b), in_axes, specs, on)

        def program(dot):
            def product(a, b):
                return dot(a, b, MATRIX, out_sharding=out)

            def loss(f):
                return lambda *args: jnp.sum(jnp.sin(f(*args)))

            if transform == "gradient inside":
                return jax.vmap(jax.grad(loss(product), (0, 1)), in_axes)
            mapped = jax.vmap(product, in_axes, out_axes)
            return mapped if transform == "value" else jax.grad(loss(mapped), (0, 1))

        got = compare(
            program(lambda *args, **kwargs: jaxgemm.dot_general(*args, kernel=kernel, **kwargs)),
            program(lax.dot_general),
            *args,
        )
        if transform == "value":
            assert jax.typeof(got).sharding.spec[out_axes] == "x"


@kernels
def test_out_sharding_that_says_nothing_of_the_last_axes(kernel, rng):
    a, b = arrays(rng, (4, 6, 8), (4, 8, 10))
    on = mesh(types="Explicit")
    with jax.set_mesh(on):
        args = put(a[0], on, P(None, "y")), put(b, on, P("x", "y"))
        dot = jax.vmap(
            lambda a, b: jaxgemm.dot_general(a, b, MATRIX, out_sharding=P(), kernel=kernel), (None, 0), out_axes=2
        )
        got = jax.jit(dot)(*args)
        assert jax.typeof(got).sharding.spec == P(None, None, "x")
    assert_close(got, jnp.moveaxis(a[0].astype(np.float64) @ b, 0, 2))


def test_partial_sums_that_stay_unreduced(rng):
    a, b = arrays(rng, (4, 6, 8), (8, 10))
    on, types = mesh(types="Explicit"), []
    with jax.set_mesh(on):
        args = put(a, on, P("x", None, "y")), put(b, on, P("y"))

        def program(dot):
            product = jax.vmap(lambda a, b: dot(a, b, MATRIX, out_sharding=P(None, None, unreduced={"y"})), (0, None))

            def summed(*args):
                parts = product(*args)
                types.append(jax.typeof(parts))
                return jax.sharding.reshard(parts, P("x"))

            return summed

        compare(program(jaxgemm.dot_general), program(lax.dot_general), *args)
    assert types[0].sharding.spec.unreduced == {"y"}
    assert all(kind == types[0] for kind in types)


@kernels
def test_nested(kernel, rng):
    """Each of two mapped axes stays where it is."""
    a, b = arrays(rng, (4, 2, 6, 8), (4, 8, 10))
    on = mesh(types="Explicit")
    with jax.set_mesh(on):
        args = put(a, on, P("x", "y")), put(b, on, P("x"))

        def program(dot):
            product = lambda a, b: dot(a, b, MATRIX, out_sharding=P(None, None))  # noqa: E731
            return jax.vmap(jax.vmap(product, (0, None)), (0, 0))

        got = compare(
            program(lambda *args, **kwargs: jaxgemm.dot_general(*args, kernel=kernel, **kwargs)),
            program(lax.dot_general),
            *args,
        )
        assert jax.typeof(got).sharding.spec == P("x", "y", None, None)


#: in_axes of a, b, c and bias
EPILOGUES = [(0, None, None, None), (0, 0, 0, 0), (None, 0, None, 0), (0, None, 0, None), (None, None, 0, 0)]


@kernels
@pytest.mark.parametrize("transform", ["value", "gradient"])
@pytest.mark.parametrize("axes", EPILOGUES, ids=str)
def test_epilogue(axes, transform, kernel, rng):
    values = arrays(rng, (4, 6, 8), (4, 8, 10), (4, 6, 10), (4, 10))
    specs = ("x", None, None), ("x", None, "y"), ("x", None, "y"), ("x", "y")

    def ours(a, b, c, bias):
        return jaxgemm.gemm(a, b, c, bias=bias, activation="tanh", kernel=kernel)

    def theirs(a, b, c, bias):
        return jnp.tanh(a @ b + c + bias)

    compare_epilogues(ours, theirs, axes, transform, values, specs)


@kernels
@pytest.mark.parametrize("transform", ["value", "gradient"])
@pytest.mark.parametrize("axes", [(0, None, None), (0, 0, 0), (None, 0, None), (0, None, 0)], ids=str)
def test_gated(axes, transform, kernel, rng):
    values = arrays(rng, (4, 6, 8), (4, 8, 10), (4, 8, 10))
    specs = ("x", None, None), ("x", None, "y"), ("x", None, "y")

    def ours(x, gate, up):
        return jaxgemm.gated_gemm(x, gate, up, kernel=kernel)

    def theirs(x, gate, up):
        return jax.nn.silu(x @ gate) * (x @ up)

    compare_epilogues(ours, theirs, axes, transform, values, specs)


@kernels
def test_override(kernel, rng):
    a, b = arrays(rng, (4, 6, 8), (8, 10))
    on = mesh(types="Explicit")

    def model(a, b):
        return jnp.tanh(lax.dot_general(a, b, MATRIX, out_sharding=P(None, None)))

    with jax.set_mesh(on):
        args = put(a, on, P("x", None, "y")), put(b, on, P("y"))
        compare(*(jax.vmap(f, (0, None)) for f in (jaxgemm.override(model, kernel=kernel), model)), *args)
        compare(*(f(jax.vmap(model, (0, None))) for f in (jaxgemm.override(kernel=kernel), lambda f: f)), *args)


def jnp_gated(x, gate, up):
    return jax.nn.silu(x @ gate) * (x @ up)


def jnp_gather(x, w, **_):
    return lax.all_gather(x, "y", axis=0, tiled=True) @ w


def jnp_scatter(x, w, **_):
    return lax.psum_scatter(x @ w, "y", scatter_dimension=0, tiled=True)


#: Each with its twin in jnp. The operands but the first are whole on every device.
NAMED = {
    "matmul": (jaxgemm.matmul, jnp.matmul, 2),
    "epilogue": (
        lambda x, w, c, **options: jaxgemm.gemm(x, w, bias=c[0], activation="tanh", **options),
        lambda x, w, c: jnp.tanh(x @ w + c[0]),
        3,
    ),
    "gated": (jaxgemm.gated_gemm, jnp_gated, 3),
    "gathered": (functools.partial(jaxgemm.all_gather_matmul, axis_name="y"), jnp_gather, 2),
    "scattered": (functools.partial(jaxgemm.matmul_reduce_scatter, axis_name="y"), jnp_scatter, 2),
}


@pytest.mark.parametrize(
    ("mapped", "transform", "kernel"),
    [("first", "value", "auto"), ("first", "gradient", "host"), ("all", "gradient", "host")],
)
@pytest.mark.parametrize("name", NAMED)
def test_spmd_axis_name_around_a_shard_map(name, mapped, transform, kernel, rng):
    """In auto mode a mapped axis may be named: what is mapped then varies along it, and what is not does not."""
    ours, theirs, count = NAMED[name]
    ours = functools.partial(ours, kernel=kernel)
    on, axes = mesh(), (0, *((0 if mapped == "all" else None,) * (count - 1)))
    values = arrays(rng, (4, 8, 8), *[(4, 8, 10)] * (count - 1))

    def program(product):
        per_device = P() if name == "gathered" else P("y")
        in_specs, checked = (P("y"), *(P(),) * (count - 1)), name != "gathered"
        local = jax.shard_map(product, mesh=on, in_specs=in_specs, out_specs=per_device, check_vma=checked)
        if transform == "gradient":
            local = jax.grad(lambda *args, f=local: jnp.sum(jnp.sin(f(*args))), range(count))
        return jax.vmap(local, axes, spmd_axis_name="x")

    args = [put(x if i == 0 else x[0], on, P("x") if i == 0 else P()) for x, i in zip(values, axes, strict=True)]
    got, expected = (jax.jit(program(f))(*args) for f in (ours, theirs))
    assert_close(got, expected)
    if name not in ("gathered", "scattered"):  # those are sent in parts
        assert_no_more(*(traffic(program(f), *args) for f in (ours, theirs)))


@kernels
def test_spmd_axis_name_around_a_constraint(kernel, rng):
    a, b = arrays(rng, (4, 6, 8), (8, 10))
    on = mesh()

    def program(product):
        target = jax.sharding.NamedSharding(on, P("y"))
        return jax.vmap(lambda a: lax.with_sharding_constraint(product(a, b), target), spmd_axis_name="x")

    args = (put(a, on, P("x", "y")),)
    programs = program(lambda a, b: jaxgemm.matmul(a, b, kernel=kernel)), program(jnp.matmul)
    got, expected = (jax.jit(f)(*args) for f in programs)
    assert got.sharding.is_equivalent_to(expected.sharding, 3)
    assert_close(got, expected)
    assert_no_more(*(traffic(f, *args) for f in programs))
