"""What explain says of a program is what lowering makes of it, and what select() chose."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax import lax

import jaxgemm
from jaxgemm.choice.resolve import Candidate, Choice
from jaxgemm.epilogue import Epilogue
from jaxgemm.explain import Product
from jaxgemm.kernels import configuration
from jaxgemm.problem import Problem, plan
from jaxgemm.products.kind import Decision


def shape(*dims, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


def test_arrays_explain_one_gemm():
    found = jaxgemm.explain(shape(64, 32), shape(16, 32), transpose_b=True, kernel="host", platform="cpu")
    (product,) = found.products
    assert (found.device, product.kernel, product.operands) == ("cpu", "host", "float32[64,32] x float32[16,32]")
    assert (product.decision.problem.m, product.decision.problem.n, product.decision.problem.k) == (64, 16, 32)
    assert product.decision.problem.layout == "NT"
    for line in (
        "kernel     host: asked for by name",
        "rule       by-name",
        "epilogue   a b",
        "copies     none",
        "workspace  0 bytes",
    ):
        assert line in str(found)


def test_a_program_explains_each_of_its_products_in_order():
    def program(x, w):
        def step(carry, _):
            return jaxgemm.matmul(carry, w, kernel="host"), None

        y, _ = lax.scan(step, x, None, length=7)
        z = jax.jit(lambda y: jaxgemm.gemm(y, w, y, beta=2, bias=w[0], activation="relu", kernel="xla"))(y)
        return jax.checkpoint(lambda z: jaxgemm.gemm(z, z, alpha=3, transpose_b=True))(z)

    found = jaxgemm.explain(program, shape(8, 8), shape(8, 8), platform="cpu")
    assert [p.kernel for p in found.products] == ["host", "xla", "xla"]
    assert [p.trips for p in found.products] == [7, 1, 1]
    assert "relu(a b + 2 * c + bias)" not in str(found.products[0])
    assert str(found).startswith("3 products on cpu")
    assert "(7 times)" in str(found)


def test_gradients_are_products_too():
    f = jax.grad(lambda a, b: jnp.sum(jaxgemm.matmul(a, b, kernel="host")), (0, 1))
    found = jaxgemm.explain(f, shape(8, 16), shape(16, 4), platform="cpu")
    # The value itself is not used, and one operand of each gradient is the other's layout read in place.
    assert {p.kernel for p in found.products} == {"host"}
    assert len(found.products) in (2, 3)


def test_of_a_linear_solve_only_what_solves():
    def program(a, b):
        return lax.custom_linear_solve(lambda x: a @ x, b, lambda f, b: b - f(f(b)), lambda f, b: b - f(b))

    structs = shape(8, 8), shape(8, 4)
    assert len(jaxgemm.explain(jaxgemm.override(program), *structs, platform="cpu").products) == 2
    found = jaxgemm.explain(program, *structs, platform="cpu")
    assert len(found.left) == 2
    assert {x.why for x in found.left} == {"nothing routes it to jaxgemm; jaxgemm.override would"}


def test_what_a_kernel_does_not_fuse_is_said():
    """A bias over two axes of the result is one that no kernel adds."""
    f = jax.vmap(lambda a, b, bias: jaxgemm.gemm(a, b, bias=bias, activation="silu", kernel="host"))
    (product,) = jaxgemm.explain(f, shape(2, 8, 16), shape(2, 16, 4), shape(2, 4), platform="cpu").products
    assert product.epilogue.activation is None
    (product,) = jaxgemm.explain(
        shape(8, 16), shape(16, 4), shape(8, 4, dtype=jnp.float16), activation="silu", kernel="host", platform="cpu"
    ).products
    assert "silu(a b + 1 * c), composed in jnp" in str(product)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_product_without_its_epilogue_is_ours(dtype):
    """Where no kernel has the epilogue and one takes the product, unless XLA is as fast for the product."""
    f = lambda a, b, bias: jaxgemm.gemm(a, b, bias=bias, activation="relu", alpha=-3)  # noqa: E731
    args = shape(512, 1024, dtype=dtype), shape(1024, 256, dtype=dtype), shape(256, dtype=jnp.int32)
    (product,) = jaxgemm.explain(f, *args, platform="cuda").products
    assert (product.kernel, product.decision.choice.rule) == ("sm90", dtype)
    assert "relu(-3 * a b + bias), composed in jnp" in str(product)
    batch = shape(8, 512, 1024, dtype=dtype), shape(8, 1024, 256, dtype=dtype)
    (product,) = jaxgemm.explain(*batch, activation="relu", platform="cuda").products
    assert product.kernel == ("xla" if dtype == "int8" else "sm90")


def test_the_copies_that_a_layout_needs_are_said():
    f = lambda a, b: jaxgemm.dot_general(a, b, (((0, 2), (0, 1)), ((), ())), kernel="host")  # noqa: E731
    (product,) = jaxgemm.explain(f, shape(4, 5, 7), shape(4, 7, 6), platform="cpu").products
    assert "copies     lhs" in str(product)


def test_auto_on_the_cpu_is_xla():
    (product,) = jaxgemm.explain(shape(64, 32), shape(32, 16), platform="cpu").products
    assert product.kernel == "xla"
    assert "on cpu products are left to XLA" in product.decision.choice.why


def test_auto_never_refuses():
    for dtype in (jnp.complex64, jnp.int32, jnp.int16, jnp.uint8, jnp.float16, jnp.float64, jnp.float8_e4m3fn):
        for platform in ("cpu", "cuda", "tpu"):
            (product,) = jaxgemm.explain(shape(8, 8, dtype=dtype), shape(8, 8, dtype=dtype), platform=platform).products
            assert product.decision.choice.why


@pytest.mark.parametrize("precision", ["TF32_TF32_F32", "F64_F64_F64"])
def test_auto_leaves_a_precision_that_is_not_ours_to_xla(precision):
    (product,) = jaxgemm.explain(shape(512, 512), shape(512, 512), precision=precision, platform="cuda").products
    assert product.kernel == "xla"


def test_cuda_without_such_a_device_is_an_h200():
    naive = lambda: jaxgemm.explain(shape(128, 64), shape(64, 128), kernel="naive", platform="cuda")  # noqa: E731
    if not next(row for row in jaxgemm.kernels() if row.name == "naive").built:
        with pytest.raises(jaxgemm.UnsupportedError, match="this build has none"):
            naive()
        return
    assert [p.kernel for p in naive().products] == ["naive"]
    assert "floor" in str(naive())


@pytest.mark.parametrize("kernel", ["auto", "xla"])
def test_what_is_xlas_has_the_type_that_was_asked_for(kernel):
    """Not that of its sums, in which a kernel that cannot finish a product writes it."""
    types = shape(64, 32, dtype=jnp.bfloat16), shape(32, 16, dtype=jnp.bfloat16)
    (product,) = jaxgemm.explain(*types, activation="relu", kernel=kernel, platform="cpu").products
    assert product.decision.problem.dtypes == ("bfloat16",) * 3


def test_the_epilogue_of_a_product_of_xlas():
    shapes = shape(8, 16), shape(16, 4), shape(4)
    plain = jaxgemm.explain(lambda a, b, _: jaxgemm.gemm(a, b), *shapes, platform="cpu")
    biased = jaxgemm.explain(lambda a, b, v: jaxgemm.gemm(a, b, bias=v, activation="gelu"), *shapes, platform="cpu")
    assert "epilogue" not in str(plain)
    assert "epilogue   gelu(a b + bias), written in jnp" in str(biased)


def test_a_kernel_that_cannot_is_an_error():
    with pytest.raises(jaxgemm.UnsupportedError, match="runs on cuda, the program is for cpu"):
        jaxgemm.explain(shape(8, 8), shape(8, 8), kernel="naive", platform="cpu")


def test_the_table_is_sound():
    rows = jaxgemm.kernels()
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert not {"auto", "xla"} & set(names)
    for row in rows:
        assert row.platform in ("cpu", "cuda")
        assert row.summary
        assert row.family
        assert row.types
        assert (row.min_arch > 0) == (row.platform == "cuda")
        assert row.max_arch == 0 or row.max_arch >= row.min_arch
        assert len(set(row.types)) == len(row.types)
        assert row.deterministic
        for values in row.options.values():
            assert len(set(values)) == len(values)


def shown(**fields):
    """Lines of a product of sm90, by their labels; those of one label joined by a slash."""
    row = next(row for row in jaxgemm.kernels() if row.name == "sm90")
    choice = Choice(**{"kernel": row, "config": (), "workspace": 0, "why": "why"} | fields)
    view = plan((64, 96), (96, 32), (((1,), (0,)), ((), ())))
    problem = Problem(64, 32, 96, (1, 1), view.a, view.b, ("bfloat16",) * 3, Epilogue())
    product = Product("a x b", "bfloat16", Decision(choice, problem, view), Epilogue(), None, None, 1)
    lines, label = {}, ""
    for line in str(product).split("\n")[1:]:
        label = line[2:12].strip() or label
        lines[label] = f"{lines[label]} / {line[13:]}" if label in lines else line[13:]
    return lines


def config(**values):
    row = next(row for row in jaxgemm.kernels() if row.name == "sm90")
    return configuration(row, tuple(values.items()))


def test_options_and_candidates_are_named():
    chosen = config(tile_m=128, tile_n=256, schedule=1)
    other = config(tile_m=128, tile_n=128, schedule=1, split_k=2)
    considered = (Candidate(chosen, 10.04), Candidate(other, 12.0))
    lines = shown(config=chosen, considered=considered, contender="sm90", ours=10.04, theirs=13.0, rule="some-rule")
    assert lines["kernel"] == "sm90: why"
    assert lines["rule"] == "some-rule"
    assert lines["expected"] == "sm90 10.0 us, XLA's product 13.0 us"
    assert lines["options"] == "tile_m=128, tile_n=256, schedule=1"
    assert lines["candidates"] == "10.0 us expected: as chosen / 12.0 us expected: tile_n=128, split_k=2"
    assert "parts" not in lines
    assert shown()["options"] == "the kernel's own"
    assert "expected" not in shown()


def test_what_is_not_modelled_is_said():
    assert shown(contender="sm90", ours=10.0)["expected"] == "sm90 10.0 us, XLA's product not modelled"
    left = shown(kernel=None, contender="sm90", ours=10.0, theirs=8.0)
    assert left["kernel"] == "xla: why"
    assert left["expected"] == "sm90 10.0 us, XLA's product 8.0 us"
    assert shown(contender="gemv", theirs=8.0)["expected"] == "gemv not modelled, XLA's product 8.0 us"


def test_the_parts_of_the_expected_time_are_those_of_the_chosen_configuration():
    parts = (("launch", 1.25), ("main_loop", 7.5), ("copies", 0.0), ("epilogue", 1.3))
    chosen = config(tile_m=128)
    considered = (
        Candidate(chosen, 10.05, parts),
        Candidate(config(tile_m=64), 12.0, (("launch", 12.0),)),
    )
    lines = shown(config=chosen, considered=considered, contender="sm90", ours=10.05)
    assert lines["parts"] == "launch 1.2, main loop 7.5, epilogue 1.3 us"
    # A batch-invariant product's were weighed for another number of rows.
    invariant = shown(config=chosen, considered=considered, ours=40.0, rule="batch-invariant")
    assert "parts" not in invariant
    assert invariant["candidates"].startswith("10.1 us expected of 256 rows: as chosen / 12.0 us expected of 256 rows")


def test_gated_pairs_are_shown_with_their_form():
    shapes = [shape(*s, dtype=jnp.bfloat16) for s in ((16, 128), (128, 256), (128, 256))]
    for kernel, why, rule in (
        ("auto", "no kernel for cpu has a gated form", "no-gated-form"),
        ("xla", "XLA's products were asked for by name", "by-name"),
        ("host", "kernel 'host' has no gated form", "no-gated-form"),
    ):
        found = jaxgemm.explain(partial(jaxgemm.gated_gemm, kernel=kernel), *shapes, platform="cpu")
        assert [p.kernel for p in found.products] == ["host" if kernel == "host" else "xla"] * 2
        gate, up = (p.gated for p in found.products)
        assert gate == f"gate, of two products composed in jnp: {why} ({rule})"
        assert up == f"up, of two products composed in jnp: {why} ({rule})"
        assert f"gated      {gate}" in str(found)


def test_gated_pairs_of_one_launch():
    f = lambda x, w: lax.scan(lambda c, _: (jaxgemm.gated_gemm(c, w, w), None), x, None, length=3)[0]  # noqa: E731
    found = jaxgemm.explain(f, shape(16, 256, dtype=jnp.bfloat16), shape(256, 256, dtype=jnp.bfloat16), platform="cuda")
    if not next(row for row in jaxgemm.kernels() if row.name == "sm90").built:
        assert len(found.products) == 2
        return
    (product,) = found.products
    assert (product.kernel, product.trips, product.gated) == ("sm90", 3, "both products of the pair")
    assert product.operands == "bfloat16[16,256] x (bfloat16[256,256], bfloat16[256,256])"
    for line in (
        "sm90: one launch",
        "rule       gated-one-launch",
        "expected   one launch of sm90",
        "epilogue   silu(a b) * (a b_up)",
        "copies     none",
        "candidates",
        "floor",
    ):
        assert line in str(found)
