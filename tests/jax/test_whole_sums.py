"""XLA's products of 8-bit integers on CUDA, whose sums are wrong unless they are a multiple of 4 long."""

from __future__ import annotations

import re
from functools import partial
from math import prod

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax import nnx
from jax import export, lax
from jax.sharding import PartitionSpec as P
from meshes import mesh, put, traffic

import jaxgemm
from jaxgemm.flax.nnx import Linear
from jaxgemm.products import xla_product

MATRIX = (((1,), (0,)), ((), ()))
_DOT = re.compile(r"dot_general .*contracting_dims = \[([\d, ]*)\] x .*: \(tensor<([\dx]+)x\w+>")


def integers(rng, dtype, *shape):
    info = jnp.iinfo(dtype)
    return array(rng.integers(int(info.min), int(info.max) + 1, shape), dtype)


def sums(function, *args):
    """How long the sums are of each product in the program for CUDA."""
    text = jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    found = []
    for axes, shape in _DOT.findall(text):
        extents = [int(n) for n in shape.split("x")]
        found.append(prod(extents[int(i)] for i in axes.split(",")))
    assert len(found) == text.count("stablehlo.dot_general")
    return found


def linear(x, w, kernel):
    layer = Linear(*w.shape, use_bias=False, kernel=kernel, promote_dtype=lambda given, **_: given, rngs=nnx.Rngs(0))
    layer.kernel = nnx.Param(w)
    return layer(x)


def thirds(x, w):
    return x.reshape(x.shape[0], 3, -1), w.reshape(3, -1, w.shape[1])


def exact(x, w):
    return np.asarray(x, np.int64) @ np.asarray(w, np.int64)


def wide(x, w):
    return lax.dot_general(x, w, MATRIX, preferred_element_type=jnp.int32)


#: Two-dimensional products by every way in, as functions of operands and kernel, and their plain forms.
FORMS = {
    "gemm": (lambda x, w, kernel: jaxgemm.gemm(x, w, kernel=kernel), wide),
    "epilogue": (
        lambda x, w, kernel: jaxgemm.gemm(x, w, bias=jnp.arange(w.shape[1], dtype=jnp.int32), alpha=2.0, kernel=kernel),
        lambda x, w: 2 * wide(x, w) + jnp.arange(w.shape[1], dtype=jnp.int32),
    ),
    "transposed": (lambda x, w, kernel: jaxgemm.gemm(x, w.T, transpose_b=True, kernel=kernel), wide),
    "matmul": (lambda x, w, kernel: jaxgemm.matmul(x, w, kernel=kernel), lambda x, w: lax.dot_general(x, w, MATRIX)),
    "to floats": (
        lambda x, w, kernel: jaxgemm.matmul(x, w, preferred_element_type=jnp.float32, kernel=kernel),
        lambda x, w: lax.dot_general(x, w, MATRIX, preferred_element_type=jnp.float32),
    ),
    "vector": (lambda x, w, kernel: jaxgemm.matmul(x[0], w, kernel=kernel), lambda x, w: jnp.matmul(x[0], w)),
    "batch": (
        lambda x, w, kernel: jaxgemm.matmul(jnp.stack([x, x]), w, kernel=kernel),
        lambda x, w: jnp.matmul(jnp.stack([x, x]), w),
    ),
    "vmap": (
        lambda x, w, kernel: jax.vmap(lambda v: jaxgemm.gemm(v[None], w, kernel=kernel)[0])(x),
        wide,
    ),
    "vmap of both": (
        lambda x, w, kernel: jax.vmap(lambda x, w: jaxgemm.gemm(x, w, kernel=kernel))(
            jnp.stack([x, x]), jnp.stack([w, w])
        ),
        lambda x, w: jnp.stack([wide(x, w)] * 2),
    ),
    "einsum": (
        lambda x, w, kernel: jnp.einsum(
            "mab,abn->nm",
            *thirds(x, w),
            preferred_element_type=jnp.int32,
            _dot_general=jax.tree_util.Partial(jaxgemm.dot_general, kernel=kernel),
        ),
        lambda x, w: wide(x, w).T,
    ),
    "outer": (
        lambda x, w, kernel: jaxgemm.dot_general(x[0], w[0], (((), ()), ((), ())), kernel=kernel),
        lambda x, w: x[0][:, None] * w[0],
    ),
    "override": (lambda x, w, kernel: jaxgemm.override(wide, kernel=kernel)(x, w), wide),
    "a scan": (
        lambda x, w, kernel: lax.scan(lambda c, v: (c, jaxgemm.gemm(v[None], w, kernel=kernel)[0]), 0, x)[1],
        wide,
    ),
    "flax": (linear, lambda x, w: lax.dot_general(x, w, MATRIX)),
}
ways = pytest.mark.parametrize("form", FORMS)
kernels = pytest.mark.parametrize("kernel", ["auto", "xla"])


