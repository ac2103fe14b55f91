"""Products of 8-bit integers: results of all types that int32 sums become, precisions, and operands of two types."""

import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P
from meshes import mesh, put

import jaxgemm
from jaxgemm.flax.nnx import Linear
from jaxgemm.kernels import find_kernel
from jaxgemm.products import dense

MATRIX = (((1,), (0,)), ((), ()))
PAIRS = [*itertools.product(("int8", "uint8"), repeat=2)]
MIXED = [pair for pair in PAIRS if pair[0] != pair[1]]
#: How many products a sum in int32 holds.
MOST = {("int8", "int8"): 131071, ("uint8", "uint8"): 33025, **dict.fromkeys(MIXED, 65793)}
#: Results that are int32 modulo 2^n, and those that int32 must hold.
MODULAR, WHOLE = ("int16", "uint16", "uint32"), ("int64", "uint64", "float16", "bfloat16", "float32", "float64")
LEFT = ("int8", "uint8", "float8_e5m2", "complex64")
ALGORITHMS = ("TF32_TF32_F32", "BF16_BF16_F32", "F32_F32_F32", "F16_F16_F32", "BF16_BF16_F32_X6")
needs_sm90 = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")
pairs = pytest.mark.parametrize("pair", PAIRS, ids="-".join)


def drawn(rng, pair, m=5, k=37, n=6):
    found = []
    for dtype, shape in zip(pair, ((m, k), (k, n)), strict=True):
        info = jnp.iinfo(dtype)
        found.append(array(rng.integers(info.min, info.max + 1, shape), dtype))
    return found


def extreme(pair, k):
    """Operands with the largest sums."""
    value = {"int8": -128, "uint8": 255}
    return array(np.full((2, k), value[pair[0]]), pair[0]), array(np.full((k, 3), value[pair[1]]), pair[1])


def exact(x, y):
    return np.asarray(x, np.int64) @ np.asarray(y, np.int64)


def check(got, sums, out):
    """Integers wrap. float32 and float64 are rounded once; narrower floats perhaps from float32."""
    assert got.dtype == out
    if np.dtype(got.dtype).kind in "iu" or out in ("float32", "float64"):
        np.testing.assert_array_equal(got, sums.astype(out))
        return
    values, most, half = np.asarray(got).astype(np.float64), float(jnp.finfo(out).max), float(jnp.finfo(out).eps) / 2
    over, held = abs(sums) > (1 + half) * most, abs(sums) <= most
    np.testing.assert_array_equal(values[over], np.copysign(np.inf, sums)[over])
    assert (abs(values - sums)[held] <= (1 + 2**-10) * half * abs(sums)[held]).all()


def on_cuda(function, *args, **how):
    (product,) = jaxgemm.explain(partial(function, **how), *args, platform="cuda").products
    return product


def abstract(pair, m=512, k=256, n=384):
    return jax.ShapeDtypeStruct((m, k), pair[0]), jax.ShapeDtypeStruct((k, n), pair[1])


# --- Types of results ---


@pytest.mark.parametrize("out", [*MODULAR, *WHOLE])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_results_of_int32_sums(dtype, out, rng):
    """By a kernel they are as near to the exact ones as lax's, or nearer."""
    shapes = [(5, 37, 6), (1, 1, 1), (4, 0, 3), (0, 5, 2), (3, 30001, 2)]
    operands = [drawn(rng, (dtype, dtype), *shape) for shape in shapes]

    @jax.jit
    def products(operands):
        ours = partial(jaxgemm.dot_general, dimension_numbers=MATRIX, preferred_element_type=out)
        plain = partial(lax.dot_general, dimension_numbers=MATRIX, preferred_element_type=out)
        hows = {"kernel": "host"}, {"batch_invariant": True}, {}
        return [([ours(x, y, **how) for how in hows], plain(x, y)) for x, y in operands]

    for (x, y), ((*kernels, auto), plain) in zip(operands, products(operands), strict=True):
        sums = exact(x, y)
        np.testing.assert_array_equal(auto, plain)
        for got in kernels:
            check(got, sums, out)
            if out in (*MODULAR, "int64", "uint64"):
                np.testing.assert_array_equal(got, plain)
            elif out == "float32":
                assert (abs(np.asarray(got, np.float64) - sums) <= abs(np.asarray(plain, np.float64) - sums)).all()


