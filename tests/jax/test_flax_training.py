"""The same model trains the same on scikit-learn's digits, with flax's layers and with ours; and a mixture trains."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from layers import products, same_bits

from jaxgemm.override import override

pytest.importorskip("flax")

from flax import linen as nn
from flax import nnx

import jaxgemm.flax.linen as our_linen
import jaxgemm.flax.nnx as our_nnx


@functools.cache
def digits():
    """(training, held-out) images and labels; 8 x 8 pixels, scaled to about [0, 1]."""
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = data.data[order].astype(np.float32) / 16, data.target[order].astype(np.int32)
    return (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def train(params, apply, penalty=None, epochs=12, rate=2e-3, batch=50):
    """(parameters, losses, accuracy on the held-out split); ``penalty(params, images)`` is added to the loss."""
    optax = pytest.importorskip("optax")
    (images, labels), (test_images, test_labels) = digits()
    optimizer = optax.adam(rate)

    def loss(params, x, y):
        error = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(apply(params, x), y))
        return error if penalty is None else error + penalty(params, x)

    @jax.jit
    def epoch(params, state, order):
        def step(carry, index):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params, images[index], labels[index])
            updates, state = optimizer.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), value

        (params, state), losses = jax.lax.scan(step, (params, state), order)
        return params, state, losses

    images, labels = array(images), array(labels)
    state, losses, rng = optimizer.init(params), [], np.random.default_rng(1)
    for _ in range(epochs):
        order = array(rng.permutation(len(labels)).reshape(-1, batch))
        params, state, values = epoch(params, state, order)
        losses.append(np.asarray(values))
    accuracy = np.mean(np.argmax(apply(params, test_images), -1) == test_labels)
    return params, np.concatenate(losses), accuracy


def linen_classifier(layers):
    def dense(features, activation=None):
        # flax's own layer has no activation argument.
        return (
            layers.Dense(features)
            if layers is nn or activation is None
            else layers.Dense(features, activation=activation)
        )

    class Classifier(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(2):
                x = dense(128, "relu")(x)
                x = nn.relu(x) if layers is nn else x
            return dense(10)(x)

    return Classifier()


def nnx_classifier(layers, rngs, **given):
    first, second = layers.Linear(64, 128, rngs=rngs, **given), layers.Linear(128, 128, rngs=rngs, **given)
    relu = nnx.relu if layers is nnx else lambda x: x
    return nnx.Sequential(first, relu, second, relu, layers.Linear(128, 10, rngs=rngs))


def compare_training(theirs, ours):
    (_, losses_a, accuracy_a), (_, losses_b, accuracy_b) = train(*theirs), train(*ours)
    # Rounding differs in the last bit, and training amplifies it slowly.
    np.testing.assert_allclose(losses_b[:50], losses_a[:50], rtol=1e-4)
    np.testing.assert_allclose(losses_b, losses_a, rtol=0.05, atol=2e-3)
    assert losses_b[-28:].mean() < 0.1 * losses_b[:28].mean()
    assert accuracy_a >= 0.97
    assert accuracy_b >= 0.97


def test_training_with_linen():
    theirs, ours = linen_classifier(nn), linen_classifier(our_linen)
    (images, _), _ = digits()
    params = theirs.init(jax.random.key(0), images[:1])
    same_bits(ours.init(jax.random.key(0), images[:1]), params)
    assert [e.activation for e in products(ours.apply, params, images[:1])[0]] == ["relu", "relu", None]
    compare_training((params, theirs.apply), (params, ours.apply))


def test_training_with_nnx():
    theirs = nnx.split(nnx_classifier(nnx, nnx.Rngs(0)))
    ours = nnx.split(nnx_classifier(our_nnx, nnx.Rngs(0), activation="relu", kernel="host"))
    same_bits(nnx.to_pure_dict(ours[1]), nnx.to_pure_dict(theirs[1]))
    compare_training(*((m[1], lambda state, x, graph=m[0]: nnx.merge(graph, state)(x)) for m in (theirs, ours)))


def test_training_an_unmodified_model_through_override():
    model = linen_classifier(nn)
    (images, _), _ = digits()
    params = model.init(jax.random.key(0), images[:1])
    compare_training((params, model.apply), (params, override(model.apply, kernel="host")))


def test_training_a_mixture_of_experts():
    """Nothing but the mixture is trained, and its experts are so narrow that a digit needs several, and the right ones.

    Trained as it is, a linear classifier gets 96.0 % right. The layer gets 98.0, or 95.7 if its router has no gradient,
    93.7 if experts compute what was sent to others, 93.2 if the first of the chosen ones counts alone, and 90.9 if all
    of them count alike.
    """
    layer = our_linen.MoE(64, 2, num_experts=16, top_k=4)
    (images, _), (test_images, _) = digits()

    def apply(params, x):
        return layer.apply(params, x)[:, :10]

    def balance(params, x):
        return layer.apply(params, x, mutable="losses")[1]["losses"]["load_balancing"][0]

    params = layer.init(jax.random.key(0), images[:1])
    params, losses, accuracy = train(params, apply, lambda *v: 0.01 * balance(*v), epochs=20, rate=5e-3)
    assert losses[-28:].mean() < 0.1 * losses[:28].mean()
    assert accuracy >= 0.97
    assert balance(params, test_images) < 1.35
