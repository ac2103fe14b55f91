"""What explain says of products of groups of rows."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxgemm
from jaxgemm import roofline
from jaxgemm.choice.resolve import Candidate, Choice
from jaxgemm.kernels import configuration, find_kernel
from jaxgemm.products.kind import KINDS, Decision
from jaxgemm.ragged import report
from jaxgemm.ragged.form import Form
from jaxgemm.ragged.fused import grouped_fused_p
from jaxgemm.ragged.product import grouped_p

M, K, N, GROUPS = 512, 256, 384, 8
HELD = jax.ShapeDtypeStruct((GROUPS,), jnp.int32)
H100 = roofline.KNOWN_DEVICES["NVIDIA H100 80GB HBM3"]
SUMS = lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])


def shape(*dims, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(dims, dtype)


def test_a_product_and_its_gradients():
    def loss(x, w, sizes):
        return jnp.sum(jaxgemm.ragged_dot(x, w, sizes).astype(jnp.float32) ** 2)

    found = jaxgemm.explain(jax.grad(loss, (0, 1)), shape(M, K), shape(GROUPS, K, N), HELD, platform="cuda")
    assert found.left == ()
    assert {(p.operands, p.groups) for p in found.products} == {
        ("bfloat16[512,256] x bfloat16[8,256,384]", "rows of 8 groups: m 512, n 384, k 256, layout NN"),
        ("bfloat16[512,384] x bfloat16[8,256,384]", "rows of 8 groups: m 512, n 256, k 384, layout NT"),
        ("bfloat16[512,256] x bfloat16[512,384]", "sums of 8 groups: m 256, n 384, k 512 in all"),
    }
    for line in (
        "3 products on ",
        "kernel     sm90: one launch"
        if find_kernel("sm90").built
        else "kernel     xla: kernel 'sm90' is a CUDA kernel",
        "problem    rows of 8 groups",
        "floor      ",
    ):
        assert line in str(found)


def test_what_a_program_repeats_and_holds():
    def program(x, w, sizes):
        def step(x, _):
            each = jax.vmap(lambda x: jaxgemm.ragged_dot(x, w, sizes, group_offset=2, kernel="xla"))
            return each(x), None

        return lax.scan(step, x, None, length=5)[0]

    (product,) = jaxgemm.explain(program, shape(3, M, K), shape(2, K, K), HELD, platform="cpu").products
    assert (product.kernel, product.trips, product.floor) == ("xla", 5, None)
    assert product.groups == "rows of 8 groups, 2 of them held: m 512, n 256, k 256, batch 3, layout NN"
    assert "kernel     xla: XLA's products were asked for by name\n  rule       by-name" in str(product)


def test_a_kernel_that_cannot_is_an_error():
    with pytest.raises(jaxgemm.UnsupportedError, match="kernel 'host' has no grouped form"):
        jaxgemm.explain(lambda *args: jaxgemm.ragged_dot(*args, kernel="host"), shape(M, K), shape(8, K, N), HELD)


def decide(monkeypatch, primitive, choice):
    """Have this choice made for every product of the primitive, with the problem that is its own."""
    kind = KINDS[primitive]

    def decided(*given):
        return replace(kind.decide(*given), choice=choice)

    monkeypatch.setitem(KINDS, primitive, replace(kind, decide=decided))


def test_a_kernel_of_ours(monkeypatch):
    row = next(row for row in jaxgemm.kernels() if row.name == "sm90")
    config = configuration(row, (("tile_m", 128),))
    other = configuration(row, (("tile_m", 64),))
    considered = (Candidate(config, 10.0), Candidate(other, 12.0))
    choice = Choice(row, config, 64, "a test", considered)
    decide(monkeypatch, grouped_p, choice)
    (product,) = jaxgemm.explain(jaxgemm.ragged_dot, shape(M, K), shape(GROUPS, K, N), HELD, platform="cuda").products
    lines = (
        "kernel     sm90: a test",
        "problem    rows of 8 groups: m 512, n 384, k 256, layout NN",
        "options    tile_m=128",
        "workspace  64 bytes",
        "candidates 10.0 us expected: as chosen",
        "           12.0 us expected: tile_m=64",
        "floor",
    )
    text = str(product)
    assert [text.index(f"\n  {line}") for line in lines] == sorted(text.index(f"\n  {line}") for line in lines)


def floor_of(avals, params):
    """On an H100, whoever computes the product."""
    decision = Decision(Choice(why="a test"))
    (product,) = report.describe(avals, params, decision, H100)
    return product.floor


def biased(x, w, bias, sizes, **given):
    return jaxgemm.ragged_dot(x, w, sizes, bias=bias, activation="relu", **given)


PAIR = shape(M, K), shape(GROUPS, K, N), shape(GROUPS, K, N), HELD


def test_what_follows_a_product_that_xla_computes():
    args = shape(M, K), shape(GROUPS, K, N), shape(GROUPS, N), HELD
    (product,) = jaxgemm.explain(partial(biased, kernel="xla"), *args, platform="cuda").products
    assert product.operands == "bfloat16[512,256] x bfloat16[8,256,384]"
    assert product.groups == "rows of 8 groups: m 512, n 384, k 256, layout NN"
    assert "epilogue   relu(a b + bias), written in jnp, which XLA may fuse" in str(product)


def test_both_products_of_a_pair_that_xla_computes():
    gate, up = jaxgemm.explain(partial(jaxgemm.ragged_gated, kernel="xla"), *PAIR, platform="cuda").products
    why = "of two products composed in jnp: XLA's products were asked for by name (by-name)"
    assert (gate.gated, up.gated) == (f"gate, {why}", f"up, {why}")
    assert {p.operands for p in (gate, up)} == {"bfloat16[512,256] x bfloat16[8,256,384]"}


def test_one_launch_of_all_of_it(monkeypatch):
    row = next(row for row in jaxgemm.kernels() if row.name == "sm90")
    choice = Choice(row, configuration(row, ()), 0, "a test", contender="sm90", ours=3.0, theirs=5.0)
    decide(monkeypatch, grouped_fused_p, choice)
    args = shape(3, M, K), shape(GROUPS, K, N), shape(GROUPS, N), HELD
    (product,) = jaxgemm.explain(jax.vmap(biased, (0, None, None, None)), *args, platform="cuda").products
    lines = (
        "bfloat16[3,512,256] x bfloat16[8,256,384] -> bfloat16",
        "expected   sm90 3.0 us, a dense product for each group 5.0 us",
        "problem    rows of 8 groups: m 512, n 384, k 256, batch 3, layout NN",
        "epilogue   relu(a b + bias)",
        "copies     none",
    )
    assert all(line in str(product) for line in lines)
    (product,) = jaxgemm.explain(jaxgemm.ragged_gated, *PAIR, platform="cuda").products
    lines = (
        "bfloat16[512,256] x (bfloat16[8,256,384], bfloat16[8,256,384]) -> bfloat16",
        "gated      both products of the pair",
        "epilogue   silu(a b) * (a b_up)",
    )
    assert all(line in str(product) for line in lines)
    params = {"gated": True, "precision": None, "preferred_element_type": jnp.bfloat16}
    floor = floor_of((*PAIR, shape(1, dtype=jnp.int32)), params)
    moved = M * K + 2 * GROUPS * K * N + M * N
    assert floor.seconds == max(4 * M * K * N / H100.peak("16-bit tensor"), 2 * moved / H100.bandwidth)


@pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no CUDA kernels")
def test_what_a_kernel_leaves_to_jnp():
    args = shape(M, K), shape(GROUPS, K, N), shape(GROUPS, N, dtype=jnp.float32), HELD
    (product,) = jaxgemm.explain(biased, *args, platform="cuda").products
    assert (product.kernel, product.result) == ("sm90", "float32")
    assert "epilogue   relu(a b + bias), composed in jnp" in str(product)


FLOORS = {
    # shapes of lhs and rhs, what is transposed or summed, groups held: operations, elements that are moved
    "many rows": ((4096, K), (8, K, N), {}, 8, 2 * 4096 * K * N, 4096 * K + 8 * K * N + 4096 * N),
    "fewer rows than groups": ((3, K), (64, K, N), {}, 64, 2 * 3 * K * N, 3 * K + 3 * K * N + 3 * N),
    "transposed": ((3, K), (64, N, K), {"transposed": True}, 64, 2 * 3 * K * N, 3 * K + 3 * K * N + 3 * N),
    "a batch": ((5, 3, K), (64, K, N), {}, 64, 2 * 15 * K * N, 15 * K + 15 * K * N + 15 * N),
    "a batch of weights": ((5, 3, K), (5, 64, K, N), {}, 64, 2 * 15 * K * N, 15 * K + 15 * K * N + 15 * N),
    "rows of a batch": ((3, K), (5, 64, K, N), {}, 64, 2 * 15 * K * N, 3 * K + 15 * K * N + 15 * N),
    "sums": ((64, K), (64, N), {"sums": True}, 8, 2 * 64 * K * N, 64 * K + 64 * N + 8 * K * N),
    "no groups": ((3, K), (0, K, N), {}, 0, 2 * 3 * K * N, 3 * K + 3 * N),
}


@pytest.mark.parametrize("name", FLOORS)
def test_floor(name):
    lhs, rhs, kind, held, operations, moved = FLOORS[name]
    form = Form(**{"sums": False, "transposed": False} | kind, held=held)
    params = {"form": form, "precision": None, "preferred_element_type": jnp.bfloat16}
    avals = shape(*lhs), shape(*rhs), shape(held, dtype=jnp.int32), shape(1, dtype=jnp.int32)
    floor = floor_of(avals, params)
    compute, memory = operations / H100.peak("16-bit tensor"), 2 * moved / H100.bandwidth
    assert (floor.seconds, floor.bound) == (max(compute, memory), "compute" if compute >= memory else "memory")


@pytest.mark.parametrize("dtype", [jnp.complex64, jnp.int32])
def test_no_floor_where_the_rate_is_not_known(dtype):
    form = Form(False, False, 8)
    params = {"form": form, "precision": None, "preferred_element_type": dtype}
    avals = shape(M, K, dtype=dtype), shape(8, K, N, dtype=dtype), HELD, shape(1, dtype=jnp.int32)
    assert floor_of(avals, params) is None


def test_the_floor_at_full_precision_is_that_of_plain_arithmetic():
    avals = shape(M, K, dtype=jnp.float32), shape(8, K, N, dtype=jnp.float32), HELD, shape(1, dtype=jnp.int32)
    params = {"form": Form(False, False, 8), "preferred_element_type": jnp.float32}
    highest = (lax.Precision.HIGHEST,) * 2
    assert floor_of(avals, params | {"precision": highest}).unit == "fp32"
    assert floor_of(avals, params | {"precision": None}).unit == "tf32 tensor"


built = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")


@built
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_a_gated_pair_is_one_launch_whatever_its_rows(batch_invariant):
    """Between those that tiles of few tokens are for and those that others are, too."""
    w = shape(8, 64, 64)
    for m in (1, 8, 33, 64, 65, 96, 127, 128, 129, 1000):
        x, sizes = shape(m, 64), shape(8, dtype=jnp.int32)
        pair = partial(jaxgemm.ragged_gated, batch_invariant=batch_invariant)
        (product,) = jaxgemm.explain(pair, x, w, w, sizes, platform="cuda").products
        assert product.kernel == "sm90", m
        assert product.gated, m
        assert "us expected: as chosen" in str(product)