def test_lax_s_sums_in_float32_are_not_exact(rng):
    """Which ours are nearer than."""
    x, y = drawn(rng, ("uint8", "uint8"), 9, 30000, 8)
    plain, ours = (
        np.asarray(f(x, y, MATRIX, preferred_element_type=jnp.float32, **how), np.float64) - exact(x, y)
        for f, how in ((lax.dot_general, {}), (jaxgemm.dot_general, {"kernel": "host"}))
    )
    assert abs(ours).max() < abs(plain).max()


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_longest_sums(dtype):
    """Of numbers as large as they are, int32 holds so many; where they wrap, only what is modular is a kernel's."""
    most = MOST[dtype, dtype]
    x, y = extreme((dtype, dtype), most + 1)
    for out in WHOLE:
        check(jaxgemm.matmul(x[:, 1:], y[1:], preferred_element_type=out, kernel="host"), exact(x[:, 1:], y[1:]), out)
        why = f"kernels sum this product in int32, which holds {most} products of {dtype} and {dtype}, not {most + 1}"
        for how in ({"kernel": "host"}, {"batch_invariant": True}):
            with pytest.raises(jaxgemm.UnsupportedError, match=why):
                jaxgemm.matmul(x, y, preferred_element_type=out, **how)
    for out in MODULAR:
        check(jaxgemm.matmul(x, y, preferred_element_type=out, kernel="host"), exact(x, y), out)


@needs_sm90
@pairs
def test_the_longest_sums_on_cuda(pair):
    for out in WHOLE:
        given = {"dimension_numbers": MATRIX, "preferred_element_type": out}
        long = abstract(pair, k=MOST[pair] + 1)
        assert on_cuda(jaxgemm.dot_general, *abstract(pair, k=MOST[pair]), **given).kernel == "sm90"
        left = on_cuda(jaxgemm.dot_general, *long, **given)
        assert (left.kernel, left.decision.choice.rule, left.result) == ("xla", "no-kernel-fits", out)
        with pytest.raises(jaxgemm.UnsupportedError, match=f"which holds {MOST[pair]} products of {pair[0]} and"):
            on_cuda(jaxgemm.dot_general, *long, **given, kernel="sm90")
    for out in MODULAR:
        given = {"dimension_numbers": MATRIX, "preferred_element_type": out}
        assert on_cuda(jaxgemm.dot_general, *long, **given).kernel == "sm90"


@needs_sm90
@pairs
def test_whose_they_are_on_cuda(pair):
    given = abstract(pair)
    for out in (*MODULAR, *WHOLE):
        function = partial(jaxgemm.dot_general, dimension_numbers=MATRIX, preferred_element_type=out)
        for f in (function, jaxgemm.override(partial(lax.dot_general, **function.keywords))):
            product = on_cuda(f, *given)
            assert (product.kernel, product.result) == ("sm90", "int32")
            assert str(product).startswith(f"{pair[0]}[512,256] x {pair[1]}[256,384] -> int32\n")
        text = jax.jit(function).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
        assert re.search(r"@jaxgemm_gemm.*tensor<512x384xi32>", text)
        assert "stablehlo.convert" in text
        assert "stablehlo.dot_general" not in text
        assert on_cuda(function, *given, kernel="xla").result == out
    for out in LEFT:
        product = on_cuda(jaxgemm.dot_general, *given, dimension_numbers=MATRIX, preferred_element_type=out)
        assert (product.kernel, product.result) == ("xla", out)


@needs_sm90
def test_what_a_rule_leaves_to_xla_is_explained_as_xla_s():
    """Whole, with the result's type."""
    given = [jax.ShapeDtypeStruct((8, 256, 256), jnp.int8)] * 2
    product = on_cuda(jaxgemm.matmul, *given, preferred_element_type=jnp.float32)
    assert (product.kernel, product.decision.choice.rule, product.result) == ("xla", "int8-batches", "float32")
    assert "-> float32" in str(product)


