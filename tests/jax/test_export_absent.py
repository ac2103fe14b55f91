"""Programs for several devices that are not there when they are exported, and gradients of exported ones."""

from __future__ import annotations

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export, lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import assert_close, mesh, put

import jaxgemm

CHECKS = [export.DisabledSafetyCheck.custom_call(f"jaxgemm_{name}gemm") for name in ("", "grouped_")]
ROWS, W = (16, 12), (12, 8)


def _plain_gated(x, e, s):
    return jax.nn.silu(lax.ragged_dot(x, e, s)) * lax.ragged_dot(x, e, s)


#: Programs of x, w, the weights of experts and sizes of groups: ours, and the same in plain JAX.
PROGRAMS = {
    "gemm": (lambda x, w, *_: jaxgemm.gemm(x, w), lambda x, w, *_: x @ w),
    "xla": (lambda x, w, *_: jaxgemm.gemm(x, w, kernel="xla"), lambda x, w, *_: x @ w),
    "epilogue": (
        lambda x, w, *_: jaxgemm.gemm(x, w, bias=w[0], activation="tanh"),
        lambda x, w, *_: jnp.tanh(x @ w + w[0]),
    ),
    "override": (lambda x, w, *_: jaxgemm.override(jnp.matmul)(x, w), lambda x, w, *_: x @ w),
    "gated": (lambda x, w, *_: jaxgemm.gated_gemm(x, w, w), lambda x, w, *_: jax.nn.silu(x @ w) * (x @ w)),
    "list": (
        lambda x, w, *_: sum(jaxgemm.grouped_gemm([x, x], [w, w])),
        lambda x, w, *_: 2 * (x @ w),
    ),
    "groups": (lambda x, _, e, s: jaxgemm.ragged_dot(x, e, s), lambda x, _, e, s: lax.ragged_dot(x, e, s)),
    "gated groups": (lambda x, _, e, s: jaxgemm.ragged_gated(x, e, e, s), lambda x, _, e, s: _plain_gated(x, e, s)),
}


def _operands(rng):
    x, w, e = (rng.standard_normal(shape).astype(np.float32) for shape in (ROWS, W, (2, *W)))
    return x, w, e, np.array([10, 6], np.int32)


def _structs(on, operands):
    specs = P("x"), P(), P(), P()
    return [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(on, s))
        for x, s in zip(operands, specs, strict=False)
    ]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_devices_that_are_absent(types, name, rng):
    """Exported without them, for a CPU and a GPU, and run on as many CPU devices."""
    ours, theirs = PROGRAMS[name]
    operands = _operands(rng)
    absent = AbstractMesh((8,), ("x",), axis_types=(getattr(AxisType, types),))
    with jax.sharding.use_abstract_mesh(absent) if types == "Explicit" else nullcontext():
        structs = _structs(absent, operands)
        exported = export.export(jax.jit(ours), platforms=("cpu",))(*structs)
        export.export(jax.jit(ours), platforms=("cuda",), disabled_checks=CHECKS)(*structs)
    assert "jaxgemm" not in exported.mlir_module().partition("loc(")[0]
    on = mesh((8,), ("x",), types)
    with jax.set_mesh(on):
        placed = [put(x, on, P("x") if i == 0 else P()) for i, x in enumerate(operands)]
        got = jax.jit(exported.call)(*placed)
    assert_close(got, theirs(*(array(x) for x in operands)))


def test_a_kernel_by_name_on_devices_that_are_absent(rng):
    """It runs on each device's part where shardings are types, and is refused elsewhere."""
    x, w, _, _ = _operands(rng)
    product = jax.jit(lambda x, w: jaxgemm.gemm(x, w, kernel="host"))
    absent = AbstractMesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    with jax.sharding.use_abstract_mesh(absent):
        exported = export.export(product, disabled_checks=CHECKS, platforms=("cpu",))(*_structs(absent, (x, w)))
    on = mesh((8,), ("x",), "Explicit")
    with jax.set_mesh(on):
        assert_close(jax.jit(exported.call)(put(x, on, P("x")), put(w, on, P())), x.astype(np.float64) @ w)
    absent = AbstractMesh((8,), ("x",), axis_types=(AxisType.Auto,))
    with pytest.raises(jaxgemm.UnsupportedError, match="in a program that is exported"):
        export.export(product, disabled_checks=CHECKS, platforms=("cpu",))(*_structs(absent, (x, w)))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_gradients_of_exported_programs(types, name, rng):
    """JAX lowers them for a mesh without devices, whatever the program was exported for."""
    if (types, name) == ("Explicit", "list"):
        pytest.skip(
            "where shardings are types, products whose sums are sharded need out_sharding, which lists have not"
        )
    ours, theirs = PROGRAMS[name]
    x, w, e, sizes = _operands(rng)
    on = mesh((8,), ("x",), types)
    with jax.set_mesh(on):
        placed = put(x, on, P("x")), put(w, on, P()), put(e, on, P()), put(sizes, on, P())
        exported = export.deserialize(export.export(jax.jit(ours))(*placed).serialize(vjp_order=1))
        loss = lambda f: lambda x, w, e: jnp.sum(jnp.sin(f(x, w, e, placed[3])))  # noqa: E731
        got = jax.jit(jax.grad(loss(exported.call), (0, 1, 2)))(*placed[:3])
    want = jax.grad(lambda *args: jnp.sum(jnp.sin(theirs(*args, jnp.asarray(sizes)))), (0, 1, 2))
    assert_close(got, want(*(array(v) for v in (x, w, e))))
