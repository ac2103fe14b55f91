"""override: every product is routed, wherever it is, and nothing else about the function changes."""

import functools
import gc
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxprs_in_params
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm.override import _memo, override
from jaxgemm.primitive import gemm_p


def count(function, *args):
    """(products of jaxgemm, products of lax) in the function's jaxpr."""
    ours = theirs = 0
    stack = [jax.make_jaxpr(function)(*args).jaxpr]
    while stack:
        for eqn in stack.pop().eqns:
            ours += eqn.primitive is gemm_p
            theirs += eqn.primitive is lax.dot_general_p
            stack.extend(jaxprs_in_params(eqn.params))
    return ours, theirs


def check(function, *args, products, left=0):
    """Values and first derivatives are those of ``function``, and so many products are routed.

    ``products`` in the jaxpr, of which ``left`` stay as they are.
    """
    assert count(function, *args) == (0, products)
    for kernel in ("auto", "host"):
        ours = override(function, kernel=kernel)
        assert count(ours, *args) == (products - left, left)
        close(ours(*args), function(*args))
        close(jax.jit(jax.value_and_grad(total(ours)))(*args), jax.value_and_grad(total(function))(*args))


def total(function):
    """The function's results as one number that weighs each element differently."""

    def summed(*args):
        leaves = [x for x in jax.tree.leaves(function(*args)) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return sum(jnp.sum(x * jnp.cos(jnp.arange(x.size).reshape(x.shape))) for x in leaves)

    return summed


def close(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), got, expected)
    assert jax.tree.map(jax.typeof, got) == jax.tree.map(jax.typeof, expected)


@pytest.fixture
def x(rng):
    return jnp.asarray(rng.standard_normal((5, 8)))


@pytest.fixture
def w(rng):
    return jnp.asarray(rng.standard_normal((8, 8)) / 4)


# --- Where products are ---------------------------------------------------------------------------------------


@jax.custom_jvp
def doubled(x, w):
    return jnp.sin(x @ w)


@doubled.defjvp
def _doubled_jvp(primals, tangents):
    # Twice the true derivative, so that a lost rule shows.
    (x, w), (dx, dw) = primals, tangents
    return doubled(x, w), 2 * jnp.cos(x @ w) * (dx @ w + x @ dw)


@jax.custom_vjp
def tripled(x, w):
    return jnp.sin(x @ w)


def _tripled_fwd(x, w):
    return tripled(x, w), (x, w, x @ w)


def _tripled_bwd(residuals, ct):
    x, w, z = residuals
    dz = 3 * jnp.cos(z) * ct
    return dz @ w.T, x.T @ dz


tripled.defvjp(_tripled_fwd, _tripled_bwd)


@jax.custom_batching.custom_vmap
def batched(x, w):
    return x @ w


@batched.def_vmap
def _batched_rule(_size, _in_batched, x, w):
    return 7.0 * (x @ w), True


