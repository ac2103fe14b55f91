"""Grouped products with a bias and an activation, and gated pairs: right, isolated, and under every transformation."""

from __future__ import annotations

from functools import partial

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from grouped import GROUPS, SIZES, K, M, N, arrays, bounds
from grouped_layers import LAYERS, gradients, layers
from jax import export, lax
from jax.test_util import check_grads
from jaxprs import equations
from meshes import assert_close

import jaxgemm
from jaxgemm.kernels import find_kernel
from jaxgemm.ragged.product import grouped_p

#: How far a result may be from the exact one, relative to the largest element: rounding of operands excepted.
EPS = {"float32": 2e-5, "float64": 1e-13, "bfloat16": 2e-2, "float16": 2e-3}


def operands(rng, layer, dtype=np.float32, held=GROUPS):
    return [array(v, dtype) for v in arrays(rng, *layer.shapes(M, K, N, held))]


# --- Values ---------------------------------------------------------------------------------------------------


@layers
@pytest.mark.parametrize("dtype", EPS)
def test_types_and_sizes(layer, dtype, rng):
    args = operands(rng, layer, dtype)
    program = jax.jit(layer.ours)
    for sizes in SIZES.values():
        got = program(*args, array(sizes))
        assert got.dtype == args[0].dtype
        assert_close(got, layer.exact(*args, sizes), EPS[dtype])


@layers
def test_activations(layer, rng):
    """Rows of no group have zeros, not an activation's value at 0."""
    args, sizes = operands(rng, layer, np.float64), SIZES["fewer"]
    names = [None, *cases.ACTIVATIONS]
    every = jax.jit(lambda *a: [layer.ours(*a, jnp.asarray(sizes), activation=name) for name in names])(*args)
    for name, got in zip(names, every, strict=True):
        assert_close(got, layer.exact(*args, sizes, activation=name), 1e-13)
        np.testing.assert_array_equal(got[sum(sizes) :], 0)


@pytest.mark.parametrize("activation", [None, "sigmoid"])
def test_a_bias_or_an_activation_alone(activation, rng):
    x, w, bias = operands(rng, LAYERS["fused"])
    given = {"bias": bias} if activation is None else {"activation": activation}
    got = jaxgemm.ragged_dot(x, w, array(SIZES["fewer"]), **given)
    other = bias if activation is None else jnp.zeros_like(bias)
    assert_close(got, LAYERS["fused"].exact(x, w, other, SIZES["fewer"], activation=activation))


@layers
@pytest.mark.parametrize(("dtype", "out"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("float32", "float64")])
def test_result_types(layer, dtype, out, rng):
    args = operands(rng, layer, dtype)
    sizes = array(SIZES["more"])
    program = jax.jit(lambda *a: layer.ours(*a, sizes, preferred_element_type=out))
    assert program(*args).dtype == jnp.dtype(out)
    assert_close(program(*args), layer.exact(*args, SIZES["more"]), max(EPS[out], EPS["float32"]))
    assert [g.dtype for g in jax.jit(gradients(program))(*args)] == [jnp.dtype(dtype)] * 3


def test_a_bias_wider_than_the_result(rng):
    """It is added in its own type, and its gradient has that type."""
    x, w, bias = operands(rng, LAYERS["fused"], "float16")
    bias = array(np.asarray(bias, np.float32) + np.float32(1e5))
    w = array(np.where(np.arange(w.shape[-1]) == 0, 0, w), w.dtype)  # so that this column is the bias and nothing else

    def function(bias):
        return jaxgemm.ragged_dot(x, w, jnp.asarray(SIZES["all"]), bias=bias, activation="sigmoid")

    result = np.asarray(jax.jit(function)(bias))
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result[:, 0], 1)
    assert jax.jit(jax.grad(lambda b: jnp.sum(function(b)).astype(jnp.float32)))(bias).dtype == jnp.float32


def test_the_gradient_of_a_bias_is_summed_in_fp32():
    """Of 4096 rows whose cotangents are 1: in bfloat16 a sum of ones stops at 256."""
    x, w, bias = (array(np.ones(shape), "bfloat16") for shape in ((4096, 1), (2, 1, 3), (2, 3)))
    sizes = array([1024, 3000])
    found = jax.jit(jax.grad(lambda b: jnp.sum(jaxgemm.ragged_dot(x, w, sizes, bias=b), dtype=jnp.float32)))(bias)
    assert_close(found, np.repeat([[1024.0], [3000.0]], 3, 1), 2**-8)


