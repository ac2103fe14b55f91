"""Errors about kernels and devices: options, platforms, architectures, builds, and what a kernel cannot compute."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxgemm
from jaxgemm import precision
from jaxgemm.choice import resolve
from jaxgemm.kernels import Device, find_kernel

A, B = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
I8 = np.ones((4, 4), np.int8)
BOOL = np.ones((4, 4), bool)
C64 = np.ones((4, 4), np.complex64)


CUDA = [row for row in jaxgemm.kernels() if row.platform == "cuda"]
#: All of them are built, or none is.
needs_cuda = pytest.mark.skipif(not CUDA[0].built, reason="this build has no CUDA kernels")


# --- Options --------------------------------------------------------------------------------------------------


def test_every_kernel_names_the_option_it_lacks():
    for row in jaxgemm.kernels():
        known = ", ".join(row.options) or "none"
        with pytest.raises(ValueError, match=f"kernel '{row.name}' has no option colour; its options: {known}"):
            jaxgemm.gemm(A, B, kernel=row.name, colour=1)


def test_an_option_by_its_former_name_is_told_the_one_it_has():
    with pytest.raises(ValueError, match="option group of kernel 'sm90' is called walk_height"):
        jaxgemm.gemm(A, B, kernel="sm90", group=8)


def lower(row, **options):
    """Lower a product of the kernel's first types for its platform, on any machine."""
    a, b, d, _ = row.types[0]
    f = lambda x, y: jaxgemm.gemm(x, y, out_dtype=d, kernel=row.name, **options)  # noqa: E731
    shapes = jax.ShapeDtypeStruct((64, 32), a), jax.ShapeDtypeStruct((32, 48), b)
    jax.jit(f).trace(*shapes).lower(lowering_platforms=(row.platform,))


@needs_cuda
def test_option_values_out_of_range():
    for row in CUDA:
        for name, values in row.options.items():
            wrong = max(values) + 1 if values else -1
            expected = f"one of {', '.join(map(str, values))}" if values else "0 or more"
            text = f"option '{name}' of kernel '{row.name}': got {wrong}, expected {expected}"
            with pytest.raises(jaxgemm.UnsupportedError, match=re.escape(text)):
                lower(row, **{name: wrong})


def test_tuple_options_of_another_length():
    tiled = {row.name: sum(name.startswith("tile_") for name in row.options) for row in CUDA}
    assert any(tiled.values())
    for name, count in tiled.items():
        text = f"gemm: option tile of kernel '{name}' takes {count} values, got (1,"
        with pytest.raises(ValueError, match=re.escape(text)):
            jaxgemm.gemm(A, B, kernel=name, tile=(1,) * (count + 1))


# --- Kernels and devices --------------------------------------------------------------------------------------


def test_a_cuda_kernel_on_the_cpu():
    row = CUDA[0]
    text = f"kernel '{row.name}' runs on cuda, the program is for cpu"
    with pytest.raises(jaxgemm.UnsupportedError, match=re.escape(text)):
        jaxgemm.gemm(A, B, kernel=row.name)


def test_the_cpu_kernel_on_cuda():
    f = jax.jit(lambda a, b: jaxgemm.gemm(a, b, kernel="host"))
    text = "kernel 'host' runs on cpu, the program is for cuda"
    with pytest.raises(jaxgemm.UnsupportedError, match=re.escape(text)):
        f.trace(A, B).lower(lowering_platforms=("cuda",))


def test_a_named_kernel_for_a_platform_without_kernels():
    f = jax.jit(lambda a, b: jaxgemm.gemm(a, b, kernel="host"))
    with pytest.raises(jaxgemm.UnsupportedError, match="kernel 'host' runs on cpu, the program is for"):
        f.trace(A, B).lower(lowering_platforms=("tpu",))


def _device(monkeypatch, arch):
    device = lambda platform: Device(platform, "a device", arch, 20)  # noqa: E731
    monkeypatch.setattr("jaxgemm.products.dense.device_for", device)


@needs_cuda
def test_a_device_too_old(monkeypatch):
    _device(monkeypatch, 75)
    for row in CUDA:
        needs = re.escape(f"kernel '{row.name}' needs compute capability {row.min_arch // 10}.{row.min_arch % 10}")
        with pytest.raises(jaxgemm.UnsupportedError, match=f"{needs}.*, the device has 7.5"):
            lower(row)


@needs_cuda
def test_a_device_too_new(monkeypatch):
    _device(monkeypatch, 199)
    limited = [row for row in CUDA if row.max_arch]
    assert limited
    for row in limited:
        with pytest.raises(jaxgemm.UnsupportedError, match=r"the device has 19\.9"):
            lower(row)


@pytest.mark.skipif(CUDA[0].built, reason="this build has the CUDA kernels")
def test_kernels_that_are_not_built():
    for row in CUDA:
        text = f"kernel '{row.name}' is a CUDA kernel and this build has none"
        with pytest.raises(jaxgemm.UnsupportedError, match=re.escape(text)):
            lower(row)


def test_too_much_workspace(monkeypatch):
    monkeypatch.setattr(resolve, "check", lambda *_: ("", 1 << 31))
    text = f"kernel 'host' needs {1 << 31} bytes of workspace, the limit is {1 << 30}"
    with pytest.raises(jaxgemm.UnsupportedError, match=text):
        jax.jit(lambda a: jaxgemm.gemm(a, a, kernel="host")).lower(np.ones((77, 77)))