PLACES = {
    "plain": (lambda x, w: jnp.tanh(x @ w) @ w, 2),
    "jit": (lambda x, w: jax.jit(lambda y: jax.jit(jnp.matmul)(y, w) @ w)(x), 2),
    "scan": (lambda x, w: lax.scan(lambda c, _: (jnp.tanh(c @ w), jnp.sum(c)), x, None, length=3), 1),
    "nested scan": (
        lambda x, w: lax.scan(lambda c, _: lax.scan(lambda d, _: (d @ w, None), c, None, length=2), x, None, length=3),
        1,
    ),
    "associative scan": (lambda x, w: lax.associative_scan(jnp.matmul, jnp.stack([w, w, w]))[-1] + x[0], 2),
    "cond": (lambda x, w: lax.cond(x[0, 0] > 0, lambda: x @ w, lambda: x @ w.T), 2),
    "switch": (lambda x, w: lax.switch(1, [lambda: x, lambda: x @ w, lambda: (x @ w) @ w]), 3),
    "fori_loop": (lambda x, w: lax.fori_loop(0, 3, lambda _, c: jnp.tanh(c @ w), x), 1),
    "checkpoint": (jax.checkpoint(lambda x, w: jnp.sin(jnp.sin(x @ w) @ w)), 2),
    "custom_jvp": (lambda x, w: doubled(x, w) @ w, 2),
    "custom_vjp": (lambda x, w: tripled(x, w) @ w, 2),
    "custom_vjp in scan in jit": (
        jax.jit(lambda x, w: lax.scan(lambda c, _: (tripled(c, w) @ w, None), x, None, length=2)[0]),
        2,
    ),
    "vmap": (lambda x, w: jax.vmap(lambda row: row @ w)(x), 1),
    "grad": (lambda x, w: jax.grad(lambda y: jnp.sum(jnp.sin(y @ w)))(x), 2),
    "einsum": (lambda x, w: jnp.einsum("ab,bc,dc->ad", x, w, w), 2),
    "several dims": (lambda x, w: jnp.einsum("abc,bcd->ad", x.reshape(5, 2, 4), w.reshape(2, 4, 8)), 1),
    "batch": (lambda x, w: jnp.einsum("abc,acd->abd", x.reshape(5, 2, 4), w[:5].reshape(5, 4, 2)), 1),
    "vectors": (lambda x, w: (x[0] @ w) @ w[0], 2),
    "outer": (lambda x, w: lax.dot_general(x, w, (((), ()), ((), ()))), 1),
    "closed over": (lambda x, w: x @ jnp.asarray(np.full((8, 8), 0.5)) @ w, 2),
    "rng": (lambda x, w: (x + jax.random.normal(jax.random.key(3), x.shape)) @ w, 1),
    "shard_map": (
        lambda x, w: jax.shard_map(
            lambda y, w: lax.psum(y @ w, "i"),
            mesh=jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)),
            in_specs=(P("i"), P()),
            out_specs=P(),
        )(x, w),
        1,
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_every_product_is_routed(place, x, w):
    function, products = PLACES[place]
    check(function, x, w, products=products)


def test_while_loop(x, w):
    def function(x, w):
        return lax.while_loop(lambda c: jnp.sum(c[0] @ w) < c[1], lambda c: (c[0] @ w, c[1] / 2 - 1), (x, 1e3))

    # A while loop has no reverse derivative.
    for kernel in ("auto", "host"):
        ours = override(function, kernel=kernel)
        assert count(ours, x, w) == (2, 0)
        close(jax.jit(ours)(x, w), function(x, w))
        close(jax.jvp(ours, (x, w), (x, w)), jax.jvp(function, (x, w), (x, w)))


def test_pallas_kernels_stay(x, w):
    pallas = pytest.importorskip("jax.experimental.pallas")

    def kernel(a, b, out):
        out[...] = jnp.dot(a[...], b[...])

    def function(x, w):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pallas.pallas_call(kernel, shape, interpret=True)(x, w) @ w

    ours = override(function)
    assert count(ours, x, w) == (1, 1)
    close(ours(x, w), function(x, w))
    (left,) = jaxgemm.explain(ours, x, w).left
    assert "pallas_call" in left.why


# --- Derivatives and other transformations --------------------------------------------------------------------


@pytest.mark.parametrize("rule", [doubled, tripled])
@pytest.mark.parametrize("kernel", ["auto", "host"])
def test_products_of_custom_rules_are_routed(rule, kernel, x, w):
    def gradient(function):
        return jax.grad(total(function), (0, 1))

    ours = override(rule, kernel=kernel)
    close(gradient(ours)(x, w), gradient(rule)(x, w))
    _, theirs = count(gradient(rule), x, w)
    assert count(gradient(ours), x, w) == (theirs, 0)


def test_custom_rules_survive_every_nesting(x, w):
    for wrap in (jax.jit, jax.checkpoint, lambda f: jax.jit(jax.checkpoint(jax.jit(f)))):
        for rule in (doubled, tripled):
            expected = jax.grad(total(rule))(x, w)
            close(jax.grad(total(override(wrap(rule))))(x, w), expected)
            close(jax.grad(total(wrap(override(rule))))(x, w), expected)
            close(jax.jit(override(jax.grad(total(wrap(rule)))))(x, w), expected)