@layers
@pytest.mark.parametrize(("held", "offset"), [(1, 0), (3, 2), (3, -1), (4, 7), (8, 9)])
def test_weights_of_some_groups(layer, held, offset, rng):
    args, given = operands(rng, layer, held=held), array([offset])
    program = jax.jit(lambda *a: layer.ours(*a[:3], jnp.asarray(SIZES["all"]), group_offset=a[3]))
    exact = partial(layer.exact, sizes=SIZES["all"], offset=offset)
    want, slopes = jax.jit(lambda *a: (exact(*a), gradients(exact)(*a)))(*args)
    assert_close(program(*args, given), want)
    assert_close(jax.jit(gradients(lambda *a: program(*a, given)))(*args), slopes, 1e-4)


@layers
def test_groups_are_isolated(layer, rng):
    """NaN and infinity in a group's rows, weights and bias, and in rows of no group, reach nobody else's results."""
    sizes, clean = SIZES["fewer"], [np.array(v) for v in operands(rng, layer)]
    x, w, extra = (v.copy() for v in clean)
    (begin, end), used = bounds(sizes, M)[2], sum(sizes)
    x[begin:end], x[used:], w[4], w[7], extra[1], extra[3] = np.nan, np.inf, np.nan, np.inf, np.nan, np.inf

    def loss(*args):
        out = layer.ours(*args, jnp.asarray(sizes))
        return jnp.sum(out[:used] ** 2), out

    program = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))
    (gradient, got), (expected, want) = program(x, w, extra), program(*clean)
    for group in (0, 6):
        rows = slice(*bounds(sizes, M)[group])
        np.testing.assert_array_equal(got[rows], want[rows])
        for i, where in enumerate((rows, group, group)):
            np.testing.assert_array_equal(gradient[i][where], expected[i][where])
    for rows in (got, gradient[0]):
        np.testing.assert_array_equal(rows[used:], 0)
        assert not np.isfinite(rows[slice(*bounds(sizes, M)[1])]).any()
    for group in (3, 4, 5):  # which have no rows
        np.testing.assert_array_equal(gradient[1][group], 0)
        np.testing.assert_array_equal(gradient[2][group], 0)


@layers
@pytest.mark.parametrize("shape", [(0, K, N, GROUPS), (M, 0, N, GROUPS), (M, K, 0, GROUPS), (M, K, N, 0)])
def test_empty(layer, shape):
    """Without a sum the products are 0: a bias is left, and of a gated pair nothing."""
    args = [jnp.ones(s) for s in layer.shapes(*shape)]
    sizes = jnp.full(shape[3], 3)
    got, pull = jax.vjp(jax.jit(lambda *a: layer.ours(*a, sizes)), *args)
    assert_close(got, layer.exact(*args, [3] * shape[3]), 1e-12)
    assert [x.shape for x in pull(got)] == [x.shape for x in args]


# --- Transformations ------------------------------------------------------------------------------------------


@layers
def test_gradients(layer, rng):
    args = operands(rng, layer)
    got = jax.jit(gradients(lambda *a: layer.ours(*a, jnp.asarray(SIZES["fewer"]))))(*args)
    assert_close(got, gradients(partial(layer.exact, sizes=SIZES["fewer"]))(*args), 1e-4)


@layers
def test_derivatives_of_second_order(layer, rng):
    """Against finite differences, forward and reverse."""
    args = [array(rng.standard_normal(s)) for s in layer.shapes(7, 3, 4, 3)]
    sizes = array([2, 0, 4])
    check_grads(jax.jit(lambda *a: layer.ours(*a, sizes)), args, order=2, modes=("fwd", "rev"), atol=1e-4, rtol=1e-4)


@layers
def test_gradients_are_grouped_products(layer, rng):
    """Of narrow types, as in jnp: what is kept for them has the result's type, and so have cotangents."""
    args = operands(rng, layer, "bfloat16")
    found = equations(gradients(lambda *a: layer.ours(*a, jnp.asarray(SIZES["all"]))), *args)
    products = [eqn for eqn in found if eqn.primitive is grouped_p]
    # The product and its two gradients, and that of the bias; or so many of both products.
    count = (2, 2) if layer is LAYERS["fused"] else (4, 2)
    sums = sum(eqn.params["form"].sums for eqn in products)
    assert (len(products) - sums, sums) == count
    assert {v.aval.dtype.name for eqn in products for v in eqn.invars[:2]} == {"bfloat16"}


