"""Programs that solve and fit, as one writes them with JAX alone: they know neither jaxgemm nor precisions.

Their work is in matrix products, and their results are as exact as those. Operands are drawn in float64, and programs
compute in whatever type they get them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.scipy.sparse.linalg import cg

Array = npt.NDArray[np.float64]
Tree = Any


class Fit(NamedTuple):
    """One program.

    Attributes:
        what: in words.
        residual: what is left of the problem, as a formula or in words.
        draw: its operands, by a generator and a size.
        solve: the program, a function of the operands.
        judge: of its result and operands: what is compared with float64's, and the residual.
    """

    what: str
    residual: str
    draw: Callable[[np.random.Generator, int], tuple[Array, ...]]
    solve: Callable[..., Tree]
    judge: Callable[..., tuple[jax.Array, jax.Array]]


# --- Gaussian process: a linear system by conjugate gradients ---

_NOISE = 1.0  # variance of the noise over that of the process
_CG_STEPS = 60


def _draw_process(rng: np.random.Generator, size: int) -> tuple[Array, ...]:
    """Points in eight dimensions, and half as many functions at each."""
    points = rng.standard_normal((size, 8))
    waves = rng.standard_normal((8, size // 2)) / 2
    return points, np.sin(points @ waves) + 0.1 * rng.standard_normal((size, size // 2))


def _covariance(points: jax.Array) -> jax.Array:
    squares = jnp.sum(points * points, 1)
    distances = squares[:, None] + squares - 2 * points @ points.T
    return jnp.exp(-distances / 16) + _NOISE * jnp.eye(len(points), dtype=points.dtype)


def _process(points: jax.Array, values: jax.Array) -> jax.Array:
    """The weights of each point's kernel for all functions."""
    covariance = _covariance(points)

    def solve(y: jax.Array) -> jax.Array:
        x: jax.Array = cg(lambda x: covariance @ x, y, tol=0.0, maxiter=_CG_STEPS)[0]
        return x

    return jax.vmap(solve, 1, 1)(values)


def _judge_process(weights: jax.Array, points: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    return weights, jnp.linalg.norm(_covariance(points) @ weights - values) / jnp.linalg.norm(values)


# --- Rotation: a polar decomposition by Newton and Schulz's iteration ---

_POLAR_STEPS = 28


def _draw_rotation(rng: np.random.Generator, size: int) -> tuple[Array, ...]:
    """Twice as many vectors as they have components, and the same ones reflected four times, with noise."""
    source = rng.standard_normal((2 * size, size))
    target = source + 0.1 * rng.standard_normal(source.shape)
    for mirror in rng.standard_normal((4, size)):
        target -= np.outer(target @ mirror, mirror * (2 / (mirror @ mirror)))
    return source, target


def _rotation(source: jax.Array, target: jax.Array) -> jax.Array:
    """The orthogonal matrix that brings the vectors nearest to their images."""
    product = source.T @ target

    def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
        return 1.5 * x - 0.5 * (x @ (x.T @ x)), None

    found: jax.Array
    found, _ = jax.lax.scan(step, product / jnp.linalg.norm(product), length=_POLAR_STEPS)
    return found


def _judge_rotation(found: jax.Array, *_: jax.Array) -> tuple[jax.Array, jax.Array]:
    return found, jnp.linalg.norm(found.T @ found - jnp.eye(len(found))) / len(found) ** 0.5


# --- Network: least squares by gradient descent ---

_TRAINING_STEPS, _RATE, _MOMENTUM = 80, 1.0, 0.9


def _draw_network(rng: np.random.Generator, size: int) -> tuple[Array, ...]:
    """Points in four dimensions with a one behind, a smooth function there, and weights to begin with."""
    x, width = np.append(rng.uniform(-1, 1, (size, 4)), np.ones((size, 1)), 1), size // 2
    values = np.sin(3 * x[:, 0]) * x[:, 1] + np.cos(2 * x[:, 2] * x[:, 3])
    return x, values[:, None], *(rng.standard_normal(shape) for shape in ((5, width), (width, width), (width, 1)))


def _model(weights: Tree, x: jax.Array) -> jax.Array:
    """Two hidden layers, with weights of variance 1."""
    first, second, last = (w / len(w) ** 0.5 for w in weights)
    result: jax.Array = jnp.tanh(2 * jnp.tanh(4 * x @ first) @ second) @ last
    return result


def _network(x: jax.Array, values: jax.Array, *weights: jax.Array) -> Tree:
    """The weights after steps of gradient descent with momentum, each on all points."""

    def loss(weights: Tree) -> jax.Array:
        return 0.5 * jnp.mean((_model(weights, x) - values) ** 2)

    def step(state: tuple[Tree, Tree], _: None) -> tuple[tuple[Tree, Tree], None]:
        weights, moves = state
        moves = jax.tree.map(lambda v, g: _MOMENTUM * v - _RATE * g, moves, jax.grad(loss)(weights))
        return (jax.tree.map(jnp.add, weights, moves), moves), None

    (found, _), _ = jax.lax.scan(step, (weights, jax.tree.map(jnp.zeros_like, weights)), length=_TRAINING_STEPS)
    return found


def _judge_network(found: Tree, x: jax.Array, values: jax.Array, *_: jax.Array) -> tuple[jax.Array, jax.Array]:
    fitted = _model(found, x)
    return fitted, jnp.linalg.norm(fitted - values) / jnp.linalg.norm(values)


FITS = {
    "process": Fit(
        "the weights x of a Gaussian process with covariance K, by conjugate gradients",
        "‖Kx − y‖ / ‖y‖",
        _draw_process,
        _process,
        _judge_process,
    ),
    "rotation": Fit(
        "the rotation R between n-dimensional vectors and their images, by Newton and Schulz's iteration",
        "‖RᵀR − 1‖ / √n",
        _draw_rotation,
        _rotation,
        _judge_rotation,
    ),
    "network": Fit(
        "the values f of a network with two hidden layers, by gradient descent",
        "‖f − y‖ / ‖y‖",
        _draw_network,
        _network,
        _judge_network,
    ),
}