def test_custom_vjp_with_pytrees_nondiff_arguments_and_unused_results(x, w):
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def layer(scale, params, x):
        return {"y": scale * (x @ params["w"]), "n": jnp.arange(3)}

    def fwd(scale, params, x):
        return layer(scale, params, x), (params, x)

    def bwd(scale, residuals, ct):
        _, x = residuals
        return {"w": 10 * scale * (x.T @ ct["y"]), "unused": None}, None

    layer.defvjp(fwd, bwd)
    params = {"w": w, "unused": jnp.ones(2)}

    def loss(params, x):
        return jnp.sum(jnp.sin(layer(2.0, params, x)["y"]))

    close(jax.grad(override(loss, kernel="host"))(params, x), jax.grad(loss)(params, x))


def test_custom_jvp_with_symbolic_zeros(x, w):
    @jax.custom_jvp
    def product(x, w):
        return x @ w

    @functools.partial(product.defjvp, symbolic_zeros=True)
    def _(primals, tangents):
        (x, w), (dx, dw) = primals, tangents
        zero = type(dw) is jax.custom_derivatives.SymbolicZero
        return product(x, w), (5.0 if zero else 1.0) * (dx @ w)

    close(jax.grad(total(override(product)))(x, w), jax.grad(total(product))(x, w))
    close(jax.jvp(override(product), (x, w), (x, w)), jax.jvp(product, (x, w), (x, w)))


@pytest.mark.parametrize("kernel", ["auto", "host"])
def test_transformations_from_outside(kernel, x, w):
    def function(x, w):
        return jnp.tanh(jax.jit(lambda y: y @ w)(jnp.sin(x @ w)))

    ours = override(function, kernel=kernel)
    xs, ws = jnp.stack([x, 2 * x]), jnp.stack([w, w.T])
    for axes in ((0, None), (None, 0), (0, 0)):
        args = (xs if axes[0] == 0 else x, ws if axes[1] == 0 else w)
        close(jax.vmap(ours, axes)(*args), jax.vmap(function, axes)(*args))
        close(jax.vmap(jax.grad(total(ours)), axes)(*args), jax.vmap(jax.grad(total(function)), axes)(*args))
    close(jax.jvp(ours, (x, w), (x, w)), jax.jvp(function, (x, w), (x, w)))
    close(jax.jacfwd(ours)(x, w), jax.jacfwd(function)(x, w))
    close(jax.hessian(total(ours))(x, w), jax.hessian(total(function))(x, w))
    close(jax.linearize(ours, x, w)[1](x, w), jax.linearize(function, x, w)[1](x, w))
    close(jax.checkpoint(ours)(x, w), function(x, w))
    assert jax.eval_shape(ours, x, w) == jax.eval_shape(function, x, w)


def test_custom_vmap_keeps_its_rule(x, w):
    assert count(override(batched), x, w) == (1, 0)
    close(jax.vmap(override(batched), (0, None))(x[None], w), 7.0 * (x @ w)[None])


def test_axis_names(x, w):
    def function(row):
        return lax.psum(row @ w, "i") + lax.axis_index("i")

    close(jax.vmap(override(function), axis_name="i")(x), jax.vmap(function, axis_name="i")(x))


def test_inside_of_a_differentiated_function(x, w):
    # The overridden function closes over the tracer of another transformation.
    def loss(w, wrap):
        return jnp.sum(jnp.sin(wrap(lambda y: y @ w)(x)))

    close(jax.grad(loss)(w, override), jax.grad(loss)(w, lambda f: f))
    close(jax.jit(jax.grad(loss), static_argnums=1)(w, override), jax.grad(loss)(w, lambda f: f))
    close(jax.vmap(lambda w: loss(w, override))(w[None]), loss(w, lambda f: f)[None])


@pytest.mark.parametrize("name", ["dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable"])
def test_checkpoint_policies_see_products(name, x, w):
    policy = getattr(jax.checkpoint_policies, name)

    def function(x, w):
        return jax.checkpoint(lambda y: jnp.sin(jnp.sin(y @ w) @ w), policy=policy)(x)

    _, theirs = count(jax.grad(total(function)), x, w)
    assert count(jax.grad(total(override(function))), x, w) == (theirs, 0)
    assert theirs == (6 if name == "nothing_saveable" else 4)


