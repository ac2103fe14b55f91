"""What precisions of float32 products promise, and who keeps it. The kernels are tested in kernels/test_planes.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax

import jaxgemm
from jaxgemm import precision
from jaxgemm.kernels import find_kernel
from jaxgemm.measure.case import ALGORITHMS

NAMES = ALGORITHMS
#: Of a product so large that what multiplies fewest parts is fastest.
SQUARE = (4096, 4096)
needs_sm90 = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")


def choice(function, *shapes, **options):
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    (product,) = jaxgemm.explain(lambda *x: function(*x, **options), *operands, platform="cuda").products
    return product.decision.choice, str(product)


def test_bounds_grow_with_k_and_shrink_with_parts():
    for name in NAMES:
        bounds = [jaxgemm.error_bound(name, k) for k in (0, 1, 64, 1000, 131072)]
        assert bounds == sorted(bounds)
    one, two, three, nine = (jaxgemm.error_bound(name, 64) for name in NAMES[1:5])
    assert one > 100 * two > 100 * three > nine > 0
    assert two > jaxgemm.error_bound("TF32_TF32_F32_X3", 64) > three
    # "high" allows two parts or plain sums, whichever errs more.
    assert jaxgemm.error_bound("high", 64) == two
    assert jaxgemm.error_bound("highest", 4096) >= max(jaxgemm.error_bound(x, 4096) for x in (NAMES[0], NAMES[3]))
    assert jaxgemm.error_bound(lax.DotAlgorithmPreset.BF16_BF16_F32_X6, 7) == jaxgemm.error_bound(NAMES[3], 7)


@pytest.mark.parametrize("name", [None, "default", "TF32_TF32_F32", "F64_F64_F64", "F16_F16_F32"])
def test_precisions_that_promise_no_bound(name):
    with pytest.raises(ValueError, match="promises no bound for float32 operands"):
        jaxgemm.error_bound(name, 64)


def test_a_bound_is_of_a_length():
    with pytest.raises(ValueError, match="k must be at least 0, got -1"):
        jaxgemm.error_bound("highest", -1)


def parts(x, count):
    """A number's parts in bfloat16, each the nearest to what the ones before it leave, as wide as they are."""
    out, left = [], np.float64(x)
    for _ in range(count):
        out.append(np.float64(np.asarray(left).astype(jnp.bfloat16)))
        left = left - out[-1]
    return out


numbers = st.floats(-(2.0**60), 2.0**60, width=32).filter(lambda x: x == 0 or abs(x) > 2.0**-60)


@given(x=numbers, y=numbers)
def test_what_products_of_parts_leave_out(x, y):
    """The term of the bound that does not depend on k."""
    for name, count, most in (("bf16", 1, 1), ("bf16_x3", 2, 2), ("bf16_x6", 3, 3), ("bf16_x9", 3, 5)):
        first, second = parts(x, count), parts(y, count)
        total = sum(p * q for i, p in enumerate(first) for j, q in enumerate(second) if i + j < most)
        left_out = precision._PLANES[name][1]
        assert abs(total - np.float64(x) * np.float64(y)) <= left_out * abs(np.float64(x) * np.float64(y))


#: Of a product whose parts do not fit into the workspace.
LARGE = (32768, 32768)
LIMIT = 1 << 30


