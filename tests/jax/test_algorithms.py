"""``lax.DotAlgorithm``: honoured as the preset of the same meaning is, or refused by name."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from flax import linen as nn
from flax import nnx
from jax import lax
from jax.sharding import PartitionSpec as P
from jaxprs import equations
from meshes import mesh
from oracle import Product

import jaxgemm
from jaxgemm import precision
from jaxgemm.flax import linen as our_linen
from jaxgemm.flax import nnx as our_nnx

MATMUL = (((1,), (0,)), ((), ()))

#: Operand type, algorithm, the preset of the same meaning if there is one, the type of sums.
KEPT = (
    ("float32", lax.DotAlgorithm(np.float32, np.float32, np.float32), "F32_F32_F32", "float32"),
    ("float64", lax.DotAlgorithm("float64", np.float64, float), "F64_F64_F64", "float64"),
    ("float16", lax.DotAlgorithm(np.float16, np.float16, np.float32), "F16_F16_F32", "float32"),
    ("bfloat16", lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, np.float32), "BF16_BF16_F32", "float32"),
    ("bfloat16", lax.DotAlgorithm("bfloat16", "bfloat16", "float32", 1, 1, 1, True), "BF16_BF16_F32", "float32"),
    ("int8", lax.DotAlgorithm(np.int8, np.int8, np.int32), None, "int32"),
)

#: Operand type, algorithm: none that kernel `host` computes.
OTHERS = (
    ("float32", lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, np.float32)),
    ("float32", lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, np.float32, 1, 1, 3)),
    ("float32", lax.DotAlgorithm(np.float32, np.float32, np.float64)),
    ("float32", lax.DotAlgorithm(np.float32, np.float32, np.float32, 2, 2, 1)),
    ("bfloat16", lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, jnp.bfloat16)),
    ("bfloat16", lax.DotAlgorithm(np.float16, np.float16, np.float32)),
    ("float16", lax.DotAlgorithm(np.float16, np.float16, np.float16)),
)

NAMED = "kernel 'host': precision DotAlgorithm"


@pytest.mark.parametrize(("dtype", "algorithm", "preset", "sums"), KEPT)
def test_an_algorithm_of_ours(dtype, algorithm, preset, sums, rng):
    product = Product.random(rng, (5, 6, 70), (dtype, dtype, sums, sums))
    arrays = [array(x) for x in (product.a, product.b)]
    results = [
        jaxgemm.gemm(*arrays, out_dtype=sums, precision=algorithm, kernel="host"),
        jaxgemm.matmul(*arrays, preferred_element_type=sums, precision=algorithm, kernel="host"),
        jaxgemm.dot_general(*arrays, MATMUL, algorithm, sums, kernel="host"),
    ]
    if preset:
        results.append(jaxgemm.gemm(*arrays, out_dtype=sums, precision=preset, kernel="host"))
    for got in results:
        product.check(np.asarray(got))
        np.testing.assert_array_equal(got, results[0])


@pytest.mark.parametrize(("dtype", "algorithm"), OTHERS)
def test_another_algorithm_is_refused_by_name(dtype, algorithm):
    x = jnp.ones((4, 4), dtype)
    for product in (jaxgemm.matmul, jaxgemm.gemm, partial(jaxgemm.dot_general, dimension_numbers=MATMUL)):
        for how in ({"kernel": "host"}, {"kernel": "host", "batch_invariant": True}):
            with pytest.raises(jaxgemm.UnsupportedError, match="precision DotAlgorithm") as error:
                product(x, x, precision=algorithm, **how)
            assert str(algorithm.lhs_precision_type).split(".")[-1].rstrip("'>") in str(error.value)


def test_layers_and_overlapped_products_refuse_it_too():
    x, algorithm = jnp.ones((4, 4)), OTHERS[0][1]
    dense = our_linen.Dense(4, precision=algorithm, kernel="host")
    params = nn.Dense(4).init(jax.random.key(0), x)
    linear = our_nnx.Linear(4, 4, precision=algorithm, kernel="host", rngs=nnx.Rngs(0))
    calls = [lambda: dense.apply(params, x), lambda: linear(x)]
    for function in (jaxgemm.all_gather_matmul, jaxgemm.matmul_reduce_scatter):
        body = partial(function, axis_name="t", precision=algorithm, kernel="host")
        mapped = jax.shard_map(body, mesh=mesh((2,), ("t",)), in_specs=(P("t"), P()), out_specs=P("t"), check_vma=False)
        calls.append(lambda mapped=mapped: mapped(x, x))
    for call in calls:
        with pytest.raises(jaxgemm.UnsupportedError, match="precision DotAlgorithm"):
            call()


@pytest.mark.parametrize(("dtype", "algorithm"), [*OTHERS, *[row[:2] for row in KEPT]])
def test_auto_hands_it_to_xla_as_lax_does(dtype, algorithm):
    x = jnp.ones((4, 4), dtype)
    functions = [
        partial(f, dimension_numbers=MATMUL, precision=algorithm) for f in (jaxgemm.dot_general, lax.dot_general)
    ]
    ours, theirs = (jax.make_jaxpr(f)(x, x).jaxpr.eqns[0].params["precision"] for f in functions)
    assert ours == theirs
    assert hash(ours) is not None
    errors = []
    for function in functions:  # XLA on CPU knows presets alone, and lax says so
        with pytest.raises(ValueError, match="is not supported by dot_general on CPU") as error:
            function(x, x)
        errors.append(type(error.value))
    assert errors[0] is errors[1]


def test_overlapped_products_have_derivatives():
    """As lax's: the cotangent is wider than the operands."""
    x = array(np.linspace(-1, 1, 16).reshape(4, 4), jnp.bfloat16)

    def gradients(body, kernel):
        body = partial(
            body, axis_name="t", precision="BF16_BF16_F32", preferred_element_type=jnp.float32, kernel=kernel
        )
        mapped = jax.shard_map(body, mesh=mesh((2,), ("t",)), in_specs=(P("t"), P()), out_specs=P("t"))
        return jax.jit(jax.grad(lambda x, w: jnp.sum(mapped(x, w)), (0, 1)))(x, x)

    def plain(x, w, *, axis_name, kernel, **how):
        del kernel
        return jnp.matmul(lax.all_gather(x, axis_name, tiled=True), w, **how)

    for kernel in ("auto", "host"):
        for got, expected in zip(gradients(jaxgemm.all_gather_matmul, kernel), gradients(plain, None), strict=True):
            assert got.dtype == expected.dtype == jnp.bfloat16
            np.testing.assert_allclose(*(np.asarray(v, np.float64) for v in (got, expected)), rtol=2e-2, atol=2e-2)


