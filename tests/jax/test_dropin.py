"""dot_general where lax.dot_general's contract is expected: the same call gives the same result and type."""

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import lax

import jaxgemm

KERNELS = ("auto", "host")

#: einsum equation, shapes.
EINSUMS = (
    ("ij,jk->ik", (5, 7), (7, 6)),
    ("ij,jk->ki", (5, 7), (7, 6)),
    ("ij,kj->ik", (5, 7), (6, 7)),
    ("ji,jk->ik", (7, 5), (7, 6)),
    ("ji,kj->ik", (7, 5), (6, 7)),
    ("i,i->", (9,), (9,)),
    ("i,j->ij", (4,), (5,)),
    ("ij,j->i", (4, 5), (5,)),
    ("j,jk->k", (5,), (5, 6)),
    ("bij,bjk->bik", (3, 4, 5), (3, 5, 6)),
    ("ibj,jbk->bik", (4, 3, 5), (5, 3, 6)),
    ("bij,bkj->bik", (3, 4, 5), (3, 6, 5)),
    ("bij,jk->bik", (3, 4, 5), (5, 6)),
    ("ij,bjk->bik", (4, 5), (3, 5, 6)),
    ("ij,bjk->ibk", (4, 5), (3, 5, 6)),
    ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
    ("bqhd,bkhd->bhqk", (2, 4, 3, 5), (2, 6, 3, 5)),
    ("bhqk,bkhd->bqhd", (2, 3, 4, 6), (2, 6, 3, 5)),
    ("btd,dhk->bthk", (2, 4, 6), (6, 3, 5)),
    ("bthk,hkd->btd", (2, 4, 3, 5), (3, 5, 6)),
    ("bthk,dkh->btd", (2, 4, 3, 5), (6, 5, 3)),
    ("abcd,cdab->", (2, 3, 4, 5), (4, 5, 2, 3)),
    ("abcd,dcef->abef", (2, 3, 4, 5), (5, 4, 3, 2)),
    ("abcd,becf->adef", (2, 3, 4, 5), (3, 2, 4, 6)),
    ("cabd,bcae->abcde", (2, 3, 4, 5), (4, 2, 3, 6)),
    ("cabd,dbcae->abce", (2, 3, 4, 5), (5, 4, 2, 3, 6)),
    ("abc,cd,de->abe", (2, 3, 4), (4, 5), (5, 6)),
    ("ab,bc,ca->", (3, 4), (4, 5), (5, 3)),
    ("...ij,...jk->...ik", (2, 3, 4, 5), (3, 5, 6)),
    ("iij,jk->ik", (4, 4, 5), (5, 6)),
    ("ijz,jk->ik", (4, 5, 3), (5, 6)),
    ("ij,jk->ik", (0, 5), (5, 6)),
    ("ij,jk->ik", (4, 0), (0, 6)),
    ("bij,bjk->bik", (0, 4, 5), (0, 5, 6)),
)