@needs_sm90
@pytest.mark.parametrize(
    ("name", "parts", "asked"),
    [
        *((name, 3, asked) for name in ("highest", "TF32_TF32_F32_X3") for asked in ("auto", "sm90")),  # guard up: 3
        *((name, parts, "sm90") for name, parts in zip(NAMES[1:5], (1, 2, 3, 3), strict=True)),
        *((name, parts, "auto") for name, parts in zip(NAMES[2:5], (2, 3, 3), strict=True)),  # of one part XLA's
    ],
)
def test_slabs_keep_to_the_workspace(name, parts, asked):
    """As few as the limit allows, whose number `explain` tells; bias and activation stay the kernel's."""
    bias = jax.ShapeDtypeStruct(LARGE[1:], jnp.float32)

    def layer(a, b, bias):
        return jaxgemm.gemm(a, b, bias=bias, activation="gelu", precision=name, kernel=asked)

    operands = [jax.ShapeDtypeStruct(LARGE, jnp.float32)] * 2
    (product,) = jaxgemm.explain(layer, *operands, bias, platform="cuda").products
    found = product.decision.choice
    slabs = dict(zip(found.kernel.options, found.config, strict=True))["slabs"]
    every = 2 * LARGE[0] * LARGE[1] * 2 * parts  # bytes
    assert every / LIMIT < slabs <= 1.1 * every / LIMIT + 1
    assert LIMIT * 3 // 4 < found.workspace <= LIMIT
    assert f"slabs={slabs}" in str(product)
    assert f"workspace  {found.workspace} bytes" in str(product)
    assert "epilogue   gelu(a b + bias)\n" in str(product)


@needs_sm90
def test_fewer_slabs_take_more_memory():
    """Where they are asked for. A product whose bits must not follow from m has one."""
    named = {"precision": "highest", "kernel": "sm90"}
    found, text = choice(jaxgemm.gemm, LARGE, LARGE, **named, slabs=3)
    assert "slabs=3" in text
    assert found.workspace > LIMIT
    with pytest.raises(jaxgemm.UnsupportedError, match="bytes of workspace, the limit is"):
        choice(jaxgemm.gemm, LARGE, LARGE, **named, batch_invariant=True)
    narrow = [jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)] * 2
    with pytest.raises(jaxgemm.UnsupportedError, match="option slabs is for planes of fp32 operands"):
        jaxgemm.explain(lambda a, b: jaxgemm.gemm(a, b, kernel="sm90", slabs=2), *narrow, platform="cuda")


@needs_sm90
@pytest.mark.parametrize("name", ["highest", "BF16_BF16_F32_X6", "TF32_TF32_F32_X3"])
def test_what_no_slab_is_short_enough_for(name):
    """So many rows that the parts of one step take more than the limit: XLA's by `auto`, and refused by name."""
    shapes = (3_000_000, 4096), (4096, 64)
    reason = "the planes of 64 values of k need more than 1 GiB"
    found, _ = choice(jaxgemm.gemm, *shapes, precision=name)
    assert found.kernel is None
    assert (found.rule, found.why) == ("no-kernel-fits", reason) or name == "highest"  # for which XLA is as fast
    with pytest.raises(jaxgemm.UnsupportedError, match=reason):
        choice(jaxgemm.gemm, *shapes, precision=name, kernel="sm90")


