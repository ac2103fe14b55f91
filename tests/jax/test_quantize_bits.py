"""jaxgemm.quantize bit for bit, of all kinds of numbers, and under JAX's transformations."""

import itertools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import quantized
from arrays import array
from jax import export, lax
from jax.experimental import checkify, jet
from jax.sharding import PartitionSpec as P
from meshes import mesh, put

import jaxgemm
from jaxgemm.products.quantization import SCALINGS, TYPES

FROM = ("float32", "bfloat16", "float16", "float64")
scalings = pytest.mark.parametrize("scaling", SCALINGS)
#: 2^-126 and what is smaller: XLA may take numbers below for 0.
SMALLEST = 2.0**-126


def numbers(rng, shape=(6, 8)):
    return rng.standard_normal(shape).astype(np.float32)


def check(got, x, dtype, scaling):
    """Also of arrays on several devices."""
    quantized.check([np.asarray(y) for y in got], np.asarray(x), dtype, scaling)


# --- Bits -----------------------------------------------------------------------------------------------------


def inputs(rng):
    """Numbers in float64, to be rounded to each type; quotients lie near ties, and at both ends."""
    shape = 60, 64
    halves = rng.integers(-254, 255, shape) / 2
    ties = halves.copy()
    ties[:, 0] = 127
    fine = np.clip(rng.integers(-(2**16), 2**16, shape) / 2**8, -448, 448)
    fine[:, 0] = 448
    small = rng.standard_normal(shape) * 2.0**-15 * rng.uniform(0, 8, shape)
    small[:, 0] = 57344
    special = rng.standard_normal(shape)
    special[3, 4], special[5, 6], special[7, 8], special[9], special[10] = np.nan, np.inf, -np.inf, np.nan, -np.inf
    spread = rng.standard_normal(shape) * np.exp2(rng.integers(-10, 10, shape))
    return [
        spread,
        -abs(spread),
        rng.standard_normal(shape) * np.exp2(rng.integers(-8, 8, (shape[0], 1))),
        halves,
        ties,
        fine,
        small,
        special,
        np.array([[-0.0, 0.0], [-0.0, -0.0], [1.0, -0.0]]),
        np.full((3, 4), -np.inf),
        np.full((3, 4), np.nan),
    ]


@scalings
@pytest.mark.parametrize("dtype", TYPES)
def test_the_bits_of_ieee_arithmetic(dtype, scaling, rng):
    """On a CPU too: no quotient is a product with a reciprocal, and ties go to even."""
    every = [x.astype(jnp.dtype(source)) for x, source in itertools.product(inputs(rng), FROM)]
    got = jax.jit(lambda every: [jaxgemm.quantize(x, dtype, scaling) for x in every])(every)
    with np.errstate(invalid="ignore"):
        for x, result in zip(every, got, strict=True):
            check(result, x, dtype, scaling)
        check(jaxgemm.quantize(x, dtype, scaling), x, dtype, scaling)


@pytest.mark.parametrize("source", FROM[:3])
@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_of_any_bits(dtype, source, rng):
    kind = np.dtype(jnp.dtype(source))
    bits = rng.integers(0, 2 ** (8 * kind.itemsize), (200, 200), np.uint64).astype(f"uint{8 * kind.itemsize}")
    with np.errstate(all="ignore"):
        x = bits.view(kind)
        x = np.where(abs(x.astype(np.float64)) < SMALLEST, np.zeros((), kind), x)
        got = jax.jit(lambda x: [jaxgemm.quantize(x, dtype, scaling) for scaling in SCALINGS])(x)
        for scaling, result in zip(SCALINGS, got, strict=True):
            check(result, x, dtype, scaling)


@scalings
@pytest.mark.parametrize("dtype", TYPES)
def test_the_least_scale(dtype, scaling):
    """From largest numbers over 2^-126 on, at both sides of what makes that scale."""
    most = 127.0 if dtype == "int8" else float(ml_dtypes.finfo(jnp.dtype(dtype)).max)
    around = [most * SMALLEST * factor for factor in (0.5, 1 - 2**-24, 1.0, 1 + 2**-23, 2.0)]
    for largest in (SMALLEST, 3 * SMALLEST, *around, 1 / 3, 1 + 2**-23, 3.4028235e38):
        x = np.float32(largest) * np.array([[1.0, -1.0, 0.0], [-0.0, 1.0, 1.0]], np.float32)
        values, scales = jaxgemm.quantize(x, dtype, scaling)
        check((values, scales), x, dtype, scaling)
        assert (np.asarray(scales) >= np.float32(SMALLEST)).all()


