"""override: what goes in and comes out, what stays as it is, and what is compiled."""

import functools
import gc
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from routing import check, close, count, doubled, total

import jaxgemm
from jaxgemm.override import _memo, override

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


def test_results_of_a_type_that_no_kernel_writes(x, w):
    """Sums in a type that some kernel has are converted after it."""

    def function(x, w):
        return lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    assert {types[2] for row in jaxgemm.kernels() for types in row.types if types[0] == "float64"} == {"float64"}
    for kernel in ("auto", "host"):
        ours = override(function, kernel=kernel)
        assert count(ours, x, w) == (1, 0)
        np.testing.assert_allclose(ours(x, w), function(x, w), rtol=1e-6)


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
    assert all("float64" in p.operands for p in found.products)
    assert all("complex128" in p.operands for p in found.left)
    assert (len(found.products), len(found.left)) == (2, 2)  # each product and its gradient


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
