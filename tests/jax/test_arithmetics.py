"""In which arithmetic a kernel computes a product, where a precision allows several: by expected time."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest

import jaxgemm
from jaxgemm.choice import select
from jaxgemm.choice.resolve import candidates, least_exact, weighed
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import H200, Device, find_kernel
from jaxgemm.precision import BY_PARTS, bound_of, canonical
from jaxgemm.problem import plan

pytestmark = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")


def problem(m, n, k):
    view = plan((m, k), (k, n), (((1,), (0,)), ((), ())))
    return view.problem(("float32",) * 3, Epilogue())


SCALED = canonical("TF32_TF32_F32_X3")
H100 = Device("cuda", "NVIDIA H100 80GB HBM3", 90, 132, 3.35e12)


#: And what they are sure to be computed in, whatever the constants of the cost model: by the fewest passes over small
#: operands, by the fewest products of large ones.
SHAPES = {
    (64, 64, 64): "bf16_x6",
    (256, 256, 256): "bf16_x6",
    (2047, 33, 65): "bf16_x6",
    (700, 900, 1100): "",
    (128, 128, 16384): "",
    (3000, 3000, 64): "",
    (4096, 4096, 4096): "f16_x3",
    (8192, 8192, 8192): "f16_x3",
}


@pytest.mark.parametrize("device", [H200, H100], ids=lambda device: device.name)
@pytest.mark.parametrize("asked", ["auto", "sm90"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_arithmetic_is_taken_by_expected_time(shape, asked, device):
    given, row = problem(*shape), find_kernel("sm90")
    expected = {
        name: candidates(row, (), replace(given, arithmetic=name), device, 1)[0].microseconds
        for name in ("f16_x3", "bf16_x6")
    }
    taken = min(expected, key=expected.__getitem__)
    assert SHAPES[shape] in ("", taken)
    choice = select.select(given, device, precision=SCALED, kernel=asked)
    assert (choice.kernel.name, choice.arithmetic, choice.ours) == ("sm90", taken, expected.pop(taken))
    assert choice.beside == tuple(expected.items())


@pytest.mark.parametrize("k", [64, 4096, 20000, 40000, 131072])
def test_no_arithmetic_with_a_larger_bound_is_taken(k):
    """X6 leaves less out, and adds up more: of very long sums its bound is the larger one."""
    found = weighed(find_kernel("sm90"), problem(64, 64, k), H200, SCALED)
    names = [x.arithmetic for x, _ in found]
    assert "f16_x3" in names
    assert ("bf16_x6" in names) == (bound_of("bf16_x6", k) <= bound_of("f16_x3", k))


def test_what_tests_an_arithmetic_can_have_it():
    given = problem(64, 64, 64)
    for _ in range(2):
        with least_exact():
            choice = select.select(given, H200, precision=SCALED)
            assert (choice.arithmetic, choice.beside) == ("f16_x3", ())
        assert select.select(given, H200, precision=SCALED).arithmetic == "bf16_x6"


def test_explain_says_what_else_was_weighed():
    for extent, taken, other in ((64, "bf16_x6", "f16_x3"), (4096, "f16_x3", "bf16_x6")):
        x = jax.ShapeDtypeStruct((extent, extent), jnp.float32)
        text = str(jaxgemm.explain(partial(jaxgemm.gemm, precision="TF32_TF32_F32_X3"), x, x, platform="cuda"))
        assert f"arithmetic {taken}: " in text
        assert f"{other}, which the precision allows too, expects " in text


def test_options_change_no_arithmetic():
    """So that whoever tunes them compares products of the same errors."""
    for shape in ((256, 256, 256), (4096, 4096, 4096)):
        given = problem(*shape)
        taken = select.select(given, H200, precision=SCALED).arithmetic
        for options in ({"split_k": 1}, {"tile_m": 128, "tile_n": 64}, {"slabs": 2}, {"grid": 2}):
            choice = select.select(given, H200, precision=SCALED, options=tuple(options.items()))
            assert choice.arithmetic == taken


@pytest.mark.parametrize("precision", [None, "high", "highest", *BY_PARTS[:-1]])
def test_other_precisions_have_one_arithmetic_a_kernel(precision):
    """A kernel has at most one of what they allow, so that there is nothing to weigh."""
    allowed = canonical(precision)
    for row in jaxgemm.kernels():
        assert len(weighed(row, problem(512, 512, 512), H200, allowed)) <= 1