def test_float64_is_rounded_to_float32_first():
    x = np.array([[1 + 2.0**-25, 127.0], [1e300, 1.0], [3.4028235677973366e38, 1.0], [2.0**-160, 0.0]])
    values, scales = jaxgemm.quantize(x, "int8", "row")
    with np.errstate(over="ignore"):
        check((values, scales), x.astype(np.float32), "int8", "row")
    np.testing.assert_array_equal(np.isnan(scales[:, 0]), [False, True, True, False])
    with jax.enable_x64(False):
        quantized.check(jaxgemm.quantize(x[:1], "int8"), x[:1].astype(np.float32), "int8", "tensor")


@scalings
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 3), (0, 2, 3), (2, 3, 0)])
def test_empty(shape, scaling):
    """A row or column without numbers has the scale 1."""
    wanted = {"tensor": (), "row": (*shape[:-1], 1), "column": (*shape[:-2], 1, shape[-1])}[scaling]
    for run in (jaxgemm.quantize, jax.jit(jaxgemm.quantize, static_argnums=(1, 2))):
        for dtype in TYPES:
            values, scales = run(array(np.ones(shape), np.float32), dtype, scaling)
            assert (values.shape, values.dtype) == (shape, dtype)
            np.testing.assert_array_equal(scales, np.ones(wanted, np.float32), strict=True)


# --- Arguments ------------------------------------------------------------------------------------------------


def test_what_is_taken_for_a_type_and_for_an_array():
    want = jaxgemm.quantize(np.array([[1.0, -2.0]], np.float32), "int8", "row")
    for dtype in (jnp.int8, np.int8, np.dtype("int8"), "i1"):
        jax.tree.map(np.testing.assert_array_equal, jaxgemm.quantize([[1.0, -2.0]], dtype, "row"), want)
    for dtype in (jnp.float8_e5m2, ml_dtypes.float8_e5m2, np.dtype(ml_dtypes.float8_e5m2), "float8_e5m2"):
        assert jaxgemm.quantize(2.0, dtype)[0].dtype == jnp.float8_e5m2
    values, scales = jaxgemm.quantize(3.0, "int8")
    assert (values.shape, scales.shape) == ((), ())
    assert not values.weak_type
    assert not scales.weak_type
    shapes = jax.eval_shape(lambda x: jaxgemm.quantize(x, "int8", "column"), jax.ShapeDtypeStruct((2, 3, 4), "float16"))
    assert [(y.shape, y.dtype) for y in shapes] == [((2, 3, 4), np.int8), ((2, 1, 4), np.float32)]


@pytest.mark.parametrize("dtype", [None, int, float, "e4m3", "float8_e4m3", [1], {}, 3])
def test_what_is_no_type_of_values(dtype):
    with pytest.raises(ValueError, match="quantize: dtype must be one of int8, float8_e4m3fn, float8_e5m2, got "):
        jaxgemm.quantize(np.ones((2, 2)), dtype)


@pytest.mark.parametrize("scaling", [None, 0, -1, "rows", ["row"], {"row"}])
def test_what_is_no_scaling(scaling):
    with pytest.raises(ValueError, match="quantize: scaling must be one of tensor, row, column, got "):
        jaxgemm.quantize(np.ones((2, 2)), "int8", scaling)


@pytest.mark.parametrize("x", [1, True, [1, 2], np.ones(3, np.complex64), None, "one", [[1.0], [2.0, 3.0]]])
def test_what_has_no_floating_point_numbers(x):
    with pytest.raises(TypeError, match="quantize: x"):
        jaxgemm.quantize(x, "int8")


# --- Transformations ------------------------------------------------------------------------------------------