@kernels
@ways
@pytest.mark.parametrize("k", [9, 18])
def test_sums_are_whole_on_cuda(form, kernel, k, rng):
    x, w = integers(rng, jnp.int8, 5, k), integers(rng, jnp.int8, k, 6)
    found = sums(lambda x, w: FORMS[form][0](x, w, kernel), x, w)
    assert found or kernel == "auto"  # which takes a kernel of ours for most
    assert all(length % 4 == 0 for length in found)


@pytest.fixture
def padded(monkeypatch):
    """As on CUDA, on the CPU."""
    monkeypatch.setattr(xla_product, "PADDED", frozenset({"cuda", "cpu"}))
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("padded")
@kernels
@ways
def test_zeros_change_no_sum(form, kernel, rng):
    x, w = integers(rng, jnp.int8, 5, 9), integers(rng, jnp.int8, 9, 6)
    ours, theirs = FORMS[form]
    got, expected = jax.jit(lambda x, w: (ours(x, w, kernel), theirs(x, w)))(x, w)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


integer_types = pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ("int8", "int8", "int8"),
        ("int4", "int4", "int32"),
        ("int8", "int4", "int32"),
        ("uint4", "uint4", "int32"),
    ],
)


@integer_types
def test_types_that_no_kernel_may_take(a, b, out, rng):
    """What override leaves to XLA has whole sums too, also where a kernel was asked for by name."""
    x, w = integers(rng, a, 5, 7), integers(rng, b, 7, 6)
    f = lambda x, w: lax.dot_general(x, w, MATRIX, preferred_element_type=out)  # noqa: E731
    for kernel in ("auto", "xla", "simt"):
        assert sums(jaxgemm.override(f, kernel=kernel), x, w) == [8]
    assert sums(f, x, w) == [7]  # what this is held to


def test_uint8_that_xla_computes(rng):
    x, w = integers(rng, "int8", 5, 7), integers(rng, "uint8", 7, 6)
    assert sums(jaxgemm.override(wide, kernel="xla"), x, w) == [8]


def test_what_needs_no_zeros(rng):
    """Whole sums, wider integers and other platforms: nothing is copied."""
    ours = jaxgemm.dot_general
    whole = integers(rng, jnp.int8, 5, 2, 6), integers(rng, jnp.int8, 2, 6, 3)
    assert sums(lambda a, b: ours(a, b, (((1, 2), (0, 1)), ((), ()))), *whole) == [12]
    assert sums(lambda a, b: ours(a, b, MATRIX), *(array(np.ones((7, 7)), "int32"),) * 2) == [7]
    assert sums(lambda a, b: ours(a, b, MATRIX), *(array(np.ones(s), "int8") for s in ((7, 0), (0, 7)))) == [0]
    x = integers(rng, jnp.int8, 7, 7)
    assert "pad" not in jax.jit(lambda x: ours(x, x, MATRIX)).lower(x).as_text()