@pytest.mark.parametrize("kernel", ["auto", "host", "xla"])
def test_what_follows_is_in_the_result_s_type(kernel, rng):
    """An int32 would hold neither."""
    x, y = drawn(rng, ("int8", "int8"))
    c, bias = array(rng.integers(-(2**60), 2**60, (5, 6))), array(rng.integers(-(2**60), 2**60, 6))
    factor = 2**35 + 1
    gemm = partial(jaxgemm.gemm, x, y, kernel=kernel, out_dtype="int64")

    @jax.jit
    def products(c, bias, alpha):
        mapped = jax.vmap(lambda bias: gemm(alpha=factor, bias=bias))(bias[None])[0]
        traced = gemm(alpha=alpha, bias=bias, activation="relu")
        return gemm(alpha=factor), gemm(c, alpha=factor, beta=3), mapped, traced

    scaled, b = factor * exact(x, y), np.asarray(bias)
    expected = scaled, scaled + 3 * np.asarray(c), scaled + b, np.maximum(scaled + b, 0)
    for got, want in zip(products(c, bias, array(factor)), expected, strict=True):
        np.testing.assert_array_equal(got, want, strict=True)
    narrow = jaxgemm.gemm(x, y, bias=bias.astype("int16"), alpha=301.0, out_dtype="int16", kernel=kernel)
    np.testing.assert_array_equal(narrow, (301 * exact(x, y) + b.astype(np.int16)).astype(np.int16), strict=True)


@pytest.mark.parametrize("kernel", ["auto", "host"])
def test_a_layer_s_bias_and_activation(kernel, rng):
    x, y = drawn(rng, ("int8", "int8"))
    kept = {"promote_dtype": lambda given, **_: given, "preferred_element_type": jnp.float32}
    layer = Linear(37, 6, activation="gelu_erf", kernel=kernel, rngs=nnx.Rngs(0), **kept)
    layer.kernel, layer.bias = nnx.Param(y), nnx.Param(array(rng.standard_normal(6), "float32"))
    expected = jax.nn.gelu(array(exact(x, y), "float32") + layer.bias[...], approximate=False)
    np.testing.assert_allclose(layer(x), expected, rtol=1e-6)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("out", ["int64", "float32", "int16"])
def test_shards(out, kind, rng):
    """Parts of sums are added up in the result's type."""
    on = mesh(types=kind)
    x, y = drawn(rng, ("uint8", "uint8"), 8, 64, 16)
    sums = exact(x, y)
    with jax.set_mesh(on):
        operands = put(x, on, P(None, "x")), put(y, on, P("x", None))
        how = {"preferred_element_type": out, "kernel": "host"}
        if kind == "Explicit":
            how["out_sharding"] = P(None, None)
        got = jax.jit(lambda x, y: jaxgemm.dot_general(x, y, MATRIX, **how))(*operands)
        check(got, sums, out)


# --- Precisions ---


@needs_sm90
@pairs
@pytest.mark.parametrize("out", ["int32", "float32"])
def test_integers_are_exact_at_any_precision(pair, out):
    given = abstract(pair)
    matmul = partial(jaxgemm.dot_general, dimension_numbers=MATRIX, preferred_element_type=out)
    for how in ({}, {"kernel": "sm90"}, {"batch_invariant": True}):
        plain = on_cuda(matmul, *given, **how)
        for precision in ("default", "high", "highest", ("highest", "default"), lax.Precision.HIGH):
            found = on_cuda(matmul, *given, **how, precision=precision)
            assert found.decision == plain.decision
            assert found.kernel == "sm90"
            assert found.floor == plain.floor
        with jax.default_matmul_precision("highest"):
            assert on_cuda(matmul, *given, **how).decision == plain.decision


def dots(function, *given):
    text = jax.jit(function).trace(*given).lower(lowering_platforms=("cuda",)).as_text()
    return re.findall(r"stablehlo.dot_general [^,]*, [^,]*, (.*)", text)


@needs_sm90
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("out", [None, "int32", "float32"])
def test_an_algorithm_s_name_is_lax_s(algorithm, out, rng):
    """lax converts integers to the algorithm's type of floats, and has no such product on a CPU for most algorithms."""
    how = {"dimension_numbers": MATRIX, "preferred_element_type": out, "precision": algorithm}
    ours, plain = (partial(f, **how) for f in (jaxgemm.dot_general, lax.dot_general))
    for pair in PAIRS:
        given = abstract(pair)
        product = on_cuda(ours, *given)
        assert (product.kernel, product.decision.choice.rule) == ("xla", "other-precision")
        assert dots(ours, *given) == dots(plain, *given) != []
        why = f"precision {algorithm} is not one that jaxgemm's kernels compute for {pair[0]}"
        with pytest.raises(jaxgemm.UnsupportedError, match=why):
            on_cuda(ours, *given, kernel="sm90")
        operands, results = drawn(rng, pair), []
        for f in (ours, plain):
            try:
                results.append(f(*operands))
            except ValueError as error:
                results.append(str(error).splitlines()[0])
        np.testing.assert_array_equal(*results)