@scalings
def test_vmap_over_each_axis(scaling, rng):
    x = numbers(rng, (3, 4, 5, 6))

    def quantize(x):
        return jaxgemm.quantize(x, "int8", scaling)

    program = jax.jit(
        lambda x: (
            [jax.vmap(quantize, axis, out_axes=-1)(x) for axis in range(4)],
            jax.vmap(jax.vmap(quantize, 1), 2)(x),
        )
    )
    once, twice = program(x)
    for axis, got in enumerate(once):
        for i in range(x.shape[axis]):
            check([np.asarray(y)[..., i] for y in got], x.take(i, axis), "int8", scaling)
    for i, j in np.ndindex(5, 4):  # the inner axis 1 is the second of what the outer one leaves
        check([np.asarray(y)[i, j] for y in twice], x[:, j, i], "int8", scaling)


def test_vmap_of_numbers_and_of_none():
    values, scales = jax.vmap(lambda x: jaxgemm.quantize(x, "int8"))(np.array([2.0, 0.0, -1.0]))
    np.testing.assert_array_equal(values, [127, 0, -127])
    assert scales.shape == (3,)
    assert jax.vmap(lambda x: jaxgemm.quantize(x, "int8"))(np.ones((0, 2, 3)))[1].shape == (0,)


def scale(x):
    return jaxgemm.quantize(x, "int8")[1].sum()


DERIVATIVES = {
    "jvp": lambda x: jax.jvp(scale, (x,), (x,)),
    "grad": lambda x: jax.grad(scale)(x),
    "grad of jit": lambda x: jax.grad(jax.jit(scale))(x),
    "linearize": lambda x: jax.linearize(scale, x),
    "jacfwd": lambda x: jax.jacfwd(scale)(x),
    "vmap of grad": lambda x: jax.vmap(jax.grad(scale))(x),
    "grad of vmap": lambda x: jax.grad(lambda x: jax.vmap(scale)(x).sum())(x),
    "checkpoint": lambda x: jax.grad(jax.checkpoint(scale))(x),
    "scan": lambda x: jax.grad(lambda x: lax.scan(lambda c, row: (c + scale(row), None), 0.0, x)[0])(x),
    "jet": lambda x: jet.jet(scale, (x,), ((x,),)),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_no_derivative(name, rng):
    with pytest.raises(TypeError, match="quantize is not differentiable: apply"):
        DERIVATIVES[name](array(numbers(rng)))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint, jax.vmap])
def test_derivatives_around_it(wrap, rng):
    """It may stand wherever nothing is differentiated through it, also beside a series."""
    x = array(numbers(rng))
    times = wrap(lambda x: jaxgemm.quantize(lax.stop_gradient(x), "int8")[1] * x)
    _, scales = quantized.expected(np.asarray(x), "int8", "row" if wrap is jax.vmap else "tensor")
    np.testing.assert_array_equal(jax.grad(lambda x: times(x).sum())(x), np.broadcast_to(scales, x.shape))
    looped = jax.grad(lambda y: lax.scan(lambda c, row: (c * scale(row), None), y, x)[0])(np.float32(1))
    np.testing.assert_allclose(looped, np.prod([float(scale(row)) for row in x]), rtol=1e-6)
    value, (series,) = jet.jet(lambda y: y * scale(x), (np.float32(2),), ((np.float32(3),),))
    assert (value, series) == (2 * scale(x), 3 * scale(x))


@scalings
@pytest.mark.parametrize("checks", ["nan_checks", "float_checks", "all_checks"])
def test_checkify_names_it(checks, scaling, rng):
    """Where it makes NaN: of an infinity in int8 the scale, also where it is mapped."""
    x = array(numbers(rng, (2, 6, 8)))

    def program(x, dtype):
        return jax.vmap(lambda x: jaxgemm.quantize(x, dtype, scaling))(x)

    for dtype in TYPES:
        checked = jax.jit(checkify.checkify(lambda x, d=dtype: program(x, d), errors=getattr(checkify, checks)))
        error, result = checked(x)
        assert error.get() is None
        assert all((np.asarray(y) == z).all() for y, z in zip(result, program(x, dtype), strict=True))
        for special, found in ((np.nan, True), (-np.inf, dtype != "float8_e5m2")):
            error, _ = checked(x.at[1, 2, 3].set(special))
            assert (error.get() or "").startswith("nan generated by primitive: jaxgemm_quantize") == found


# --- Several devices ------------------------------------------------------------------------------------------

SPECS = [P(), P("x"), P(None, "x"), P("x", "y"), P(None, ("x", "y"))]