TRANSFORMS = {
    "jvp": lambda f: lambda *a: jax.jvp(f, a, tuple(map(jnp.cos, a))),
    "jacfwd": lambda f: lambda *a: jax.jacfwd(lambda b: f(a[0], a[1], b)[0])(a[2]),
    "linearize": lambda f: lambda *a: jax.linearize(f, *a)[1](*a),
    "scan": lambda f: lambda x, *w: lax.scan(lambda c, _: (c + f(c, *w).sum(), c), x, None, length=3),
    "grad of scan": lambda f: jax.grad(
        lambda *a: jnp.sum(lax.scan(lambda c, _: (jnp.sin(c + f(c, *a[1:]).sum()), None), a[0], None, length=3)[0]),
        (0, 1, 2),
    ),
    "checkpoint": lambda f: gradients(jax.checkpoint(f)),
    "checkpoint, dots saveable": lambda f: gradients(
        jax.checkpoint(f, policy=jaxgemm.checkpoint_policies.dots_saveable)
    ),
}


@layers
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transform(layer, transform, rng):
    args = operands(rng, layer, np.float64)
    got = jax.jit(TRANSFORMS[transform](lambda *a: layer.ours(*a, jnp.asarray(SIZES["fewer"]))))(*args)
    assert_close(got, jax.jit(TRANSFORMS[transform](partial(layer.exact, sizes=SIZES["fewer"])))(*args), 1e-9)


VMAPS = (
    # in_axes of x, w, extra, sizes
    (0, None, None, None),
    (1, None, None, 0),
    (None, 0, None, None),
    (None, 1, 0, None),
    (None, None, None, 0),
    (0, 2, 1, 0),
)


def mapped(layer, axes, args):
    """One result for each, in float64, from operands of which some have an axis more."""
    whole = [v if a is None else jnp.moveaxis(jnp.asarray(v), a, 0) for v, a in zip(args, axes, strict=True)]
    each = [[v if a is None else v[i] for v, a in zip(whole, axes, strict=True)] for i in range(3)]
    return jnp.stack([layer.exact(*one[:3], np.asarray(one[3])) for one in each])


@layers
@pytest.mark.parametrize("axes", VMAPS)
def test_vmap(layer, axes, rng):
    sizes = np.asarray([SIZES["all"], SIZES["more"], SIZES["fewer"]], np.int32)
    args = [array(v, np.float64) for v in operands(rng, layer)]
    given = [v if a is None else jnp.stack([v, 1 - v, 2 * v], a) for v, a in zip(args, axes, strict=False)]
    last = array(sizes if axes[3] == 0 else sizes[2])
    program = jax.vmap(layer.ours, axes)
    assert_close(jax.jit(program)(*given, last), mapped(layer, axes, [*given, last]), 1e-12)
    got = jax.jit(gradients(lambda *a: program(*a, last)))(*given)
    assert_close(got, gradients(lambda *a: mapped(layer, axes, [*a, last]))(*given), 1e-10)


@layers
def test_nested_vmap_and_one_over_offsets(layer, rng):
    x, w, extra = operands(rng, layer, np.float64)
    sizes, xs = array(SIZES["all"]), jnp.stack([x, -x])
    inner = jax.vmap(lambda x, o: layer.ours(x, w, extra, sizes, group_offset=o), (None, 0))
    got = jax.jit(jax.vmap(inner, (0, None)))(xs, array([[0], [3], [-2]]))
    for i, (j, offset) in ((i, pair) for i in range(2) for pair in enumerate((0, 3, -2))):
        assert_close(got[i, j], layer.exact(xs[i], w, extra, SIZES["all"], offset), 1e-12)


@layers
def test_vmap_over_rows_stays_one_product(layer, rng):
    """With sizes of their own or without: a kernel computes the batch in one launch."""
    x, w, extra = operands(rng, layer)
    sizes = array([SIZES["all"]] * 3, np.int32)
    for axes in ((0, None, None, 0), (0, None, None, None)):
        given = sizes if axes[3] == 0 else sizes[0]
        (eqn,) = jax.make_jaxpr(jax.vmap(layer.ours, axes))(jnp.stack([x] * 3), w, extra, given).jaxpr.eqns[-1:]
        assert eqn.primitive.name == "jaxgemm_grouped_fused"


