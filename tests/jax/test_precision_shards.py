"""float32 by parts in programs over several devices, each of which decides for its part.

Programs are compiled for eight CPUs whose products are chosen for an H200: what is compiled says who computes what, and
what is sent.
"""

from __future__ import annotations

import re
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from meshes import mesh, traffic

import jaxgemm
from jaxgemm.choice.rules import EXACT_K
from jaxgemm.kernels import H200, find_kernel
from jaxgemm.products import dense

pytestmark = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")

X6, SCALED = "BF16_BF16_F32_X6", "TF32_TF32_F32_X3"
PRECISIONS = {"highest": "bf16_x6", X6: "bf16_x6", SCALED: "f16_x3"}
DIMS = ((1,), (0,)), ((), ())


@pytest.fixture(autouse=True)
def _hopper(monkeypatch):
    monkeypatch.setattr(dense, "device_for", lambda _: H200)


def launched(program, *args):
    """The products that kernels compute on each device: the shape of what it makes, the kernel and the arithmetic."""
    lines = [line for line in program.lower(*args).compile().as_text().splitlines() if "jaxgemm_gemm" in line]
    found = []
    for line in lines:
        shape = re.search(r"= \(?f32\[([\d,]+)\]", line)
        how = dict(re.findall(r'(kernel|arithmetic) = "(\w+)"', line))
        found.append((tuple(map(int, shape[1].split(","))), how["kernel"], how["arithmetic"]))
    return found


def on_mesh(on, *placed):
    return [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(on, spec)) for shape, spec in placed]


def product(precision, types, out=None):
    """``jnp.dot``, ours or without a precision XLA's, whose result is sharded so where types say that."""
    asked = {"out_sharding": out} if types == "Explicit" and out is not None else {}
    if precision is None:
        return jax.jit(lambda x, w: jax.lax.dot_general(x, w, DIMS, **asked))
    return jax.jit(lambda x, w: jaxgemm.dot_general(x, w, DIMS, precision=precision, **asked))


#: By name: the mesh, both operands, the result's sharding, what each device makes, and whether its sums are long
#: chains, as they must be for "highest" by parts of 16 bits.
CASES = {
    "rows": ((8,), ((8192, 4096), P("x")), ((4096, 4096), P()), None, (1024, 4096), True),
    "columns": ((8,), ((4096, 4096), P()), ((4096, 8192), P(None, "x")), None, (4096, 1024), True),
    "rows and columns": ((4, 2), ((8192, 4096), P("x")), ((4096, 4096), P(None, "y")), P("x", "y"), (2048, 2048), True),
    "few rows each": ((8,), ((1024, 4096), P("x")), ((4096, 4096), P()), None, (128, 4096), False),
    "sums": ((8,), ((4096, 32768), P(None, "x")), ((32768, 4096), P("x")), P(), (4096, 4096), True),
    "short sums": ((8,), ((4096, 4 * EXACT_K), P(None, "x")), ((4 * EXACT_K, 4096), P("x")), P(), (4096, 4096), False),
}


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES)
def test_each_device_decides_for_its_part(case, precision, types):
    shape, lhs, rhs, out, made, long_chains = CASES[case]
    on = mesh(shape, ("x", "y")[: len(shape)], types)
    with jax.set_mesh(on):
        x, w = on_mesh(on, lhs, rhs)
        ours = product(precision, types, out)
        found = launched(ours, x, w)
        if precision == "highest" and not long_chains:
            assert all(kernel == "simt" for _, kernel, _ in found)
        else:
            assert found == [(made, "sm90", PRECISIONS[precision])]
        sent = traffic(ours, x, w)
        assert sent == traffic(product(None, types, out), x, w)
        assert sent.calls == ({"all-reduce": 1} if "sums" in case else {})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES)
def test_explain_says_what_each_device_does(case, precision):
    """Where shardings are types. A kernel has a block for each tile there, as others wait for a collective's to end."""
    shape, lhs, rhs, out, _, long_chains = CASES[case]
    on = mesh(shape, ("x", "y")[: len(shape)], "Explicit")
    with jax.set_mesh(on):
        x, w = on_mesh(on, lhs, rhs)
        parts = [NamedSharding(on, spec).shard_shape(given) for given, spec in (lhs, rhs)]
        (found,) = jaxgemm.explain(product(precision, "Explicit", out), x, w, platform="cuda").products
    assert found.operands == " x ".join(f"float32[{m},{n}]" for m, n in parts)
    choice = found.decision.choice
    if precision == "highest" and not long_chains:
        assert found.kernel in ("simt", "xla")
    else:
        assert (found.kernel, choice.arithmetic) == ("sm90", PRECISIONS[precision])
        assert dict(zip(choice.kernel.options, choice.config, strict=True))["grid"] == 2


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_inside_of_a_shard_map(precision, types):
    """Over all axes a product is the device's own; its sum is what the program says."""
    on = mesh((4, 2), ("x", "y"), types)

    def body(x, w):
        return jax.lax.psum(jaxgemm.gemm(x, w, precision=precision), "y")

    specs = {"mesh": on, "in_specs": (P("x", "y"), P("y")), "out_specs": P("x")}
    with jax.set_mesh(on):
        x, w = on_mesh(on, ((8192, 8192), P("x", "y")), ((8192, 4096), P("y")))
        mapped = jax.jit(jax.shard_map(body, **specs))
        assert launched(mapped, x, w) == [((2048, 4096), "sm90", PRECISIONS[precision])]
        assert traffic(mapped, x, w).calls == {"all-reduce": 1}
        (found,) = jaxgemm.explain(mapped, x, w, platform="cuda").products
        assert found.operands == "float32[2048,4096] x float32[4096,4096]"
        assert (found.kernel, found.decision.choice.arithmetic) == ("sm90", PRECISIONS[precision])
        # Over some of them XLA divides it.
        specs |= {"axis_names": {"x"}, "in_specs": (P("x"), P())}
        partly = jax.shard_map(partial(jaxgemm.gemm, precision=precision), **specs)
        whole = on_mesh(on, (x.shape, P("x")), (w.shape, P()))
        (found,) = jaxgemm.explain(partly, *whole, platform="cuda").products
        assert (found.kernel, found.decision.choice.rule) == ("xla", "divided-by-xla")


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients(precision, types):
    """Data parallel: each device's gradient of the weights is a sum of its rows, and one all-reduce adds these up."""
    on = mesh((8,), ("x",), types)

    def loss(multiply):
        return jax.jit(jax.grad(lambda x, w: jnp.sum(jnp.sin(multiply(x, w))), (0, 1)))

    with jax.set_mesh(on):
        x, w = on_mesh(on, ((32768, 4096), P("x")), ((4096, 4096), P()))
        ours = loss(lambda x, w: jaxgemm.gemm(x, w, precision=precision))
        assert launched(ours, x, w) == 3 * [((4096, 4096), "sm90", PRECISIONS[precision])]
        assert traffic(ours, x, w) == traffic(loss(jnp.dot), x, w)


def test_a_part_s_arithmetic_is_what_is_fastest_for_it():
    """A product that is scaled as a whole, and X6 on each device, whose part is small."""
    on = mesh((8,), ("x",), "Explicit")
    with jax.set_mesh(on):
        x, w = on_mesh(on, ((2048, 256), P("x")), ((256, 256), P()))
        assert launched(product(SCALED, "Explicit"), x, w) == [((256, 256), "sm90", "bf16_x6")]
        text = str(jaxgemm.explain(product(SCALED, "Explicit"), x, w, platform="cuda"))
        assert "f16_x3, which the precision allows too, expects" in text
