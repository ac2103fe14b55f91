"""What programs become: one call where there can be one, on any machine for any platform, with nothing copied."""

import re
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax.sharding import PartitionSpec as P
from jax.sharding import SingleDeviceSharding
from meshes import mesh

import jaxgemm
from jaxgemm import wire
from jaxgemm.kernels import find_kernel


def lowered(f, platforms, *shapes):
    traced = jax.jit(f).trace(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
    return traced.lower(lowering_platforms=platforms).as_text()


@pytest.mark.parametrize("built", [r for r in jaxgemm.kernels() if r.built], ids=lambda r: r.name)
def test_a_kernel_lowers_to_its_call_on_any_machine(built):
    a, b, d, _ = built.types[0]
    f = lambda a, b: jaxgemm.gemm(a, b, out_dtype=d, kernel=built.name)  # noqa: E731
    shapes = jax.ShapeDtypeStruct((128, 64), a), jax.ShapeDtypeStruct((64, 128), b)
    text = jax.jit(f).trace(*shapes).lower(lowering_platforms=(built.platform,)).as_text()
    assert text.count("@jaxgemm_gemm") == 1
    assert f'kernel = "{built.name}"' in text


def test_auto_lowers_for_several_platforms_at_once():
    f = lambda a, b, c: jaxgemm.gemm(a, b, c, beta=2, activation="silu")  # noqa: E731
    text = lowered(f, ("cpu", "cuda"), (8, 16), (16, 4), (8, 4))
    assert "dot_general" in text
    gradient = jax.grad(lambda *x: jnp.sum(f(*x)))
    assert "dot_general" in lowered(gradient, ("cpu", "cuda"), (8, 16), (16, 4), (8, 4))


def test_auto_lowers_for_a_platform_without_kernels():
    assert "dot_general" in lowered(jaxgemm.gemm, ("tpu",), (8, 16), (16, 4))


def test_a_jitted_product_is_one_call_with_no_copies():
    """The epilogue is in the call, and operands are not moved."""
    f = lambda a, b, c, bias: jaxgemm.gemm(  # noqa: E731
        a, b, c, alpha=2, beta=3, bias=bias, activation="gelu", transpose_a=True, kernel="host"
    )
    text = lowered(f, ("cpu",), (64, 32), (64, 16), (32, 16), (16,))
    assert text.count("@jaxgemm_gemm") == 1
    assert not [line for line in text.splitlines() if "stablehlo." in line and "custom_call" not in line]


def _types_of_products(f, *shapes):
    text = jax.jit(f).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    return re.findall(r"dot_general.*-> tensor<[\dx]*x(\w+)>", text)


@pytest.mark.parametrize("kernel", ["auto", "xla"])
@pytest.mark.parametrize(
    ("dtype", "bias", "alpha", "product"),
    [
        ("bfloat16", "bfloat16", 1.0, "bf16"),
        ("bfloat16", "bfloat16", 0.5, "bf16"),
        ("float16", "float16", 1.0, "f16"),
        ("float16", "float16", 0.5, "f32"),  # which may bring it back into range
        ("bfloat16", "float32", 1.0, "f32"),
        ("float32", "float32", 0.5, "f32"),
    ],
)
def test_what_xla_computes_is_written_as_in_jnp(kernel, dtype, bias, alpha, product):
    """XLA fuses the epilogue of a product of the result's type into its own, and no other's."""
    shapes = [jax.ShapeDtypeStruct(s, t) for s, t in (((4096, 4096), dtype), ((4096, 4096), dtype), ((4096,), bias))]
    f = lambda a, b, bias: jaxgemm.gemm(a, b, alpha=alpha, bias=bias, out_dtype=dtype, kernel=kernel)  # noqa: E731
    assert _types_of_products(f, *shapes) == [product]


@pytest.mark.parametrize("platform", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_xla_compiles_what_it_compiles_of_jnp(dtype, platform):
    def theirs(x, w, c, bias):
        return jax.nn.gelu(x @ w + c + bias)

    def ours(x, w, c, bias):
        return jaxgemm.gemm(x, w, c, bias=bias, activation="gelu", kernel="xla")

    def instructions(f):
        here = SingleDeviceSharding(jax.devices(platform)[0])
        shapes = [jax.ShapeDtypeStruct(s, dtype, sharding=here) for s in ((256, 512), (512, 128), (256, 128), (128,))]
        return Counter(re.findall(r" = (\S+ [\w-]+)\(", jax.jit(f).lower(*shapes).compile().as_text()))

    assert instructions(ours) == instructions(theirs)


@pytest.mark.parametrize("kernel", ["auto", "xla"])
def test_what_xla_computes_is_written_as_in_jnp_under_vmap(kernel):
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((4, 2048, 2048), (4, 2048, 2048), (4, 2048))]
    f = lambda x, w, bias: jaxgemm.gemm(x, w, bias=bias, activation="gelu", kernel=kernel)  # noqa: E731
    assert _types_of_products(jax.vmap(f), *shapes) == ["bf16"]
    g = lambda x, w, up: jaxgemm.gated_gemm(x, w, up, kernel=kernel)  # noqa: E731
    assert _types_of_products(jax.vmap(g), *shapes[:2], shapes[1]) == ["bf16", "bf16"]


SEEN_THROUGH = {
    "weights": (lambda product, x, w: product(x, w.T), (4, 8), (16, 8)),
    "rows": (lambda product, x, w: product(x.T, w), (8, 4), (8, 16)),
    "both": (lambda product, x, w: product(x.T, w.T), (8, 4), (16, 8)),
    "a batch": (lambda product, x, w: product(x, jnp.swapaxes(w, -1, -2)), (3, 4, 8), (3, 16, 8)),
    "heads": (lambda product, x, w: product(jnp.swapaxes(x, 0, 1), jnp.moveaxis(w, 1, 0)), (4, 3, 8), (8, 3, 16)),
    "after vmap": (lambda product, x, w: jax.vmap(lambda x, w: product(x, w.T))(x, w), (3, 4, 8), (3, 16, 8)),
}


@pytest.mark.parametrize("name", SEEN_THROUGH)
def test_a_transposition_before_a_product_is_no_copy(name, rng):
    function, *shapes = SEEN_THROUGH[name]
    f = partial(function, partial(jaxgemm.matmul, kernel="host"))
    x, w = (array(rng.standard_normal(shape)) for shape in shapes)
    text = jax.jit(f).lower(x, w).as_text()
    call = next(line for line in text.splitlines() if "@jaxgemm_gemm" in line)
    assert set(re.findall(r"%\w+", call.partition("custom_call")[2])) == {"%arg0", "%arg1"}
    np.testing.assert_allclose(jax.jit(f)(x, w), function(jnp.matmul, x, w), rtol=1e-12)
    (product,) = jaxgemm.explain(f, x, w, platform="cpu").products
    problem = product.decision.problem
    sent = wire.attributes("host", (), problem)
    for name in ("a", "b"):  # explain sees through it as well
        assert re.search(rf"\b{name} = \D*{', '.join(map(str, sent[name]))}\b", call.replace("i64: ", ""))


def test_axes_that_change_places_are_moved(rng):
    """The order of free axes is the result's."""
    x, w = array(rng.standard_normal((4, 5, 8))), array(rng.standard_normal((8, 6)))
    f = lambda product, x, w: product(jnp.swapaxes(x, 0, 1), w)  # noqa: E731
    ours = jax.jit(partial(f, partial(jaxgemm.matmul, kernel="host")))
    np.testing.assert_allclose(ours(x, w), f(jnp.matmul, x, w), rtol=1e-12)


def test_vmap_over_one_operand_reads_the_other_in_place():
    f = jax.vmap(lambda a, b: jaxgemm.gemm(a, b, kernel="host"), (0, None))
    text = lowered(f, ("cpu",), (5, 32, 64), (64, 16))
    assert "broadcast" not in text
    assert "transpose" not in text


@pytest.mark.parametrize("batches", [((5,), (1,)), ((1,), (5,)), ((5, 1), (1, 3)), ((3,), ())], ids=str)
def test_broadcast_batches_are_not_materialised(batches):
    f = lambda a, b: jaxgemm.gemm(a, b, kernel="host")  # noqa: E731
    text = lowered(f, ("cpu",), (*batches[0], 8, 16), (*batches[1], 16, 32))
    assert "broadcast" not in text


@pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")
def test_tiles_have_blocks_of_their_own_beside_collectives():
    """Blocks that stay would be late where collectives occupy multiprocessors. Who asks for them gets them."""
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((4096, 512), (512, 4096))]

    def grid(devices, **options):
        f = partial(jaxgemm.gemm, kernel="sm90", **options)
        if devices > 1:
            specs = {"in_specs": (P("x"), P()), "out_specs": P("x")}
            f = jax.shard_map(f, mesh=mesh((devices,), ("x",)), **specs)
        text = jax.jit(f).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
        config = re.search(r"config = array<i64: ([-\d, ]+)>|config = dense<\[([-\d, ]+)\]>", text)
        values = [int(v) for v in (config[1] or config[2]).split(",")]
        return dict(zip(find_kernel("sm90").options, values, strict=True))["grid"]

    assert [grid(1), grid(1, grid=2), grid(8), grid(8, grid=1)] == [1, 2, 2, 1]
