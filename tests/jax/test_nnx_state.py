"""nnx models that change as they are called change as much when ``override`` is around the function."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array

import jaxgemm

pytest.importorskip("flax")

import optax
from flax import errors, nnx

kernels = pytest.mark.parametrize("kernel", ["auto", "host"])


class Net(nnx.Module):
    def __init__(self, seed=0):
        rngs = nnx.Rngs(seed)
        self.dense = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.norm(self.dense(x)))


class Cached(nnx.Module):
    """What it last computed is a variable of it that is made by the first call."""

    def __init__(self):
        self.dense = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        self.calls = 0

    def __call__(self, x):
        self.last = nnx.Cache(self.dense(x))
        self.calls += 1
        return self.last[...]


def apply(model, x):
    return model(x)


def leaves(model):
    """What a model's variables hold; keys of random numbers as the integers that they are."""
    found = jax.tree.leaves(nnx.state(model))
    return [jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in found]


def same(ours, theirs):
    for x, y in zip(leaves(ours), leaves(theirs), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


@pytest.fixture
def x(rng):
    return array(rng.standard_normal((4, 8)), np.float32)


@kernels
def test_statistics_and_counters_move(kernel, x):
    ours, theirs = Net(), Net()
    assert jnp.all(ours.norm.mean[...] == 0)
    for _ in range(2):
        got, expected = jaxgemm.override(apply, kernel=kernel)(ours, x), apply(theirs, x)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        same(ours, theirs)
    assert jnp.any(ours.norm.mean[...] != 0)
    assert ours.dropout.rngs.count[...] == 2


PLACES = {
    "keyword": (lambda f, m, x: f(x, model=m), lambda x, *, model: model(x)),
    "in a tree": (lambda f, m, x: f({"models": [m, 3], "x": x}), lambda tree: tree["models"][0](tree["x"])),
    "twice": (lambda f, m, x: f([m], (m, "text"), x), lambda a, b, x: a[0](x) + b[0](x)),
    "a part of another": (lambda f, m, x: f(m, m.norm, x), lambda m, norm, x: m(x) + norm(x)),
    "a variable": (
        lambda f, m, x: f(m.norm.mean, x),
        lambda mean, x: mean.set_value(mean[...] + jnp.sum(x @ jnp.ones((8, 8)))),
    ),
    "a method": (lambda f, m, x: f(m, x), Net.__call__),
    "jit inside": (lambda f, m, x: f(m, x), nnx.jit(apply)),
    "state": (
        lambda f, m, x: nnx.update(m, f(nnx.split(m), x)[1]),
        lambda parts, x: [(m := nnx.merge(*parts))(x), nnx.state(m)],
    ),
}


@kernels
@pytest.mark.parametrize("place", PLACES)
def test_places(place, kernel, x):
    call, function = PLACES[place]
    ours, theirs, untouched = Net(), Net(), Net()
    call(jaxgemm.override(function, kernel=kernel), ours, x)
    call(function, theirs, x)
    same(ours, theirs)
    with pytest.raises(AssertionError):
        same(ours, untouched)


@kernels
@pytest.mark.parametrize("outer", ["nnx.jit", "override alone"])
def test_training(outer, kernel, x):
    def step(model, optimizer, x):
        loss, gradient = nnx.value_and_grad(lambda model: jnp.mean(model(x) ** 2))(model)
        optimizer.update(model, gradient)
        return loss

    def run(step):
        model = Net()
        optimizer = nnx.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)
        losses = [float(step(model, optimizer, x)) for _ in range(3)]
        assert optimizer.step[...] == 3
        return model, losses

    routed = jaxgemm.override(step, kernel=kernel)
    (ours, losses), (theirs, expected) = run(nnx.jit(routed) if outer == "nnx.jit" else routed), run(step)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for a, b in zip(leaves(ours), leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


@kernels
def test_inside_of_a_gradient(kernel, x):
    ours, theirs = Net(), Net()
    loss = lambda f: lambda model: jnp.mean(f(model, x) ** 2)  # noqa: E731
    gradients = [nnx.grad(loss(f))(m) for f, m in ((jaxgemm.override(apply, kernel=kernel), ours), (apply, theirs))]
    for a, b in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    same(ours, theirs)


@kernels
def test_new_variables_and_attributes(kernel, x):
    ours, theirs = Cached(), Cached()
    for _ in range(2):
        np.testing.assert_allclose(
            jaxgemm.override(apply, kernel=kernel)(ours, x), apply(theirs, x), rtol=1e-5, atol=1e-5
        )
    assert ours.calls == theirs.calls == 2
    assert isinstance(ours.last, nnx.Cache)
    same(ours, theirs)


@kernels
def test_models_that_are_returned(kernel, x):
    """What was passed comes back as itself, and what is made inside of the function as a model like any other."""

    def function(model, x):
        return model, {"new": nnx.clone(model)}, model(x), "text"

    model = Net()
    same_model, made, y, text = jaxgemm.override(function, kernel=kernel)(model, x)
    assert same_model is model
    assert made["new"] is not model
    assert (y.shape, text) == ((4, 8), "text")
    assert jnp.all(made["new"].norm.mean[...] == 0)
    assert jnp.any(model.norm.mean[...] != 0)
    made["new"](x)
    same(made["new"], model)


@pytest.mark.parametrize("make", [jax.new_ref, lambda x: nnx.Variable(x, ref=True)], ids=["jax", "nnx"])
def test_references_are_changed_where_they_are(make, x):
    ref = make(x)

    def function(ref):
        ref[...] = ref[...] @ jnp.eye(8, dtype=jnp.float32) + 1

    jaxgemm.override(function)(ref)
    np.testing.assert_allclose(ref[...], x + 1, rtol=1e-6)


def test_what_is_closed_over_may_be_read_and_not_changed(x):
    model = Net()
    for function in (model, lambda x: model(x), model.__call__):
        with pytest.raises(errors.TraceContextError, match="Cannot mutate"):
            jaxgemm.override(function)(x)
    same(model, Net())
    model.eval()
    expected = model(x)
    for function in (model, lambda x: model(x), model.__call__):
        np.testing.assert_allclose(jaxgemm.override(function)(x), expected, rtol=1e-5, atol=1e-5)


def test_a_model_of_outside_of_a_transformation_around_it(x):
    """It may be read there, and an attempt to change it leaves it as it was."""
    model, routed = Net(), jaxgemm.override(apply)
    with pytest.raises(errors.TraceContextError, match="Cannot mutate"):
        jax.jit(lambda x: routed(model, x))(x)
    same(model, Net())
    model.eval()
    np.testing.assert_allclose(jax.jit(lambda x: routed(model, x))(x), model(x), rtol=1e-5, atol=1e-5)


def test_an_explanation_changes_nothing(x):
    model = Net()
    found = jaxgemm.explain(jaxgemm.override(apply, kernel="host"), model, x)
    assert [product.kernel for product in found.products] == ["host"]
    same(model, Net())