@pytest.mark.parametrize(
    ("extents", "length"), [((3, 5), 20), ((2, 7), 16), ((6, 3), 24), ((9, 2), 20), ((4, 7), 28), ((1, 1, 1), 4)]
)
def test_the_axis_that_costs_least_is_padded(extents, length, rng):
    axes = tuple(range(len(extents)))
    x, w = integers(rng, jnp.int8, *extents, 5), integers(rng, jnp.int8, *extents, 6)
    assert sums(lambda x, w: jaxgemm.dot_general(x, w, ((axes, axes), ((), ()))), x, w) == [length]


@pytest.mark.usefixtures("padded")
@pytest.mark.parametrize("shape", ["m, 7", "m, k", "m, 4*k"])
def test_symbolic_extents(shape, rng):
    x = export.symbolic_shape(shape)
    operands = jax.ShapeDtypeStruct(x, jnp.int8), jax.ShapeDtypeStruct((x[1], 6), jnp.int8)
    function = jax.jit(lambda x, w: jaxgemm.gemm(x, w))
    assert ("pad" in str(export.export(function, platforms=["cuda"])(*operands).mlir_module())) == ("4*" not in shape)
    exported = export.deserialize(export.export(function)(*operands).serialize())
    for k in (4, 8) if "4*" in shape else (7,) if "7" in shape else (1, 6, 8, 11):
        x, w = integers(rng, jnp.int8, 5, k), integers(rng, jnp.int8, k, 6)
        np.testing.assert_array_equal(exported.call(x, w), exact(x, w))


def test_explain_says_so(rng):
    x, w = integers(rng, jnp.int8, 5, 7), integers(rng, jnp.int8, 7, 6)
    xlas = partial(jaxgemm.gemm, kernel="xla")
    (product,) = jaxgemm.explain(xlas, x, w, platform="cuda").products
    assert product.padded.startswith("k with zeros from 7 to 8: XLA may use cuBLAS")
    assert product.padded in str(product)
    assert "padded" not in str(jaxgemm.explain(xlas, x, w, platform="cpu"))
    assert "padded" not in str(jaxgemm.explain(xlas, x[:, :4], w[:4], platform="cuda"))
    several = jaxgemm.explain(
        lambda x, w: jaxgemm.dot_general(*thirds(x, w), (((1, 2), (0, 1)), ((), ())), kernel="xla"),
        x[:, :6],
        w[:6],
        platform="cuda",
    )
    assert "contracting axis 0 with zeros from 3 to 4" in str(several)


# --- Ragged products ---


def ragged(x, w, **kwargs):
    sizes = jnp.asarray([3, x.shape[0] - 3], np.int32)
    return lax.ragged_dot(x, jnp.stack([w, -w]), sizes, preferred_element_type=jnp.int32, **kwargs)


def test_ragged_products_that_become_grouped_ones(rng):
    x, w = integers(rng, jnp.int8, 5, 9), integers(rng, jnp.int8, 9, 6)
    ours = jaxgemm.override(ragged)
    np.testing.assert_array_equal(*jax.jit(lambda x, w: (ours(x, w), ragged(x, w)))(x, w))
    assert sums(ours, x, w) == [12]


@pytest.mark.parametrize(("devices", "length"), [(1, 12), (8, 32)])
def test_ragged_products_that_xla_keeps(devices, length, rng, monkeypatch):
    """Whole sums on each device, over as many as there are: a jaxpr does not say over how many it is divided."""
    monkeypatch.setattr(jax, "device_count", lambda: devices)
    x, w = integers(rng, jnp.int8, 5, 9), integers(rng, jnp.int8, 9, 6)
    ours = jaxgemm.override(ragged, kernel="xla")
    np.testing.assert_array_equal(*jax.jit(lambda x, w: (ours(x, w), ragged(x, w)))(x, w))
    text = jax.jit(ours).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
    assert re.findall(rf"ragged_dot.*\(tensor<5x{length}xi8>, tensor<2x{length}x6xi8>", text)
    (left,) = jaxgemm.explain(ours, x, w).left
    assert left.operands == f"int8[5,{length}] x int8[2,{length},6] -> int32"