@scalings
@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_a_scale_is_of_all_devices(types, scaling, rng):
    on, x = mesh(types=types), numbers(rng, (16, 24))
    with jax.set_mesh(on):
        for spec in SPECS:
            placed = put(x, on, spec)
            got = jax.jit(lambda x: jaxgemm.quantize(x, "float8_e4m3fn", scaling))(placed)
            check(got, x, "float8_e4m3fn", scaling)
            parts = (*spec, None, None)[:2]
            wanted = {"tensor": P(), "row": P(parts[0], None), "column": P(None, parts[1])}[scaling]
            if types == "Explicit":
                assert jax.typeof(got[0]) == jax.typeof(placed.astype("float8_e4m3fn"))
                assert jax.typeof(got[1]).sharding.spec == wanted
            with pytest.raises(TypeError, match="not differentiable"):
                jax.grad(lambda x: jaxgemm.quantize(x, "int8", scaling)[1].sum())(placed)


@scalings
@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_mapped_on_several_devices(types, scaling, rng):
    """Along an axis that is sharded, and along one that is not."""
    on, x = mesh(types=types), numbers(rng, (8, 16, 24))
    with jax.set_mesh(on):
        for axis, spec in itertools.product(range(3), (P("x"), P("x", "y"), P(None, None, "x"))):
            got = jax.jit(jax.vmap(lambda x: jaxgemm.quantize(x, "int8", scaling), axis))(put(x, on, spec))
            for i in range(x.shape[axis]):
                check([np.asarray(y)[i] for y in got], x.take(i, axis), "int8", scaling)


@scalings
@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_a_scale_is_of_what_a_device_has(types, scaling, rng):
    """Inside of a shard_map, over all of a mesh's axes or over some of them."""
    on, x = mesh(types=types), numbers(rng, (16, 24))

    def local(x):
        values, scales = jaxgemm.quantize(x, "int8", scaling)
        return values, scales.reshape(-1, 1)[:1]  # one of each device

    for names, axis in itertools.product(({"x", "y"}, {"x"}), range(2)):
        spec = P(*[None] * axis, "x")
        mapped = jax.shard_map(local, mesh=on, in_specs=spec, out_specs=(spec, P("x")), axis_names=names)
        with jax.set_mesh(on):
            values, scales = jax.jit(mapped)(put(x, on, spec))
        parts = [quantized.expected(part, "int8", scaling) for part in np.split(x, 4, axis)]
        np.testing.assert_array_equal(values, np.concatenate([v for v, _ in parts], axis))
        np.testing.assert_array_equal(np.asarray(scales)[:, 0], [np.ravel(s)[0] for _, s in parts])


# --- Programs for other machines ------------------------------------------------------------------------------


@scalings
@pytest.mark.parametrize("extents", ["m,8", "m,n", "b,m,n"])
def test_extents_that_are_not_known(extents, scaling, rng):
    """Exported for both platforms without a kernel's call, which holds extents as numbers."""
    struct = jax.ShapeDtypeStruct(export.symbolic_shape(extents), np.float32)
    function = jax.jit(lambda x: jaxgemm.quantize(x, "int8", scaling))
    made = export.export(function, platforms=["cpu", "cuda"])(struct)
    loaded = export.deserialize(made.serialize())
    for shape in ((2, 5, 8), (3, 1, 8)):
        x = numbers(rng, shape[-len(struct.shape) :])
        check(loaded.call(x), x, "int8", scaling)


def test_explain_of_scaled_products():
    """It shows the product, and nothing that would be XLA's."""
    x, w = (jax.ShapeDtypeStruct(s, "bfloat16") for s in ((512, 256), (256, 384)))

    def program(x, w):
        (a, s), (b, t) = jaxgemm.quantize(x, "int8", "row"), jaxgemm.quantize(w, "int8", "column")
        return jaxgemm.gemm(a, b, a_scale=s, b_scale=t, out_dtype="bfloat16")

    for function in (program, jaxgemm.override(program)):
        found = jaxgemm.explain(function, x, w, platform="cuda")
        assert not found.left
        (product,) = found.products
        assert (product.operands, product.kernel) == ("int8[512,256] x int8[256,384]", "sm90")
        assert "epilogue   a b * a_scale * b_scale" in str(product)