@needs_sm90
@pytest.mark.parametrize("out", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("shape", [SQUARE, LARGE])
@pytest.mark.parametrize("name", ["highest", "BF16_BF16_F32_X6", "TF32_TF32_F32_X3"])
def test_16_bit_results(name, shape, out):
    """No kernel writes these of parts, as slabs are added up in float32. `auto` leaves them to XLA; by name the product
    is float32's, in slabs, which jnp rounds.
    """
    asked = {"precision": name, "out_dtype": out}
    found, _ = choice(jaxgemm.gemm, shape, shape, **asked)
    assert (found.kernel, found.rule) == (None, "no-kernel-fits")
    assert f"kernel 'sm90' got float32 x float32 -> {jnp.dtype(out).name}" in found.why
    found, text = choice(jaxgemm.gemm, shape, shape, **asked, kernel="sm90")
    assert text.startswith(f"float32[{shape[0]},{shape[1]}] x float32[{shape[0]},{shape[1]}] -> float32\n")
    assert found.workspace <= LIMIT


@needs_sm90
def test_batches_are_not_scaled():
    """Their guard would be one for all of them."""
    scaled = {"precision": "TF32_TF32_F32_X3"}
    assert choice(jaxgemm.matmul, SQUARE, SQUARE, **scaled)[0].arithmetic == "f16_x3"
    assert choice(jaxgemm.matmul, (4, *SQUARE), (4, *SQUARE), **scaled)[0].arithmetic == "bf16_x6"


@needs_sm90
def test_explain_says_how_and_how_exactly():
    for name, kernel in (("BF16_BF16_F32_X3", "sm90"), ("F32_F32_F32", "simt")):
        found, text = choice(jaxgemm.gemm, (256, 256), (256, 256), precision=name)
        assert found.kernel.name == kernel
        bound = f"errors of at most {jaxgemm.error_bound(name, 256):.1e} of the sum of |a| |b|"
        assert f"arithmetic {found.arithmetic}: multiplies float32 operands as" in text
        assert bound in text


@needs_sm90
def test_kernels_refuse_algorithms_that_they_do_not_compute():
    x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    for kernel in ("simt", "gemv"):
        for name in NAMES[1:]:
            with pytest.raises(jaxgemm.UnsupportedError, match="is not one that jaxgemm's kernels compute"):
                jaxgemm.explain(
                    lambda a, b, n=name, k=kernel: jaxgemm.gemm(a, b, precision=n, kernel=k), x, x, platform="cuda"
                )
    with pytest.raises(jaxgemm.UnsupportedError, match="the kernel rounds float32 operands to bfloat16"):
        jaxgemm.explain(lambda a, b: jaxgemm.gemm(a, b, precision="F32_F32_F32", kernel="sm90"), x, x, platform="cuda")


def arithmetics(function, *shapes, **options):
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    products = jaxgemm.explain(lambda *x: function(*x, **options), *operands, platform="cuda").products
    return [product.decision.choice.arithmetic for product in products]


@needs_sm90
def test_every_product_of_a_program_has_the_precision():
    """Gradients, gated pairs, vmap, scan and remat; what `override` makes of a function that knows nothing of it."""

    def layer(x, w):
        return jnp.tanh(jaxgemm.gemm(x, w, precision="highest"))

    def loss(x, w):
        return jax.grad(lambda x, w: jnp.sum(jax.checkpoint(layer)(x, w)), (0, 1))(x, w)

    assert arithmetics(loss, SQUARE, SQUARE) == ["bf16_x6"] * 4  # forward, once more, and two gradients
    assert arithmetics(jaxgemm.gated_gemm, SQUARE, SQUARE, SQUARE, precision="highest") == ["bf16_x6"] * 2
    assert arithmetics(jax.vmap(layer), (3, *SQUARE), (3, *SQUARE)) == ["bf16_x6"]
    assert arithmetics(lambda x, w: jax.lax.scan(lambda x, _: (layer(x, w), None), x, length=3), SQUARE, SQUARE) == [
        "bf16_x6"
    ]
    plain = lambda x, w: jnp.sin(x @ w) @ w  # noqa: E731
    for asked, arithmetic in (("highest", "bf16_x6"), ("TF32_TF32_F32_X3", "f16_x3"), (None, "plain")):
        assert arithmetics(jaxgemm.override(plain, precision=asked), SQUARE, SQUARE) == [arithmetic] * 2


@needs_sm90
@pytest.mark.parametrize("name", ["highest", *NAMES[1:]])
def test_programs_are_lowered_and_exported(name):
    operands = [jax.ShapeDtypeStruct(SQUARE, jnp.float32)] * 2
    function = jax.jit(lambda a, b: jaxgemm.gemm(a, b, precision=name, kernel="sm90"))
    arithmetic = precision.arithmetics(precision.canonical(name), np.dtype(np.float32))[0]
    text = function.trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
    assert f'arithmetic = "{arithmetic}"' in text
    allowed = [jax.export.DisabledSafetyCheck.custom_call("jaxgemm_gemm")]
    exported = jax.export.export(function, platforms=["cuda"], disabled_checks=allowed)(*operands)
    assert arithmetic in exported.mlir_module()
    assert jax.export.deserialize(exported.serialize()).in_avals == exported.in_avals
