"""Unmodified models of packages that quantise: their products are of 8 bits under override, and nearly the same."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix
from aqt.jax.v2 import config as aqt
from aqt.jax.v2.flax import aqt_flax
from arrays import array
from flax import nnx
from flax.linen import fp8_ops
from jax import lax
from jaxprs import equations

import jaxgemm
from jaxgemm.override import override
from jaxgemm.products.dense import gemm_p
from jaxgemm.products.scaled import scaled_p

# flax and those that build on it call what flax has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROWS, IN, OUT = 32, 64, 48
E4M3, E5M2, INT8 = "float8_e4m3fn", "float8_e5m2", "int8"
#: What values of 8 bits may be off by, of the largest product: two operands with 3 bits of fraction, or 7.
NEAR = {E4M3: 2.0**-3, INT8: 2.0**-6}
ROUNDED = 2.0**-6  # to 16 bits, in a program that rounds more often than ours


@pytest.fixture
def x(rng):
    return array(rng.standard_normal((ROWS, IN)), jnp.bfloat16)


def types(function, *args):
    """The operands' types of jaxgemm's products; there must be no others."""
    found = [*equations(function, *args)]
    assert not [eqn for eqn in found if eqn.primitive is lax.dot_general_p]
    return [tuple(v.aval.dtype.name for v in eqn.invars[:2]) for eqn in found if eqn.primitive in (gemm_p, scaled_p)]


def explained(function, *args):
    """The same as explain says it of a GPU, where XLA would multiply in 16 bits or not."""
    explanation = jaxgemm.explain(function, *args, platform="cuda")
    assert not explanation.left
    return [tuple(x.split("[")[0] for x in product.operands.split(" x ")) for product in explanation.products]


def error(got, want):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    return abs(got - want).max() / (abs(want).max() or 1.0)


def near(got, want, most=ROUNDED):
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert error(a, b) <= most


def check(function, x, kernel, pair, *args):
    """One product of this pair of types in a launch that scales, near what it was and near x times the kernel."""
    ours = override(function)
    assert types(ours, *args) == explained(ours, *args) == [pair]
    (product,) = jaxgemm.explain(ours, *args, platform="cuda").products
    assert any(product.decision.problem.scales)
    assert not product.scaled
    got, plain = jax.jit(ours)(*args), jax.jit(function)(*args)
    near(got, plain)
    want = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64)
    assert error(got, want) <= min(error(plain, want) + ROUNDED, NEAR[pair[0]])


def loss(function):
    return lambda *args: (function(*args).astype(jnp.float32) * jnp.cos(jnp.arange(OUT))).sum()


# --- flax -----------------------------------------------------------------------------------------------------


def fp8_layer(operation, dtype, x):
    """A layer and its variables after two steps, when scales are none of 1 any more."""
    model = nn.Dense(OUT, dtype=dtype, dot_general_cls=operation)
    variables = model.init(jax.random.key(1), x)
    for _ in range(2):
        gradient = jax.grad(loss(model.apply))(variables, x)
        variables = {**variables, fp8_ops.OVERWRITE_WITH_GRADIENT: gradient[fp8_ops.OVERWRITE_WITH_GRADIENT]}
    return model, variables


FP8 = pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        (fp8_ops.Fp8DotGeneralOp, "bfloat16"),
        (fp8_ops.Fp8DotGeneralOp, "float32"),
        (fp8_ops.Fp8DirectDotGeneralOp, "bfloat16"),
        (fp8_ops.Fp8DirectDotGeneralOp, "float32"),
    ],
)


@FP8
def test_flax_layers(operation, dtype, x):
    model, variables = fp8_layer(operation, dtype, x)
    check(model.apply, x, variables["params"]["kernel"], (E4M3, E4M3), variables, x)


@FP8
def test_flax_training(operation, dtype, x):
    """All three products; and flax's own scales and their history, which a gradient hands on, stay what they were."""
    model, variables = fp8_layer(operation, dtype, x)
    gradient = jax.grad(loss(model.apply), (0, 1))
    ours = override(gradient)
    assert sorted(types(ours, variables, x)) == [(E4M3, E4M3), (E5M2, E4M3), (E5M2, E4M3)]
    assert sorted(explained(ours, variables, x)) == sorted(types(ours, variables, x))
    want = gradient(variables, x)
    for got in (ours(variables, x), jax.grad(override(loss(model.apply)), (0, 1))(variables, x)):
        near(got, want)
        state, expected = (found[0][fp8_ops.OVERWRITE_WITH_GRADIENT] for found in (got, want))
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_array_equal(a, b)