def test_auto_chooses_as_for_the_preset():
    x = jax.ShapeDtypeStruct((2047, 2047), jnp.float32), jax.ShapeDtypeStruct((2047, 2047), jnp.float32)

    def choice(given):
        (product,) = jaxgemm.explain(*x, precision=given, platform="cuda").products
        return product.decision.choice

    exact = lax.DotAlgorithm(np.float32, np.float32, np.float32)
    assert choice(exact) == choice("F32_F32_F32")
    assert "precision" not in choice(exact).why  # it is one that ours keep
    parts = lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, np.float32, num_primitive_operations=6)
    assert choice(parts) == choice("BF16_BF16_F32_X6")
    assert choice(parts).arithmetic == "bf16_x6"
    assert choice(OTHERS[2][1]).kernel is None
    assert "DotAlgorithm" in choice(OTHERS[2][1]).why
    for given, full in ((exact, True), ("F32_F32_F32", True), (parts, False), (OTHERS[2][1], False), (None, False)):
        assert precision.wants_full_fp32(precision.canonical(given)) is full


def test_override_leaves_it():
    x, algorithm = jnp.ones((4, 4), jnp.float32), OTHERS[0][1]
    function = jaxgemm.override(lambda x: lax.dot_general(x, x, MATMUL, precision=algorithm), kernel="host")
    (left,) = jaxgemm.explain(function, x).left
    assert left.why.startswith(NAMED)
    kept = KEPT[0][1]
    named = jaxgemm.override(lambda x: lax.dot_general(x, x, MATMUL, precision=kept), kernel="host")
    np.testing.assert_array_equal(named(x), jnp.full((4, 4), 4.0))