def test_a_ragged_product_within_shard_map(rng):
    on = mesh((8,), ("x",))
    x, w = integers(rng, jnp.int8, 40, 9), integers(rng, jnp.int8, 9, 6)

    def local(x, w):
        vary = lambda v: lax.pcast(v, "x", to="varying")  # noqa: E731
        return lax.ragged_dot(x, vary(jnp.stack([w, -w])), vary(jnp.asarray([3, 2], np.int32)))

    mapped = jax.shard_map(local, mesh=on, in_specs=(P("x"), P()), out_specs=P("x"))
    np.testing.assert_array_equal(jax.jit(jaxgemm.override(mapped))(x, w), jax.jit(mapped)(x, w))


# --- Several devices ---


@pytest.fixture
def lengths(padded, monkeypatch):  # noqa: ARG001
    """How long the sums are of the products that are handed to XLA, on one device where it is known."""
    found = []
    plain = lax.dot_general

    def watched(lhs, rhs, dims, **kwargs):
        found.append(prod(lhs.shape[i] for i in dims[0][0]))
        return plain(lhs, rhs, dims, **kwargs)

    monkeypatch.setattr(xla_product.lax, "dot_general", watched)
    return found


SHARDED = {
    "contracted": (P("y", "x"), P("x", None)),
    "contracted over all": (P(None, ("x", "y")), P(("x", "y"), None)),
    "rows and columns": (P("x", None), P(None, "y")),
}


