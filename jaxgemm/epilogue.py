"""The epilogue of a product: ``activation(alpha * product + beta * c + bias)``, as data and as jnp code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm import dtypes

T = TypeVar("T")


@dataclass(frozen=True)
class Activation:
    """A function that may follow a product; its derivatives are those that JAX has for it.

    Attributes:
        function: it, in jnp.
        plain: the same without a derivative of its own, where it has one: ``jet`` sees through no such function.
        cheap: whether it is hardly more than a comparison, which costs XLA's small kernels no time.
    """

    function: Callable[[jax.Array], jax.Array]
    plain: Callable[[jax.Array], jax.Array] | None = None
    cheap: bool = False

    def __call__(self, x: jax.Array) -> jax.Array:
        """Its value, element by element."""
        return self.function(x)


#: The activations by name, in the order of ffi/activation.h. "gelu" is the tanh form, ``jax.nn.gelu``'s default.
ACTIVATIONS = {
    "relu": Activation(jax.nn.relu, plain=lambda x: jnp.where(x <= 0, 0, x), cheap=True),
    "gelu": Activation(partial(jax.nn.gelu, approximate=True)),
    "gelu_erf": Activation(partial(jax.nn.gelu, approximate=False)),
    "silu": Activation(jax.nn.silu),
    "tanh": Activation(jnp.tanh),
    "sigmoid": Activation(jax.nn.sigmoid),
}


@dataclass(frozen=True)
class Epilogue:
    """What follows a product; hashable, so that it can be a parameter of the primitive.

    ``c`` is an operand exactly when ``beta`` is not 0, ``bias`` (one element a column) when ``has_bias``.
    """

    alpha: float = 1.0
    beta: float = 0.0
    has_bias: bool = False
    activation: str | None = None

    @property
    def has_c(self) -> bool:
        """Whether c is read."""
        return self.beta != 0.0

    @property
    def cheap_activation(self) -> bool:
        """Whether there is no activation but one that costs XLA's small kernels no time."""
        return self.activation is None or ACTIVATIONS[self.activation].cheap

    @property
    def is_scaling(self) -> bool:
        """Whether the result is linear in each operand: only ``alpha`` is applied."""
        return not self.has_c and not self.has_bias and self.activation is None

    def c_and_bias(self, extra: Sequence[T]) -> tuple[T | None, T | None]:
        """(c, bias) out of the operands that follow a and b."""
        c = extra[0] if self.has_c else None
        bias = extra[-1] if self.has_bias else None
        return c, bias

    def scaling(self) -> Epilogue:
        """Only the linear part: ``alpha * product``."""
        return Epilogue(alpha=self.alpha)

    def after_scaling(self) -> Epilogue:
        """What is left to do once :meth:`scaling` is done."""
        return replace(self, alpha=1.0)

    def linear(self) -> Epilogue:
        """Everything but the activation."""
        return replace(self, activation=None)


def composed_type(epilogue: Epilogue, operands: Sequence[jax.Array], out: np.dtype, *, by_xla: bool) -> np.dtype:
    """The type of a product whose epilogue is composed in jnp.

    A kernel of ours writes the accumulator's type, or the result's where that is wider, so that the result is rounded
    once. XLA's product has the result's type, as one would write it in jnp: then XLA can fuse alpha, c, bias and some
    activations into it, and partial sums of several devices are no wider. There are two exceptions, in which XLA's
    product has the accumulator's type too: c or bias is wider than the result, or alpha scales an f16 product, which
    may be out of f16's range before that.

    Operands are lhs, rhs[, c][, bias]. ``by_xla``: whether XLA computes the product, or may.
    """
    lhs, rhs, *extra = (np.dtype(x.dtype) for x in operands)
    as_written = by_xla and out == dtypes.product(lhs, rhs) and jnp.issubdtype(out, jnp.inexact)
    wider = any(dtypes.common(x, out) != out for x in extra)
    rescaled = epilogue.alpha != 1.0 and out == np.float16
    return out if as_written and not wider and not rescaled else dtypes.summed(lhs, rhs, out)


def apply(
    epilogue: Epilogue,
    product: jax.Array,
    c: jax.Array | None,
    bias: jax.Array | None,
    out_dtype: np.dtype,
) -> jax.Array:
    """The epilogue in jnp, for what a kernel does not do itself.

    It is computed in the type of ``product``, and rounded to ``out_dtype`` at the end; ``c`` and ``bias`` are anything
    that broadcasts against the product.
    """
    compute = product.dtype
    x = product
    if epilogue.alpha != 1.0:
        x = x * jnp.asarray(epilogue.alpha, compute)
    if c is not None:
        x = x + jnp.asarray(epilogue.beta, compute) * c.astype(compute)
    if bias is not None:  # of the product's rank, as jax.numpy_rank_promotion may ask
        x = x + lax.broadcast_to_rank(bias.astype(compute), x.ndim)
    if epilogue.activation is not None:
        x = ACTIVATIONS[epilogue.activation](x)
    return x.astype(out_dtype)


def gated(activation: str | None, gate: jax.Array, up: jax.Array, out_dtype: np.dtype) -> jax.Array:
    """A gated pair's result of its two products, ``activation(gate) * up``."""
    return (apply(Epilogue(activation=activation), gate, None, None, gate.dtype) * up).astype(out_dtype)
