"""What ``jax.checkpoint`` keeps: JAX's policies, with products of jaxgemm seen as the dots they are.

JAX's own policies know ``lax.dot_general`` alone, so under ``jax.checkpoint_policies.dots_saveable`` a product of
jaxgemm's is computed once more. These keep both. A product with an activation is kept as what the activation is
applied to, which is what its derivative needs; an overlapped one together with the activations that it gathered; a
grouped one as the product with weights that it is, unless ``vmap`` has made it one with weights of its own for each of
a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from jaxgemm.products.dense import DOT_PARAMS
from jaxgemm.products.kind import KINDS

Policy = Callable[..., Any]


@dataclass(frozen=True)  # equal where the policies are, so that JAX finds what it has traced
class _WithProducts:
    policy: Policy
    groups: bool = True  # whether products of groups are among them

    def __call__(self, primitive: Any, *args: Any, **params: Any) -> Any:
        kind = KINDS.get(primitive)
        if kind is None or kind.dimensions is None or (kind.of_groups and not self.groups):
            return self.policy(primitive, *args, **params)
        params = {"out_sharding": None} | params | {"dimension_numbers": kind.dimensions(args, params)}
        operands = kind.linear.pairs(args)[0] if kind.linear else args[:2]
        return self.policy(lax.dot_general_p, *operands, **{name: params[name] for name in DOT_PARAMS})


def with_products(policy: Policy) -> Policy:
    """A policy for ``jax.checkpoint`` that treats products of jaxgemm as ``policy`` treats ``lax.dot_general``.

    Args:
        policy: one of ``jax.checkpoint_policies``, or any function of a primitive and its parameters.
    """
    return _WithProducts(policy)


def with_dense_products(policy: Policy) -> Policy:
    """As :func:`with_products`, but products of groups are left to the policy: JAX's do not know ragged products."""
    return _WithProducts(policy, groups=False)


#: Keep every product.
dots_saveable = checkpoint_dots = with_products(jax.checkpoint_policies.dots_saveable)

#: Keep products without batch axes: those with weights, but not attention's.
dots_with_no_batch_dims_saveable = checkpoint_dots_with_no_batch_dims = with_products(
    jax.checkpoint_policies.dots_with_no_batch_dims_saveable
)


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Move products without batch axes to another memory, such as from "device" to "pinned_host"."""
    return with_products(jax.checkpoint_policies.offload_dot_with_no_batch_dims(offload_src, offload_dst))