def test_flax_layers_in_a_scan_that_is_checkpointed(x):
    """As models stack them: the products of each layer, and of its gradient, are of 8 bits."""

    class Stack(nn.Module):
        dtype: str

        @nn.compact
        def __call__(self, x):
            axes = {"params": 0, fp8_ops.OVERWRITE_WITH_GRADIENT: 0}
            layer = nn.remat(nn.Dense)(IN, dtype=self.dtype, dot_general_cls=fp8_ops.Fp8DotGeneralOp)
            stacked = nn.scan(
                lambda dense, x, _: (jnp.tanh(dense(x)), None), axes, split_rngs={"params": True}, length=3
            )
            return stacked(layer, x.astype(self.dtype), None)[0]

    model, exact = Stack("bfloat16"), Stack("float32")
    variables = model.init(jax.random.key(1), x)
    ours = override(model.apply)
    assert types(ours, variables, x) == [(E4M3, E4M3)]
    near(ours(variables, x), model.apply(variables, x))
    gradient, exactly = (jax.grad(lambda v, m=m: m.apply(v, x).astype(jnp.float32).sum()) for m in (model, exact))
    assert {(E4M3, E4M3), (E5M2, E4M3)} == {*types(override(gradient), variables)}
    # Values near the middle of two of 8 bits become either: each layer makes what was rounded before it differ more.
    want = exactly(variables)
    near(override(exactly)(variables), want)
    found = map(jax.tree.leaves, (override(gradient)(variables), gradient(variables), want))
    for got, plain, true in zip(*found, strict=True):
        assert error(got, true) <= 1.5 * error(plain, true)


def test_flax_einsum(x):
    class Heads(nn.Module):
        @nn.compact
        def __call__(self, x):
            w = self.param("w", nn.initializers.normal(), (IN, 2, OUT), jnp.bfloat16)
            return fp8_ops.Fp8Einsum()("bk,khd->bhd", x, w, preferred_element_type=jnp.bfloat16)

    variables = Heads().init(jax.random.key(1), x)
    ours = override(Heads().apply)
    assert types(ours, variables, x) == explained(ours, variables, x) == [(E4M3, E4M3)]
    near(ours(variables, x), Heads().apply(variables, x))


# --- qwix -----------------------------------------------------------------------------------------------------

BOTH = pytest.mark.parametrize("dtype", [INT8, E4M3])


@BOTH
@pytest.mark.parametrize("wide", ["bfloat16", "float32"])
def test_qwix_post_training(dtype, wide, x):
    model = nn.Dense(OUT, dtype=wide)
    variables = model.init(jax.random.key(1), x)
    rule = qwix.QuantizationRule(weight_qtype=dtype, act_qtype=dtype)
    quantised = qwix.quantize_model(model, qwix.PtqProvider([rule]))
    shapes = jax.eval_shape(quantised.init, jax.random.key(1), x)["params"]
    params = {"params": qwix.quantize_params(variables["params"], shapes)}
    check(quantised.apply, x, variables["params"]["kernel"], (dtype, dtype), params, x)