def test_effects(x, w):
    seen = []

    def function(x, w):
        def step(c, i):
            jax.debug.callback(lambda i: seen.append(int(i)), i, ordered=True)
            return c @ w, None

        return lax.scan(step, x, jnp.arange(3))[0]

    close(override(function)(x, w), function(x, w))
    jax.effects_barrier()
    assert seen == [0, 1, 2, 0, 1, 2]


# --- Arguments and results ------------------------------------------------------------------------------------


def test_arguments_and_results_of_every_kind(x, w):
    def function(params, x, *rest, train=False, name="", **more):
        assert isinstance(train, bool)  # a tracer could not be branched on
        assert isinstance(rest[0], float)
        assert isinstance(params["shape"], np.ndarray)
        y = x @ params["w"] if train else x
        return {"y": y.reshape(params["shape"]), "none": None, "name": name, "int": 3, "more": more, "pair": (x, rest)}

    params = {"w": w, "b": None, "shape": np.array([8, 5])}
    args = (params, x, 1.5, "text")
    got, expected = (f(*args, train=True, name="n", z=w) for f in (override(function), function))
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert type(a) is type(b)
        np.testing.assert_array_equal(a, b)
    assert override(lambda: None)() is None
    assert override(lambda: (1, "a"))() == (1, "a")


def test_weak_types_and_element_types(x, w):
    def function(x, w, s):
        return (x * s) @ w, s * 2, jnp.float32(1.0) * s, x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)

    for s in (2.0, jnp.asarray(2.0), jnp.asarray(2)):
        for ours, theirs in zip(override(function)(x, w, s), function(x, w, s), strict=True):
            assert jax.typeof(ours) == jax.typeof(theirs)
            assert jax.typeof(ours).weak_type == jax.typeof(theirs).weak_type


def test_as_a_decorator(x, w):
    @override
    def plain(x, w):
        """Says what it does."""
        return x @ w

    @override(kernel="host")
    def named(x, w):
        return x @ w

    class Model:
        def __init__(self, w):
            self.w = w

        @override(kernel="host")
        def __call__(self, x):
            return x @ self.w

        def apply(self, x):
            return x @ self.w

    expected = x @ w
    close((plain(x, w), named(x, w), Model(w)(x), override(Model(w).apply)(x)), (expected,) * 4)
    assert plain.__name__ == "plain"
    assert plain.__doc__ == "Says what it does."
    assert str(inspect.signature(plain)) == "(x, w)"
    assert jaxgemm.explain(named, x, w).products[0].kernel == "host"
    assert count(Model(w), x) == (1, 0)
    partial = functools.partial(lambda w, x: x @ w, w)
    assert count(override(partial), x) == (1, 0)
    close(override(override(partial, kernel="host"))(x), expected)


def test_jit_arguments_pass_through(x, w):
    @functools.partial(jax.jit, static_argnames="n", donate_argnums=0)
    @override
    def function(x, w, n):
        assert isinstance(n, int)
        return lax.fori_loop(0, n, lambda _, c: c @ w, x)

    close(function(x.copy(), w, n=2), x @ w @ w)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="expected a function, got int"):
        override(3)
    with pytest.raises(ValueError, match=r"kernel: got 'fastest', expected one of auto, .*host"):
        override(lambda x: x, kernel="fastest")
    with pytest.raises(ValueError, match="precision: got 'exact'"):
        override(lambda x: x, precision="exact")


def test_precision_is_for_products_that_ask_for_none(x, w):
    def function(x, w):
        return jnp.dot(x, w), jnp.dot(x, w, precision="high")

    products = jaxgemm.explain(override(function, precision="highest"), x, w).products
    assert [p.precision[0] for p in products] == [lax.Precision.HIGHEST, lax.Precision.HIGH]
    with jax.default_matmul_precision("highest"):
        (product,) = jaxgemm.explain(override(jnp.dot, precision="high"), x, w).products
    assert product.precision[0] is lax.Precision.HIGHEST  # the default was what the product asked for
    assert jaxgemm.explain(override(function), x, w).products[0].precision is None