def test_unsupported_is_a_value_error_and_lists_what_is_supported():
    with pytest.raises(ValueError, match="it supports") as caught:
        jaxgemm.gemm(C64, C64, kernel="host")
    row = find_kernel("host")
    for a, b, d, _ in row.types:
        assert f"{a} x {b} -> {d}" in str(caught.value)


def test_auto_takes_what_jnp_takes():
    """No error of ours where XLA has a product."""
    np.testing.assert_allclose(jaxgemm.gemm(C64, C64 * 2j), C64 @ C64 * 2j)
    assert jaxgemm.gemm(I8.astype(np.int16), I8).dtype == jnp.int32
    assert jaxgemm.matmul(I8.astype(np.int64), I8).dtype == jnp.int64
    assert jaxgemm.matmul(BOOL, I8 > 0).dtype == jnp.bool_


@pytest.mark.parametrize("batch_invariant", [False, True])
def test_derivatives_of_named_kernels_fall_back_and_say_so(batch_invariant):
    """A cotangent's type may be one that the named kernel does not take; the program still runs."""
    a = jnp.ones((4, 4), jnp.bfloat16)
    how = {"precision": "BF16_BF16_F32", "preferred_element_type": jnp.float32, "kernel": "host"}
    how["batch_invariant"] = batch_invariant
    gradient = jax.grad(lambda a: jnp.sum(jaxgemm.matmul(a, a, **how)))
    assert gradient(a).dtype == jnp.bfloat16
    products = jaxgemm.explain(gradient, a).products
    assert [p.kernel for p in products] == ["host", "xla", "xla"]
    for product in products[1:]:
        assert re.match("a derivative's product; .*kernel 'host'", product.decision.choice.why)


@needs_cuda
def test_tangents_that_the_named_kernel_refuses_are_left_to_xla():
    """All tangents of an operand at a time may be more rows than the kernel has blocks for."""
    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((1024, 64), (64, 32)))
    jacobian = jax.jacfwd(lambda x, w: jaxgemm.gemm(x, w, kernel="direct"))
    first, second = jaxgemm.explain(jacobian, x, w, platform="cuda").products
    assert (first.kernel, second.kernel) == ("direct", "xla")
    refusal = "kernel 'direct': m must not be above 65535 rows of tiles"
    assert second.decision.choice.why.startswith(f"a derivative's product; {refusal}")


def test_a_kernel_that_rounds_to_tf32_serves_no_higher_precision():
    def lower(given):
        f = jax.jit(lambda a, b: jaxgemm.gemm(a, b, kernel="wmma_tf32", precision=given))
        with pytest.raises(jaxgemm.UnsupportedError, match="the kernel rounds float32 operands to TF32"):
            f.trace(A, B).lower(lowering_platforms=("cuda",))

    for given in ("highest", ("default", "high"), "F32_F32_F32"):
        lower(given)
    with jax.default_matmul_precision("float32"):
        lower(None)


@pytest.mark.parametrize(
    ("given", "dtype", "allowed"),
    [
        (None, "float32", ("tf32", "bf16_x3", "plain")),
        ("default", "float32", ("tf32", "bf16_x3", "plain")),
        (("default", "high"), "float32", ("bf16_x3", "plain")),
        (("high", "highest"), "float32", ("bf16_x6", "plain")),
        ("highest", "float32", ("bf16_x6", "plain")),
        ("TF32_TF32_F32", "float32", ("tf32",)),
        ("F32_F32_F32", "float32", ("plain",)),
        ("BF16_BF16_F32", "float32", ("bf16",)),
        ("BF16_BF16_F32_X3", "float32", ("bf16_x3",)),
        ("BF16_BF16_F32_X6", "float32", ("bf16_x6",)),
        ("BF16_BF16_F32_X9", "float32", ("bf16_x9",)),
        ("TF32_TF32_F32_X3", "float32", ("f16_x3", "bf16_x6")),
        (lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, np.float32, num_primitive_operations=6), "float32", ("bf16_x6",)),
        (lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, np.float32, num_primitive_operations=4), "float32", ()),
        (lax.DotAlgorithm(jnp.bfloat16, np.float32, np.float32, num_primitive_operations=6), "float32", ()),
        ("BF16_BF16_F32_X3", "bfloat16", ()),
        (None, "bfloat16", ("plain",)),
        ("highest", "bfloat16", ("plain",)),
        ("BF16_BF16_F32", "bfloat16", ("plain",)),
        ("TF32_TF32_F32", "bfloat16", ()),
        ("highest", "float64", ("plain",)),
    ],
    ids=str,
)
def test_a_precision_allows_arithmetics(given, dtype, allowed):
    canonical, operand = precision.canonical(given), np.dtype(jnp.dtype(dtype))
    assert precision.arithmetics(canonical, operand) == allowed
    for name in precision.ARITHMETICS:
        assert (precision.refusal(canonical, operand, name) == "") == (name in allowed)


def test_precision_that_kernels_keep():
    for given in (None, "default", "high", "highest", ("highest", "default"), "F32_F32_F32", lax.Precision.HIGH):
        np.testing.assert_allclose(jaxgemm.gemm(A, B, precision=given, kernel="host"), 4.0)
        assert precision.refusal(precision.canonical(given), np.dtype("float32"), "plain") == ""
    with jax.default_matmul_precision("tensorfloat32"):
        assert precision.canonical(None) == precision.canonical("tensorfloat32")