#: dimension_numbers with axes in every order, shapes.
DIMS = (
    ((((1, 2), (0, 1)), ((), ())), (4, 2, 3), (2, 3, 5)),
    ((((2, 1), (1, 0)), ((), ())), (4, 2, 3), (2, 3, 5)),
    ((((1, 2), (1, 0)), ((), ())), (4, 2, 3), (3, 2, 5)),
    ((((0, 2), (2, 0)), ((), ())), (2, 4, 3), (3, 5, 2)),
    ((((3,), (2,)), ((0, 1), (0, 1))), (2, 3, 4, 5), (2, 3, 5, 6)),
    ((((3,), (2,)), ((1, 0), (1, 0))), (2, 3, 4, 5), (2, 3, 5, 6)),
    ((((3,), (2,)), ((0, 1), (1, 0))), (2, 3, 4, 5), (3, 2, 5, 6)),
    ((((0,), (3,)), ((2, 3), (0, 1))), (5, 4, 2, 3), (2, 3, 6, 5)),
    ((((1, 3), (3, 1)), ((2, 0), (0, 2))), (2, 3, 4, 5), (4, 5, 2, 3)),
    ((((1, 3), (3, 1)), ((2,), (0,))), (2, 3, 4, 5), (4, 5, 6, 3)),
    ((((-1,), (-2,)), ((0,), (0,))), (2, 3, 4), (2, 4, 5)),
    ((((), ()), ((), ())), (2, 3), (4,)),
    ((((), ()), ((0,), (0,))), (2, 3), (2, 4)),
    ((((), ()), ((), ())), (), (3,)),
    ((((0,), (0,)), ((), ())), (4,), (4,)),
    ((((0, 1), (0, 1)), ((), ())), (4, 3), (4, 3)),
    ((((), ()), ((0, 1), (0, 1))), (4, 3), (4, 3)),
    ((((1,), (1,)), ((0, 2, 3), (3, 2, 0))), (2, 5, 3, 4), (4, 5, 3, 2)),
    ((((1,), (0,)), ((), ())), (1, 1), (1, 1)),
)

FLOATS = ("float32", "float64", "bfloat16", "float16")


def operands(rng, shapes, dtype):
    kind = jnp.dtype(dtype)
    if jnp.issubdtype(kind, jnp.complexfloating):
        return [array(rng.standard_normal(s) + 1j * rng.standard_normal(s), kind) for s in shapes]
    if jnp.issubdtype(kind, jnp.inexact):
        return [array(rng.standard_normal(s), kind) for s in shapes]
    if dtype == "bool":
        return [array(rng.integers(0, 2, s), kind) for s in shapes]
    low = 0 if jnp.issubdtype(kind, jnp.unsignedinteger) else -9
    return [array(rng.integers(low, 9, s), kind) for s in shapes]


def tolerance(dtype, steps=16):
    return 0 if not jnp.issubdtype(dtype, jnp.inexact) else steps * float(jnp.finfo(dtype).eps)


def same(got, expected, tol=None):
    """Same shape, element type, weakness and values."""
    assert jax.typeof(got) == jax.typeof(expected)
    assert jax.typeof(got).weak_type == jax.typeof(expected).weak_type
    tol = tolerance(expected.dtype) if tol is None else tol
    wide = np.complex128 if jnp.issubdtype(expected.dtype, jnp.complexfloating) else np.float64
    np.testing.assert_allclose(np.asarray(got).astype(wide), np.asarray(expected).astype(wide), rtol=tol, atol=4 * tol)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("equation", EINSUMS, ids=lambda e: e[0])
def test_einsum(equation, kernel, rng):
    spec, *shapes = equation
    dot_general = functools.partial(jaxgemm.dot_general, kernel=kernel)
    # XLA on CPU has no product of bfloat16 in some of the layouts that broadcasting gives.
    every = [operands(rng, shapes, t) for t in (("float32",) if "..." in spec else ("float32", "bfloat16"))]
    args = operands(rng, shapes, "float64")

    @jax.jit
    def program(every, args):
        both = [
            [jnp.einsum(spec, *given, **how, preferred_element_type="float32") for given in every]
            for how in ({}, {"_dot_general": dot_general})
        ]
        return *both, jnp.einsum(spec, *args, _dot_general=dot_general)

    theirs, ours, got = program(every, args)
    for one, expected in zip(ours, theirs, strict=True):
        same(one, expected)
    same(got, array(np.einsum(spec, *map(np.asarray, args))))


@pytest.mark.parametrize("spec", ["bqhd,bkhd->bhqk", "bthk,dkh->btd", "cabd,dbcae->abce", "abc,cd,de->abe"])
def test_einsum_derivatives(spec, rng):
    shapes = next(e[1:] for e in EINSUMS if e[0] == spec)
    args = operands(rng, shapes, "float64")

    def loss(dot_general, *args):
        return jnp.sum(jnp.sin(jnp.einsum(spec, *args, _dot_general=dot_general)))

    every = tuple(range(len(args)))
    ours = jax.jit(jax.grad(functools.partial(loss, functools.partial(jaxgemm.dot_general, kernel="host")), every))
    theirs = jax.jit(jax.grad(functools.partial(loss, lax.dot_general), every))
    for got, expected in zip(ours(*args), theirs(*args), strict=True):
        same(got, expected)