@layers
@pytest.mark.parametrize("rows", [M, None], ids=["numbers", "symbols"])
def test_export(layer, rows, rng):
    args = [*operands(rng, layer), array(SIZES["fewer"], np.int32)]
    first = args[0].shape if rows else (*export.symbolic_shape("m"), K)
    structs = [jax.ShapeDtypeStruct(first, args[0].dtype), *(jax.ShapeDtypeStruct(v.shape, v.dtype) for v in args[1:])]
    for program in (layer.ours, lambda *a: gradients(lambda *b: layer.ours(*b, a[3]))(*a[:3])):
        exported = export.deserialize(export.export(jax.jit(program), platforms=["cpu"])(*structs).serialize())
        assert_close(exported.call(*args), jax.jit(program)(*args))


def test_policies_keep_the_products(rng):
    """As those of jnp: with a batch of weights only where every product is kept."""
    policies, sizes = jaxgemm.checkpoint_policies, array(SIZES["all"])

    def computed(policy, x, w):
        two = lambda x, w: jaxgemm.ragged_gated(jnp.sin(jaxgemm.ragged_dot(x, w, sizes)), w, w, sizes)  # noqa: E731
        each = jax.vmap(two, (0, 0 if w.ndim == 4 else None)) if x.ndim == 3 else two
        found = equations(jax.grad(lambda *a: jnp.sum(jnp.sin(jax.checkpoint(each, policy=policy)(*a)))), x, w)
        return sum(eqn.primitive is grouped_p for eqn in found)

    x, w = arrays(rng, (M, K), (GROUPS, K, K))
    no_batch = policies.dots_with_no_batch_dims_saveable
    assert computed(policies.dots_saveable, x, w) == computed(no_batch, x, w) == computed(None, x, w) - 3
    xs, ws = jnp.stack([x, x]), jnp.stack([w, w])
    assert computed(no_batch, xs, w) == computed(None, xs, w) - 3
    assert computed(no_batch, xs, ws) == computed(None, xs, ws) == computed(policies.dots_saveable, xs, ws) + 3


# --- Which kernel ---------------------------------------------------------------------------------------------


def lowered(function, *shapes):
    """The program for CUDA, for operands in bfloat16 and eight sizes."""
    structs = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes]
    traced = jax.jit(function).trace(*structs, jax.ShapeDtypeStruct((8,), jnp.int32))
    return traced.lower(lowering_platforms=("cuda",)).as_text()


built = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no CUDA kernels")


@built
@layers
@pytest.mark.parametrize("given", [{}, {"kernel": "sm90"}, {"batch_invariant": True}], ids=str)
def test_one_launch_for_cuda(layer, given):
    text = lowered(partial(layer.ours, **given), *layer.shapes(512, 256, 384, 8))
    assert text.count("@jaxgemm") == text.count(f"@{layer.target}(") == 1
    assert 'activation = "silu"' in text
    mapped = jax.vmap(partial(layer.ours, **given), (0, None, None, None))
    _, *rest = layer.shapes(512, 256, 384, 8)
    text = lowered(mapped, (3, 512, 256), *rest)
    assert text.count("@jaxgemm") == text.count(f"@{layer.target}(") == 1


@built
@layers
def test_gradients_for_cuda(layer):
    """One product, its gradients and that of the bias; or both products and the gradients of each."""
    shapes = layer.shapes(512, 256, 256, 8)
    text = lowered(lambda *a: gradients(lambda *b: layer.ours(*b, a[3]))(*a[:3]), *shapes)
    assert text.count("@jaxgemm_grouped_gemm(") == (4 if layer is LAYERS["fused"] else 6)


@built
def test_a_kernel_by_name_computes_the_products_where_it_cannot_compute_the_rest():
    def wide(x, w, bias, sizes):
        return jaxgemm.ragged_dot(x, w, sizes, bias=bias.astype(jnp.float32), activation="relu", kernel="sm90")

    text = lowered(wide, *LAYERS["fused"].shapes(512, 256, 384, 8))
    assert text.count("@jaxgemm_grouped_gemm(") == 1
    assert 'activation = "none"' in text