@BOTH
def test_qwix_of_nnx(dtype, x):
    model = nnx.Linear(IN, OUT, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    rule = qwix.QuantizationRule(weight_qtype=dtype, act_qtype=dtype)
    quantised = qwix.quantize_model(model, qwix.PtqProvider([rule]), x)
    ours = override(lambda model, x: model(x))
    near(ours(quantised, x), quantised(x))
    assert (
        error(ours(quantised, x), np.asarray(x, np.float64) @ np.asarray(model.kernel[...], np.float64)) <= NEAR[dtype]
    )
    assert types(lambda x: ours(quantised, x), x) == [(dtype, dtype)]


@BOTH
def test_qwix_training(dtype, x):
    model = nn.Dense(OUT, dtype=jnp.bfloat16)
    variables = model.init(jax.random.key(1), x)
    rule = qwix.QtRule(weight_qtype=dtype, act_qtype=dtype, bwd_qtype=dtype)
    quantised = qwix.quantize_model(model, qwix.QtProvider([rule]))
    check(quantised.apply, x, variables["params"]["kernel"], (dtype, dtype), variables, x)
    gradient = jax.grad(loss(quantised.apply), (0, 1))
    for ours in (override(gradient), jax.grad(override(loss(quantised.apply)), (0, 1))):
        assert types(ours, variables, x) == [(dtype, dtype)] * 3
        near(ours(variables, x), gradient(variables, x))


@BOTH
@pytest.mark.parametrize("tile", [128, 32])
def test_qwix_tiles_of_sums(dtype, tile, rng):
    """Large ones are products of a batch. Of small ones scales vary along the sum: they are left."""
    x = array(rng.standard_normal((ROWS, 256)), jnp.bfloat16)
    model = nn.Dense(OUT, dtype=jnp.bfloat16)
    variables = model.init(jax.random.key(1), x)
    rule = qwix.QtRule(weight_qtype=dtype, act_qtype=dtype, tile_size=tile)
    quantised = qwix.quantize_model(model, qwix.QtProvider([rule]))
    ours = override(quantised.apply)
    assert types(ours, variables, x) == [(dtype, dtype) if tile == 128 else ("bfloat16", "bfloat16")]
    near(ours(variables, x), quantised.apply(variables, x))


# --- AQT ------------------------------------------------------------------------------------------------------

KEYS = {"params": jax.random.key(3)}


def aqt_layer(config, x, **options):
    """A layer, as a function of variables and x, and variables."""
    model = nn.Dense(
        OUT, dtype=jnp.bfloat16, dot_general_cls=functools.partial(aqt_flax.AqtDotGeneral, config, **options)
    )
    return functools.partial(model.apply, rngs=KEYS), model.init(KEYS["params"], x)


def integers():
    return aqt.fully_quantized(fwd_bits=8, bwd_bits=8, use_stochastic_rounding=False)


@pytest.mark.parametrize(("config", "dtype"), [(integers, INT8), (aqt.config_fwd_fp8, E4M3)])
def test_aqt_training(config, dtype, x):
    apply, variables = aqt_layer(config(), x)
    check(apply, x, variables["params"]["kernel"], (dtype, dtype), variables, x)
    gradient = jax.grad(loss(apply), (0, 1))
    for ours in (override(gradient), jax.grad(override(loss(apply)), (0, 1))):
        assert (dtype, dtype) in types(ours, variables, x)
        near(ours(variables, x), gradient(variables, x))


@pytest.mark.parametrize(("config", "dtype"), [(integers, INT8), (aqt.config_fwd_fp8, E4M3)])
def test_aqt_dequantised_first(config, dtype, x):
    """Fake quantisation, whose products are of 16 bits."""
    settings = config()
    mode = aqt.DequantMode.THIS_INPUT
    aqt.set_fwd_dequant_mode(settings, lhs_dequant_mode=mode, rhs_dequant_mode=mode)
    aqt.set_accumulator_dtype(settings, None, None, None)
    apply, variables = aqt_layer(settings, x)
    check(apply, x, variables["params"]["kernel"], (dtype, dtype), variables, x)


def test_aqt_serving(x):
    """Weights are quantised once."""
    modes, freeze = aqt.utils.QuantMode, {"rhs_freeze_mode": aqt_flax.FreezerMode.CALIBRATION_AND_VALUE}
    convert, variables = aqt_layer(integers(), x, rhs_quant_mode=modes.CONVERT, **freeze)
    _, frozen = convert(variables, x, mutable=True)
    serve, _ = aqt_layer(integers(), x, rhs_quant_mode=modes.SERVE, **freeze)
    check(serve, x, variables["params"]["kernel"], (INT8, INT8), frozen, x)