@pytest.mark.parametrize("case", DIMS, ids=str)
def test_dimension_numbers(case, rng):
    dims, *shapes = case
    positive = jax.tree.map(int, dims)
    if dims[0] == ((-1,), (-2,)):
        positive = (((2,), (1,)), ((0,), (0,)))
    x, y = operands(rng, shapes, "float64")
    lists = [[list(axes) for axes in pair] for pair in dims]

    def loss(x, y, product):
        return jnp.sum(jnp.sin(product(x, y)))

    def gradient(product):
        return jax.grad(functools.partial(loss, product=product), (0, 1))(x, y)

    @jax.jit
    def program(x, y):
        ours = [jaxgemm.dot_general(x, y, given, kernel=kernel) for kernel in KERNELS for given in (dims, lists)]
        our_gradient = gradient(lambda x, y: jaxgemm.dot_general(x, y, dims, kernel="host"))
        return (
            lax.dot_general(x, y, positive),
            ours,
            our_gradient,
            gradient(lambda x, y: lax.dot_general(x, y, positive)),
        )

    expected, found, ours, theirs = program(x, y)
    for got in found:
        same(got, expected)
    for got, want in zip(ours, theirs, strict=True):
        same(got, want)


MATMUL = (((1,), (0,)), ((), ()))


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint8", "int16", "int32", "uint32", "int64", "complex64", "bool"])
def test_element_types(dtype, rng):
    x, y = operands(rng, ((5, 70), (70, 6)), dtype)
    products = jaxgemm.dot_general, lax.dot_general
    both = [{"preferred_element_type": preferred} for preferred in (None, dtype)]
    program = jax.jit(lambda x, y: [[f(x, y, MATMUL, **given) for f in products] for given in both])
    for got, expected in program(x, y):
        same(got, expected)


@pytest.mark.parametrize(
    ("dtype", "preferred"),
    [
        ("bfloat16", "float32"),
        ("float16", "float32"),
        ("bfloat16", "float64"),
        ("float32", "float64"),
        ("int8", "int32"),
        ("uint8", "int32"),
        ("uint8", "uint32"),
        ("int8", "int16"),
        ("int16", "int32"),
        ("int32", "int64"),
        ("int8", "float32"),
        ("complex64", "complex128"),
    ],
)
@pytest.mark.parametrize("kernel", ["auto", "xla"])
def test_preferred_element_types(dtype, preferred, kernel, rng):
    x, y = operands(rng, ((5, 70), (70, 6)), dtype)
    got = jaxgemm.dot_general(x, y, MATMUL, preferred_element_type=preferred, kernel=kernel)
    same(got, lax.dot_general(x, y, MATMUL, preferred_element_type=preferred), tolerance(jnp.dtype(preferred), 256))


@pytest.mark.parametrize(
    ("dtype", "preferred"),
    [("bfloat16", "float32"), ("float16", "float32"), ("int8", "int32"), ("uint8", "int32"), ("int8", None)],
)
def test_preferred_element_types_of_a_named_kernel(dtype, preferred, rng):
    x, y = operands(rng, ((5, 70), (70, 6)), dtype)
    got = jaxgemm.dot_general(x, y, MATMUL, preferred_element_type=preferred, kernel="host")
    same(got, lax.dot_general(x, y, MATMUL, preferred_element_type=preferred), tolerance(got.dtype, 256))