@layers
def test_where_no_kernel_can(layer, rng):
    args = *operands(rng, layer), array(SIZES["all"])
    with pytest.raises(jaxgemm.UnsupportedError, match="kernel 'host' has no grouped form"):
        layer.ours(*args, kernel="host")
    with pytest.raises(jaxgemm.UnsupportedError, match="batch_invariant: no kernel for cpu has a grouped form"):
        layer.ours(*args, batch_invariant=True)
    with pytest.raises(jaxgemm.UnsupportedError, match="batch_invariant: no kernel for cpu has a grouped form"):
        jaxgemm.ragged_dot(args[0], args[1], args[3], batch_invariant=True)
    with pytest.raises(ValueError, match="batch_invariant: XLA's products do not promise it, got kernel='xla'"):
        layer.ours(*args, batch_invariant=True, kernel="xla")
    structs = [jax.ShapeDtypeStruct(v.shape, v.dtype if i == 3 else jnp.float64) for i, v in enumerate(args)]
    with pytest.raises(jaxgemm.UnsupportedError, match="batch_invariant: kernel 'sm90' got float64"):
        jax.jit(partial(layer.ours, batch_invariant=True)).trace(*structs).lower(lowering_platforms=("cuda",))
    with pytest.raises(jaxgemm.UnsupportedError, match="each product of the batch has an offset of its own"):
        jax.vmap(lambda o: layer.ours(*args, group_offset=o, batch_invariant=True))(jnp.zeros((2, 1), jnp.int32))


# --- Errors ---------------------------------------------------------------------------------------------------

X, W, S = np.ones((M, K), np.float32), np.ones((GROUPS, K, N), np.float32), np.ones(GROUPS, int)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lhs": X.astype(int)}, None, ""),
        ({name: v.astype(int) for name, v in (("lhs", X), ("w_gate", W), ("w_up", W))}, TypeError, "got int64, int64"),
        ({"w_up": W.astype(complex)}, TypeError, "ragged_gated: expected floating-point operands, got float32, float"),
        ({"lhs": X[None]}, ValueError, r"expected lhs \(m, k\), got shape \(1, 64, 12\)"),
        ({"w_up": W[:3]}, ValueError, r"w_gate and w_up must be \(groups, k, n\) alike, got \(8, 12, 20\) and \(3, 12"),
        ({"w_gate": W[0], "w_up": W[0]}, ValueError, r"w_gate and w_up must be \(groups, k, n\) alike, got \(12, 20\)"),
        ({"lhs": X[:, :5]}, ValueError, r"inner dimensions differ: lhs of shape \(64, 5\) has k = 5.* k = 12"),
        ({"group_sizes": np.ones(GROUPS)}, TypeError, "group_sizes: expected integers, got float"),
        ({"group_sizes": S[:4]}, ValueError, "ragged_gated: 4 group sizes for the weights of 8 groups"),
        ({"group_sizes": S[None]}, ValueError, r"ragged_gated: group_sizes must have shape \(groups,\), got \(1, 8\)"),
        ({"group_offset": np.ones(2, int)}, ValueError, r"group_offset: expected one integer, of shape \(1,\)"),
        ({"activation": "swish"}, ValueError, "ragged_gated: activation: got 'swish', expected None or one of relu"),
        ({"kernel": "fast"}, ValueError, "kernel: got 'fast', expected one of"),
        ({"preferred_element_type": int}, TypeError, "preferred_element_type must be a floating-point type, got int64"),
        ({"w_up": "up"}, TypeError, "ragged_gated: w_up: expected an array"),
        ({"precision": "fast"}, ValueError, "fast"),
    ],
)
def test_errors_of_ragged_gated(change, error, message):
    given = {"lhs": X, "w_gate": W, "w_up": W, "group_sizes": S} | change
    if error is None:  # integers are promoted where other operands are not
        assert jaxgemm.ragged_gated(**given).dtype == jnp.promote_types(jnp.int64, jnp.float32)
        return
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda: jaxgemm.ragged_gated(**given))


def test_operands_are_promoted(rng):
    x, gate, up = operands(rng, LAYERS["gated"])
    sizes = array(SIZES["all"])
    assert jaxgemm.ragged_gated(x.astype("bfloat16"), gate, up.astype("float16"), sizes).dtype == jnp.float32
    assert jaxgemm.ragged_gated(np.asarray(x), gate, up.astype("float64"), sizes).dtype == jnp.float64


def test_precision_is_that_of_the_call(rng):
    x, gate, up = operands(rng, LAYERS["gated"])
    for given in ({"precision": "highest"}, {}):
        with jax.default_matmul_precision("default" if given else "highest"):
            jaxpr = jax.make_jaxpr(partial(jaxgemm.ragged_gated, **given))(x, gate, up, array(SIZES["all"]))
        assert jaxpr.eqns[-1].params["precision"] == (lax.Precision.HIGHEST,) * 2