@kernels
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("specs", SHARDED)
@pytest.mark.parametrize("k", [24, 64])
def test_sums_are_whole_on_each_device(kind, kernel, specs, k, rng, lengths):
    """k of 24 is a multiple of 4, but a quarter of it is not. Each device pads its own, and no operand is gathered."""
    on = mesh(types=kind)
    specs = SHARDED[specs]
    x, w = integers(rng, jnp.int8, 8, k), integers(rng, jnp.int8, k, 16)
    expected = exact(x, w)
    sharding = P("y", None) if kind == "Explicit" else None
    with jax.set_mesh(on):
        function = jax.jit(
            lambda x, w: jaxgemm.dot_general(x, w, MATRIX, None, jnp.int32, out_sharding=sharding, kernel=kernel)
        )
        operands = [put(v, on, spec) for v, spec in zip((x, w), specs, strict=True)]
        np.testing.assert_array_equal(function(*operands), expected)
        assert not traffic(function, *operands).calls["all-gather"] or specs == SHARDED["rows and columns"]
    by_device = [n for n in lengths if n != k] or lengths
    assert lengths
    assert all(n % 4 == 0 for n in lengths)
    if k % (4 * 8):
        assert all(n <= -(-k // 4) * 4 for n in by_device)


def test_parts_that_xla_divides(rng, lengths):
    """Exported programs, and those in a shard_map over some axes, cannot call back: there the whole is padded."""
    on = mesh()
    x, w = integers(rng, jnp.int8, 8, 24), integers(rng, jnp.int8, 24, 16)
    expected = wide(x, w)
    operands = put(x, on, P(None, "x")), put(w, on, P("x", None))
    product = jax.jit(lambda x, w: jaxgemm.gemm(x, w))
    exported = export.deserialize(export.export(product)(*operands).serialize())
    np.testing.assert_array_equal(jax.jit(exported.call)(*operands), expected)
    partly = jax.shard_map(product, mesh=on, in_specs=(P("y"), P()), out_specs=P("y"), axis_names={"y"})
    np.testing.assert_array_equal(jax.jit(partly)(*operands), expected)
    assert {*lengths} == {24, 32}  # 24 is of `expected`, and of the rules for types


def test_within_shard_map(rng, lengths):
    on = mesh((8,), ("x",))
    x, w = integers(rng, jnp.int8, 8, 24), integers(rng, jnp.int8, 24, 16)
    expected = exact(x, w)
    local = lambda x, w: lax.psum(jaxgemm.gemm(x, w), "x")  # noqa: E731
    mapped = jax.shard_map(local, mesh=on, in_specs=(P(None, "x"), P("x")), out_specs=P())
    np.testing.assert_array_equal(jax.jit(mapped)(x, w), expected)
    assert {*lengths} == {4}


# --- On a GPU ---

#: With its own kernels switched off, XLA calls cuBLAS.
paths = pytest.mark.parametrize("options", [{}, {"xla_gpu_enable_triton_gemm": False}], ids=["default", "cublas"])
SHAPES = [(16, 16, 7), (51, 865, 33), (128, 128, 129), (1, 257, 9), (63, 1, 1023), (255, 257, 255), (17, 40, 130)]


def on_host(function, *args):
    """The results by a program for the CPU, whose sums are right."""
    with jax.default_device(jax.devices("cpu")[0]):
        return jax.tree.map(np.asarray, jax.jit(function)(*jax.tree.map(lambda x: array(x), args)))


def drawn(rng):
    more = [(int(n) for n in rng.integers(1, 300, 3)) for _ in range(6)]
    return [*SHAPES, *((m, n, 3 * k) for m, n, k in more)]


@pytest.mark.gpu
@paths
@kernels
@ways
def test_sums_are_right_on_a_gpu(form, kernel, options, rng):
    ours, theirs = FORMS[form]
    shapes = [s for s in drawn(rng) if form != "einsum" or s[2] % 3 == 0]
    operands = [(integers(rng, jnp.int8, m, k), integers(rng, jnp.int8, k, n)) for m, n, k in shapes]
    expected = on_host(lambda given: [theirs(x, w) for x, w in given], operands)
    program = jax.jit(lambda given: [ours(x, w, kernel) for x, w in given], compiler_options=options)
    for shape, got, want in zip(shapes, program(operands), expected, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=str(shape))


@pytest.mark.gpu
@paths
@integer_types
def test_types_are_right_on_a_gpu(a, b, out, options, rng):
    f = lambda x, w: lax.dot_general(x, w, MATRIX, preferred_element_type=out)  # noqa: E731
    operands = [(integers(rng, a, m, k), integers(rng, b, k, n)) for m, n, k in drawn(rng)]
    program = jax.jit(lambda given: [jaxgemm.override(f)(x, w) for x, w in given], compiler_options=options)
    for got, pair in zip(program(operands), operands, strict=True):
        np.testing.assert_array_equal(got, exact(*pair).astype(out))


@pytest.mark.gpu
@paths
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_layouts_and_batches_are_right_on_a_gpu(layout, options, rng):
    operands = []
    for m, n, k in drawn(rng):
        x, w = integers(rng, jnp.int8, 3, m, k), integers(rng, jnp.int8, 3, k, n)
        operands.append([array(np.asarray(v).mT if t == "T" else v) for v, t in zip((x, w), layout, strict=True)])
    kwargs = {"transpose_a": layout[0] == "T", "transpose_b": layout[1] == "T"}
    program = jax.jit(lambda given: [jaxgemm.gemm(x, w, **kwargs) for x, w in given], compiler_options=options)
    for got, given in zip(program(operands), operands, strict=True):
        x, w = (np.asarray(v).mT if t == "T" else v for v, t in zip(given, layout, strict=True))
        np.testing.assert_array_equal(got, exact(x, w))


@pytest.mark.gpu
@paths
def test_ragged_products_are_right_on_a_gpu(options, rng):
    x, w = integers(rng, jnp.int8, 65, 33), integers(rng, jnp.int8, 33, 47)
    got = jax.jit(jaxgemm.override(ragged), compiler_options=options)(x, w)
    first, second = exact(x, w), exact(x, -np.asarray(w))
    np.testing.assert_array_equal(got, np.concatenate([first[:3], second[3:]]))