PRECISIONS = (
    None,
    "default",
    "high",
    "highest",
    "fastest",
    "bfloat16",
    "tensorfloat32",
    "float32",
    lax.Precision.HIGHEST,
    (lax.Precision.DEFAULT, lax.Precision.HIGHEST),
    ("high", "highest"),
    lax.DotAlgorithmPreset.DEFAULT,
    lax.DotAlgorithmPreset.F32_F32_F32,
    "F32_F32_F32",
)


@pytest.mark.parametrize("precision", PRECISIONS, ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_precisions(precision, kernel, rng):
    x, y = operands(rng, ((5, 70), (70, 6)), "float32")
    ours = functools.partial(jaxgemm.dot_general, kernel=kernel)

    @jax.jit
    def program(x, y):
        einsum = jnp.einsum("ij,jk->ik", x, y, precision=precision, _dot_general=ours)
        found = ours(x, y, MATMUL, precision), ours(x, y, MATMUL, precision=precision), einsum
        return lax.dot_general(x, y, MATMUL, precision=precision), found

    expected, found = program(x, y)
    for got in found:
        same(got, expected, 1e-4)


@pytest.mark.parametrize("precision", ["default", "high", "highest", "tensorfloat32", "F32_F32_F32"])
def test_the_default_precision_is_honoured(precision, rng):
    x, y = operands(rng, ((5, 70), (70, 6)), "float32")

    def asked(function):
        (eqn,) = jax.make_jaxpr(function)(x, y).jaxpr.eqns
        return eqn.params["precision"]

    with jax.default_matmul_precision(precision):
        ours = asked(lambda x, y: jaxgemm.dot_general(x, y, MATMUL))
        theirs = asked(lambda x, y: lax.dot_general(x, y, MATMUL))
    assert ours == theirs


@pytest.mark.parametrize(
    ("dtype", "preset"),
    [
        ("float32", "F32_F32_F32"),
        ("float64", "F64_F64_F64"),
        ("float16", "F16_F16_F32"),
        ("bfloat16", "BF16_BF16_F32"),
    ],
)
def test_algorithm_presets(dtype, preset, rng):
    x, y = operands(rng, ((5, 70), (70, 6)), dtype)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    expected = np.asarray(x, np.float64) @ np.asarray(y, np.float64)
    for given in (preset, lax.DotAlgorithmPreset[preset]):
        got = jaxgemm.dot_general(x, y, MATMUL, given, wide, kernel="host")
        same(got, array(expected, wide), tolerance(jnp.dtype(wide), 256))


def test_algorithms_that_no_kernel_computes_are_refused(rng):
    x, y = operands(rng, ((5, 70), (70, 6)), "float32")
    for preset in ("TF32_TF32_F32", "BF16_BF16_F32_X3"):
        with pytest.raises(jaxgemm.UnsupportedError, match=preset):
            jaxgemm.dot_general(x, y, MATMUL, preset, kernel="host")
        # Left to XLA, which may know it or not, with an error of its own.
        (product,) = jaxgemm.explain(lambda x, y, p=preset: jaxgemm.dot_general(x, y, MATMUL, p), x, y).products
        assert product.kernel == "xla"


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("kernel", KERNELS)
def test_x64_on_and_off(x64, kernel, rng):
    a, b = rng.standard_normal((5, 7)), rng.standard_normal((7, 6))
    with jax.enable_x64(x64):
        got = jaxgemm.dot_general(a, b, MATMUL, kernel=kernel)
        same(got, lax.dot_general(array(a), array(b), MATMUL))
        assert got.dtype == (jnp.float64 if x64 else jnp.float32)
        got = jnp.einsum("ij,jk", a, b, _dot_general=functools.partial(jaxgemm.dot_general, kernel=kernel))
        same(got, jnp.einsum("ij,jk", a, b))
        if not x64:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # JAX says that float64 is not available
                wide = {"preferred_element_type": "float64"}
                got = jaxgemm.dot_general(a, b, MATMUL, **wide, kernel=kernel)
                same(got, lax.dot_general(array(a), array(b), MATMUL, **wide))


def test_every_argument_by_position_and_by_name(rng):
    x, y = operands(rng, ((5, 7), (7, 6)), "float32")
    expected = lax.dot_general(x, y, MATMUL)
    same(jaxgemm.dot_general(x, y, MATMUL, None, None, out_sharding=None), expected)
    same(
        jaxgemm.dot_general(
            lhs=x, rhs=y, dimension_numbers=MATMUL, precision=None, preferred_element_type=None, out_sharding=None
        ),
        expected,
    )
    same(jaxgemm.dot_general(x, y, dimension_numbers=MATMUL, preferred_element_type=jnp.float32), expected)


def test_numpy_and_scalars(rng):
    x, y = (np.asarray(v) for v in operands(rng, ((5, 7), (7, 6)), "float32"))
    same(jaxgemm.dot_general(x, y, MATMUL), lax.dot_general(x, y, MATMUL))
    scalar = (((), ()), ((), ()))
    for a, b in ((np.float32(2), np.float32(3)), (jnp.float32(2), x), (jnp.asarray(2.0), jnp.asarray(3.0))):
        same(jaxgemm.dot_general(a, b, scalar), lax.dot_general(a, b, scalar))


def test_shape_errors_are_lax_own(rng):
    x, y = operands(rng, ((5, 7), (6, 7)), "float32")
    for dims in (
        MATMUL,
        (((0,), (0,)), ((), ())),
        (((5,), (0,)), ((), ())),
        (((1, 1), (1, 1)), ((), ())),
        (((1,), ()), ((), ())),
    ):
        errors = []
        for product in (lax.dot_general, jaxgemm.dot_general):
            with pytest.raises(TypeError) as error:
                product(x, y, dims)
            errors.append(str(error.value).splitlines()[0])
        assert errors[0] == errors[1]


def test_vmap_of_every_axis(rng):
    x, y = operands(rng, ((2, 3, 4), (3, 4, 2)), "float64")
    for ax, ay in itertools.product((None, 0, 1, 2), repeat=2):
        if ax is None and ay is None:
            continue
        shapes = [[n for i, n in enumerate(v.shape) if i != a] for v, a in ((x, ax), (y, ay))]
        if ax is not None and ay is not None and x.shape[ax] != y.shape[ay]:
            continue
        for i, j in itertools.product(range(len(shapes[0])), range(len(shapes[1]))):
            if shapes[0][i] != shapes[1][j]:
                continue
            dims = (((i,), (j,)), ((), ()))
            got = jax.vmap(functools.partial(jaxgemm.dot_general, dimension_numbers=dims, kernel="host"), (ax, ay))(
                x, y
            )
            same(got, jax.vmap(functools.partial(lax.dot_general, dimension_numbers=dims), (ax, ay))(x, y))


def test_other_products_of_jnp_through_einsum(rng):
    # tensordot, matmul and vdot are einsums.
    x, y = operands(rng, ((2, 3, 4), (4, 3, 5)), "float64")
    same(jnp.einsum("abc,cbd->ad", x, y, _dot_general=jaxgemm.dot_general), jnp.tensordot(x, y, ((2, 1), (0, 1))))
    same(jnp.einsum("abc,abc->", x, x, _dot_general=jaxgemm.dot_general), jnp.vdot(x, x))


def test_out_sharding():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Explicit,))
    spec = jax.sharding.PartitionSpec("i", None)
    x, y = jnp.ones((4, 5)), jnp.ones((5, 6))
    with jax.set_mesh(mesh):
        for sharding in (spec, jax.sharding.NamedSharding(mesh, spec), None):
            got = jaxgemm.dot_general(x, y, MATMUL, out_sharding=sharding)
            expected = lax.dot_general(x, y, MATMUL, out_sharding=sharding)
            assert jax.typeof(got).sharding == jax.typeof(expected).sharding
            same(jnp.einsum("ij,jk->ik", x, y, out_sharding=sharding, _dot_general=jaxgemm.dot_general), expected)