# --- What stays -----------------------------------------------------------------------------------------------


def test_products_without_a_kernel_stay(x, w):
    def function(x, w):
        z = x.astype(complex) @ w.astype(complex)
        i = jnp.ones((4, 4), jnp.int32) @ jnp.ones((4, 4), jnp.int32)
        mixed = lax.dot_general(x.astype(jnp.float32), w, (((1,), (0,)), ((), ())))
        return x @ w, z, i, mixed

    check(lambda x, w: function(x, w)[0], x, w, products=4, left=3)
    found = jaxgemm.explain(override(function), x, w)
    assert [p.operands for p in found.products] == ["float64[5,8] x float64[8,8]"]
    assert [(p.operands, p.why) for p in found.left] == [
        ("complex128[5,8] x complex128[8,8] -> complex128", "no kernel multiplies complex128 by complex128"),
        ("int32[4,4] x int32[4,4] -> int32", "no kernel multiplies int32 by int32"),
        ("float32[5,8] x float64[8,8] -> float64", "no kernel multiplies float32 by float64"),
    ]


def test_products_that_the_named_kernel_cannot_compute_stay(x, w):
    algorithm = lax.DotAlgorithmPreset.BF16_BF16_F32

    def function(x, w):
        odd = lax.dot_general(x, w, (((1,), (0,)), ((), ())), precision=algorithm)
        return lax.scan(lambda c, _: (c @ w, odd.sum()), x, None, length=4)

    # Not run: XLA on CPU does not know this algorithm either.
    found = jaxgemm.explain(override(function, kernel="host"), x, w)
    assert [(p.kernel, p.trips) for p in found.products] == [("host", 4)]
    (left,) = found.left
    assert "BF16_BF16_F32" in left.why
    assert "1 product on cpu, 1 more left to XLA" in str(found)
    assert left.why in str(found)


def test_ragged_dot_stays(x, w):
    def function(x, w):
        return lax.ragged_dot(x, jnp.stack([w, w]), jnp.array([2, 3]))

    close(override(function)(x, w), function(x, w))
    (left,) = jaxgemm.explain(override(function), x, w).left
    assert left.why == "ragged_dot_general is not routed"


def test_symbolic_shapes_stay(x, w):
    exported = jax.export.export(jax.jit(override(jnp.matmul)))(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 8"), x.dtype), w
    )
    close(exported.call(x, w), x @ w)


def test_explain_lists_what_nothing_routes(x, w):
    found = jaxgemm.explain(lambda x, w: jaxgemm.matmul(x, w) @ w, x, w)
    assert len(found.products) == 1
    assert [p.why for p in found.left] == ["nothing routes it to jaxgemm; jaxgemm.override would"]
    found = jaxgemm.explain(lambda x, w: lax.scan(lambda c, _: (c @ w, None), x, None, length=6)[0], x, w)
    assert [(p.operands, p.trips) for p in found.left] == [("float64[5,8] x float64[8,8] -> float64", 6)]


def test_explain_sees_through_transformations(x, w):
    wrapped = jax.jit(jax.grad(total(override(lambda x, w: jnp.abs((x @ w).astype(complex) @ w.astype(complex))))))
    found = jaxgemm.explain(wrapped, x, w)
    assert found.products
    assert all("complex" in p.operands for p in found.left)


# --- Compiling ------------------------------------------------------------------------------------------------


def test_an_inner_jit_is_compiled_once(x, w):
    inner = jax.jit(lambda x, w: jnp.sin(x @ w))

    def body():
        return jax.make_jaxpr(override(lambda x, w: inner(x, w) + 1))(x, w).eqns[0].params["jaxpr"]

    # What XLA compiles is looked up by this object.
    assert body() is body()


def test_memory_is_given_back(x, w):
    override(lambda x, w: lax.scan(lambda c, _: (c @ w, None), x, None, length=2))(x, w)
    gc.collect()
    before = len(_memo)
    for _ in range(20):
        override(lambda x, w: doubled(x, w) @ w + jax.checkpoint(jnp.matmul)(x, w))(x, w)
    gc.collect()
    assert len(_memo) <= before + 8  # JAX's own caches hold a few