@pytest.mark.parametrize("name", ["DEFAULT", lax.DotAlgorithmPreset.DEFAULT], ids=["name", "preset"])
def test_the_preset_default_is_a_precision(name):
    """In every function, and whatever jax's configuration asks for where nothing else does."""
    x, w, sizes = jnp.ones((4, 4)), jnp.ones((2, 4, 4)), array([2, 2])
    rows = lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), (0,), (0,))
    overlapped = [
        jax.shard_map(
            partial(function, axis_name="t", precision=name),
            mesh=mesh((2,), ("t",)),
            in_specs=(P("t"), P()),
            out_specs=P("t"),
            check_vma=False,
        )
        for function in (jaxgemm.all_gather_matmul, jaxgemm.matmul_reduce_scatter)
    ]
    dense = our_linen.Dense(4, precision=name)
    functions = [
        lambda x: jaxgemm.gemm(x, x, precision=name),
        lambda x: jaxgemm.matmul(x, x, precision=name),
        lambda x: jaxgemm.dot_general(x, x, MATMUL, name),
        lambda x: jaxgemm.gated_gemm(x, x, x, precision=name),
        lambda x: jaxgemm.grouped_gemm([x], [x], precision=name),
        lambda x: jaxgemm.ragged_dot(x, w, sizes, name),
        lambda x: jaxgemm.ragged_dot(x, w, sizes, name, activation="relu"),
        lambda x: jaxgemm.ragged_gated(x, w, w, sizes, precision=name),
        lambda x: jaxgemm.ragged_dot_general(x, w, sizes, rows, name),
        jaxgemm.override(lambda x: jnp.dot(x, x, precision=name)),
        jaxgemm.override(lambda x: lax.ragged_dot(x, w, sizes, precision=name)),
        lambda x: dense.apply(nn.Dense(4).init(jax.random.key(0), x), x),
        lambda x: our_nnx.Linear(4, 4, precision=name, rngs=nnx.Rngs(0))(x),
        *(partial(lambda f, x: f(x, x), f) for f in overlapped),
    ]
    with jax.default_matmul_precision("highest"):
        for function in functions:
            found = {e.params["precision"] for e in equations(function, x) if e.primitive.name.startswith("jaxgemm_")}
            assert found == {(lax.Precision.DEFAULT,) * 2}
    np.testing.assert_array_equal(jax.jit(functions[0])(x), jnp.full((4, 4), 4.0))


def test_what_is_a_pair_and_what_is_not():
    assert precision.canonical(("high", lax.Precision.HIGHEST)) == (lax.Precision.HIGH, lax.Precision.HIGHEST)
    with pytest.raises(ValueError, match=r"got 'DEFAULT', expected one of default, high, highest$"):  # jnp has no such
        precision.canonical(("DEFAULT", "high"))
    with pytest.raises(TypeError, match="float31"):
        jaxgemm.matmul(jnp.ones((4, 4)), jnp.ones((4, 4)), precision=lax.DotAlgorithm("float31", "float31", "float32"))


@pytest.mark.parametrize("kernel", ["auto", "host"])
@pytest.mark.parametrize(("dtype", "preset"), [("bfloat16", "BF16_BF16_F32"), ("float32", "F32_F32_F32")])
def test_derivatives_of_an_algorithm_are_lax_own(kernel, dtype, preset, rng):
    """The cotangent is wider than the operands, which the algorithm then rounds, not we."""
    x, y = (array(rng.standard_normal(s), dtype) for s in ((5, 7), (7, 6)))

    def gradients(dot_general):
        def loss(x, y):
            return jnp.sum(jnp.sin(dot_general(x, y, MATMUL, preset, "float32")))

        return jax.grad(loss, (0, 1))(x, y)

    ours = gradients(partial(jaxgemm.dot_general, kernel=kernel))
    for got, expected in zip(ours, gradients(lax.dot_general), strict=True):
        assert got.dtype == expected.dtype
        eps = float(jnp.finfo(dtype).eps)
        np.testing.assert_allclose(*(np.asarray(v, np.float64) for v in (got, expected)), rtol=4 * eps, atol=8 * eps)
