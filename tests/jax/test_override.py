"""override: every product is routed, wherever it is, under every transformation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from routing import check, close, count, doubled, total, tripled

import jaxgemm
from jaxgemm.override import override

# --- Where products are ---------------------------------------------------------------------------------------


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
    "linear solve": (
        # The system's product and its transposition, both in a loop again.
        lambda x, w: lax.custom_linear_solve(
            lambda v: 4 * v + v @ w,
            x,
            lambda f, b: lax.fori_loop(0, 5, lambda _, v: v + (b - f(v)) / 4, b),
            lambda f, b: lax.fori_loop(0, 5, lambda _, v: v + (b - f(v)) / 4, b),
        ),
        4,
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