# --- Operands of two types ---


@pytest.mark.parametrize("pair", MIXED, ids="-".join)
@pytest.mark.parametrize("preferred", [None, "int8", "int32", "int64", "float32", "bfloat16"])
def test_matmul_of_two_types_is_jnp_s(pair, preferred, rng):
    """In type and values, and there int16 may wrap."""
    x, y = drawn(rng, pair, 5, 700, 6)
    assert abs(exact(x, y)).max() > 2**15
    given = [(x, y), (x[0], y), (x, y[:, 0]), (jnp.stack([x, x]), y), (x[None], jnp.stack([y, y]))]

    @jax.jit
    def products(given):
        return [[f(a, b, preferred_element_type=preferred) for f in (jaxgemm.matmul, jnp.matmul)] for a, b in given]

    for got, expected in products(given):
        assert jax.typeof(got) == jax.typeof(expected)
        np.testing.assert_array_equal(got, expected)
    assert jaxgemm.matmul(x, y).dtype == jnp.int16
    for how in ({"kernel": "host"}, {"batch_invariant": True}):
        with pytest.raises(jaxgemm.UnsupportedError, match=f"got {pair[0]} x {pair[1]} -> int16"):
            jaxgemm.matmul(x, y, **how)


def test_promotion_of_two_types_is_jnp_s(rng):
    x, y = drawn(rng, MIXED[0])
    with jax.numpy_dtype_promotion("strict"):
        for f in (jaxgemm.matmul, jnp.matmul):
            with pytest.raises(jax.dtypes.TypePromotionError):
                f(x, y)
    weak = lax.convert_element_type_p.bind(x, new_dtype=np.dtype("int8"), weak_type=True, sharding=None)
    for operands in ((weak, y), (y.T, weak.T)):
        got, expected = jaxgemm.matmul(*operands), jnp.matmul(*operands)
        assert (got.dtype, got.weak_type) == (expected.dtype, expected.weak_type) == (jnp.uint8, False)
        np.testing.assert_array_equal(got, expected)


@needs_sm90
@pytest.mark.parametrize("pair", MIXED, ids="-".join)
@pytest.mark.parametrize("out", [None, "int32", "uint16", "int64", "float32"])
def test_a_kernel_s_sums_become_jnp_s_result(pair, out, rng, monkeypatch):
    """What is done around the kernel for a GPU, with XLA's int32 sums in place of the kernel's."""
    x, y = drawn(rng, pair, 5, 700, 6)

    def sums(_choice, problem, _shape, operands):
        assert problem.dtypes == (*pair, "int32")
        return lax.dot_general(*operands, MATRIX, preferred_element_type=jnp.int32)

    monkeypatch.setattr(dense, "call", sums)
    (equation,) = jax.make_jaxpr(partial(jaxgemm.matmul, preferred_element_type=out))(x, y).eqns
    decision = dense.decide("cuda", (x, y), equation.params)
    assert decision.choice.rule == "uint8"
    got = dense.DENSE.launch(decision, x, y, **equation.params)
    assert got.dtype == jnp.matmul(x, y, preferred_element_type=out).dtype
    check(got, exact(x, y), got.dtype.name)


# --- On a GPU ---


@pytest.mark.gpu
@pairs
@pytest.mark.parametrize("out", ["int16", "int64", "bfloat16", "float32"])
def test_results_on_a_gpu(pair, out, rng):
    operands = [drawn(rng, pair, *shape) for shape in ((37, 701, 129), (256, 1024, 384), (1, 16, 1), (3, 0, 4))]
    program = jax.jit(lambda given: [jaxgemm.matmul(x, y, preferred_element_type=out) for x, y in given])
    for got, (x, y) in zip(program(operands), operands, strict=True):
        check(got, exact(x, y), out)
