"""What the linen and the nnx layers have in common: a product that waits for its bias and its activation.

The layers are flax's: their parameters and their forward pass are inherited, so neither can drift from flax's.
Only the product is ours. flax adds the bias to what its ``dot_general`` returns, so here that is a
:class:`PendingProduct`, which takes the bias up, and the activation after it, and then runs as one ``gemm``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum

from jaxgemm import api
from jaxgemm.epilogue import ACTIVATIONS, Epilogue
from jaxgemm.problem import DimensionNumbers
from jaxgemm.products import dense
from jaxgemm.products.arguments import check_activation, check_kernel, dot_dtype


def check(layer: str, activation: str | None, kernel: str, given: Sequence[str] = ()) -> None:
    """Errors for wrong arguments of a layer; ``given`` names arguments that replace our product."""
    check_activation(layer, activation)
    check_kernel(kernel)
    if given and kernel != "auto":
        raise ValueError(f"{layer}: kernel={kernel!r} picks the kernel of our product, but {given[0]} replaces it")


def check_equation(equation: str) -> None:
    """ValueError for an einsum that is not one of two operands with its result spelled out."""
    if "->" not in equation or equation.count(",") != 1:
        raise ValueError(f"einsum_str: got {equation!r}, expected two operands and a result, as in 'ab,bc->ac'")


class Seen:
    """A module as its own forward pass sees it: with some attributes replaced, for this call alone."""

    def __init__(self, module: Any, **replaced: Any):
        self._module = module
        self.replace(**replaced)

    def replace(self, **replaced: Any) -> None:
        """Replace more attributes."""
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


@dataclass(frozen=True, eq=False)
class PendingProduct:
    """A product that runs once all that can be fused into it is known.

    Attributes:
        lhs, rhs, dims, precision, out_sharding: as ``dot_general`` takes them.
        dtype: type of the result.
        kernel: as ``gemm`` takes it.
        bias: anything that broadcasts to the result.
    """

    lhs: jax.Array
    rhs: jax.Array
    dims: DimensionNumbers
    precision: Any
    dtype: np.dtype
    out_sharding: Any
    kernel: str
    bias: jax.Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        (lc, rc), (lb, rb) = self.dims
        batch = tuple(self.lhs.shape[i] for i in lb)
        lhs = tuple(n for i, n in enumerate(self.lhs.shape) if i not in (*lc, *lb))
        rhs = tuple(n for i, n in enumerate(self.rhs.shape) if i not in (*rc, *rb))
        return batch + lhs + rhs

    @property
    def ndim(self) -> int:
        """Of the result."""
        return len(self.shape)

    def __add__(self, other: jax.Array) -> Any:
        return replace(self, bias=other) if self._takes(other) else self.finish(None) + other

    def __jax_array__(self) -> jax.Array:
        return self.finish(None)

    def _takes(self, bias: jax.Array) -> bool:
        """Whether the product can add it: one element a column, in the type of the result.

        Features of several axes are not merged into one: where a later axis is sharded, that would gather them.
        """
        (_, rc), (_, rb) = self.dims
        return (
            self.bias is None
            and self.rhs.ndim == len(rc) + len(rb) + 1
            and bias.shape in ((self.shape[-1],), (1,) * (self.ndim - 1) + self.shape[-1:])
            and jnp.promote_types(bias.dtype, self.dtype) == self.dtype
        )

    def finish(self, activation: str | None) -> jax.Array:
        """The result."""
        epilogue = Epilogue(has_bias=self.bias is not None, activation=activation)
        bias = () if self.bias is None else (self.bias.reshape(-1).astype(self.dtype),)
        return dense.bind(
            self.lhs,
            self.rhs,
            bias,
            self.dims,
            self.precision,
            self.dtype,
            epilogue,
            self.kernel,
            (),
            self.out_sharding,
        )


def pend(
    lhs: jax.Array,
    rhs: jax.Array,
    dimension_numbers: DimensionNumbers,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
    kernel: str = "auto",
) -> PendingProduct:
    """As ``jaxgemm.dot_general``, later."""
    (lc, rc), (lb, rb) = dimension_numbers
    dims = ((tuple(lc), tuple(rc)), (tuple(lb), tuple(rb)))
    out = dot_dtype(preferred_element_type, lhs.dtype, rhs.dtype)
    return PendingProduct(lhs, rhs, dims, precision, out, out_sharding, kernel)


def pend_einsum(
    equation: str,
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    kernel: str = "auto",
) -> PendingProduct | jax.Array:
    """As ``jnp.einsum``: later if it is one product whose result needs no transposition, else now."""
    options = {
        "precision": precision,
        "preferred_element_type": preferred_element_type,
        "out_sharding": out_sharding,
    }
    dims = _einsum_dims(equation, lhs, rhs)
    if dims is not None:
        if preferred_element_type is None:  # einsum promotes, where dot_general does not
            options["preferred_element_type"] = jnp.result_type(lhs, rhs)
        return pend(lhs, rhs, dims, kernel=kernel, **options)
    out: jax.Array = jnp.einsum(equation, lhs, rhs, _dot_general=_dot_general(kernel), **options)
    return out


@cache  # jnp.einsum is compiled anew for every function object that it is given, so there is one a kernel
def _dot_general(kernel: str) -> Callable[..., jax.Array]:
    return partial(api.dot_general, kernel=kernel)


def _einsum_dims(equation: str, lhs: jax.Array, rhs: jax.Array) -> DimensionNumbers | None:
    """The dimension numbers of a dot_general whose result is the einsum's; None if there are none."""
    operands, result, _ = opt_einsum.parser.parse_einsum_input((equation, lhs, rhs))
    x, y = operands.split(",")
    if len(set(x)) < len(x) or len(set(y)) < len(y):
        return None  # a diagonal
    if any(lhs.shape[x.index(i)] != rhs.shape[y.index(i)] for i in x if i in y):
        return None  # a broadcast, or an error, which is einsum's to raise
    batch = [i for i in x if i in y and i in result]
    contract = [i for i in y if i in x and i not in result]
    natural = [*batch, *(i for i in x if i not in y), *(i for i in y if i not in x)]
    if not contract or list(result) != natural:
        return None  # a sum of one operand, or a transposed result
    return (
        (tuple(x.index(i) for i in contract), tuple(y.index(i) for i in contract)),
        (tuple(x.index(i) for i in batch), tuple(y.index(i) for i in batch)),
    )


def finish(out: Any, activation: str | None) -> jax.Array:
    """The layer's result from what flax's forward pass gave: a pending product, or an array."""
    if isinstance(out, PendingProduct):
        return out.finish(activation)
    result: jax.Array = out if activation is None else ACTIVATIONS[activation](out)
    return result
