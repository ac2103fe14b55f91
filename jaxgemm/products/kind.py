"""What a kind of product is: a :class:`Kind` states it, and everything else reads that statement.

There are dense products, gated pairs, lists of products, products of groups of rows, and these with what follows them.
A module for each holds what is its own: the shape of the result, the problem that a kernel is asked for, the call of a
kernel, the same made of other products, how it is divided over devices, what its derivatives are products of.

What all have in common is written once, for any kind:

======================  ============================================================================================
register.py             creates JAX's primitive, defines its rules, and lowers it under one policy of devices
derivatives.py          derivatives forward and backward, and Taylor mode, of products that are linear in each operand
explain.py              what is decided for each product of a program
override.py             what a kernel by name can compute
checkpoint_policies.py  which products ``jax.checkpoint`` keeps
======================  ============================================================================================

A kind's functions take operands, or their types, and the primitive's parameters; those that are lowered take them as
JAX hands them over, ``*operands, **params``. The parameters that all kinds have:

    precision, preferred_element_type   as ``lax.dot_general`` has them
    kernel                              "auto", "xla", or a name
    batch_invariant                     whether rows must not depend on other rows; left out where a kind has no such
                                        form
    strict                              whether the kernel was asked for of this very product, not of one that it is a
                                        derivative of; left out where it always was
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import Primitive

from jaxgemm.choice.resolve import Choice
from jaxgemm.kernels import UnsupportedError
from jaxgemm.problem import DimensionNumbers, Plan, Problem

Params = dict[str, Any]


@dataclass(frozen=True)
class Decision:
    """What a bound primitive becomes on one device: lowering does it and ``explain`` prints it.

    Attributes:
        choice: the kernel, or XLA.
        problem: what the kernel is asked for, first if there are several calls; None if no kernel could be asked.
        view: how a dense product lies in memory; None with ``problem``.
    """

    choice: Choice
    problem: Problem | None = None
    view: Plan | None = None


def _no_addends(*_: Any) -> list[jax.Array]:
    return []


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A product that is linear in each of two operands; or several such products, each of operands of its own.

    Attributes:
        pairs: (operands) -> both operands of each product.
        bind: (pairs, operands, params) -> the results of these products, with the other operands as they are.
        derived: (params) -> those of the products that make up a derivative.
        cotangents: (side, [(cotangent, known, unknown), ...], operands, params) -> the cotangents of the operands on
            that side, 0 or 1, of products whose results have these cotangents.
        addends: (tangents, result, params) -> what the other operands' tangents add to the result's.
        activated: (params) -> the activation that is applied to the product, and parameters without it; None: none is.
    """

    pairs: Callable[[Sequence[Any]], list[tuple[Any, Any]]]
    bind: Callable[[Sequence[tuple[Any, Any]], Sequence[Any], Params], list[jax.Array]]
    derived: Callable[[Params], Params]
    cotangents: Callable[[int, list[tuple[Any, Any, Any]], Sequence[Any], Params], list[Any]]
    addends: Callable[[Sequence[Any], jax.Array, Params], list[jax.Array]] = _no_addends
    activated: Callable[[Params], tuple[str, Params] | None] = lambda _: None


#: Why a kernel that is asked for by name does not run where XLA divides the program and no rule of ours is asked.
XLA_DIVIDES = (
    " {place}: XLA divides this program over several devices by itself, and it cannot divide a kernel's call; map over "
    "all of the mesh's axes, or leave the product to kernel 'auto' or 'xla'"
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of product.

    Attributes:
        name: of its primitive.
        several: whether it has several results, and so a list of them.
        abstract: (types, params) -> the result's type, and effects.
        decide: (platform, types, params) -> what computes it on one device; raises UnsupportedError where a kernel
            that is asked for by name cannot. None: it is always composed. Callers take ``decided``.
        launch: (decision, operands, params) -> the result by the kernel that was decided for.
        by_xla: (platform, parts, operands, params) -> the result by XLA's products, which XLA may divide over so many
            devices afterwards; None: there are none for this kind, and it is composed.
        compose: (operands, params) -> the same made of other kinds of product; None: it is made of none.
        narrow: the same with products as wide as they are in jnp, whoever computes them: those that are kept for a
            derivative (wider, they would take twice the memory, and make the products of the backward pass as wide),
            and those of which several devices may add up parts. None: as ``compose``.
        among_devices: (params) -> those of a product in a program over several devices; None: they stay.
        division: (local, types, params, platform=, decision=, count=, out=) -> how ``local``, which computes it on one
            device, is divided over ``count``, where the result has type ``out``; None: XLA divides what it computes.
            Without such a function it is composed.
        part: (types, params, out) -> types of the operands on one device, and parameters, where the types say how they
            are sharded, as ``out``, the result's, does; None: what each device has is not known before it is divided.
        refusal: what is said, after its name, of a kernel that cannot be divided; None: it is composed then.
        linear: as what it is differentiated; None: as what it is composed of.
        jvp, transpose, taylor: rules of its own where neither is so.
        batch: (axis_data, operands, axes, params) -> the product mapped along these axes, and where they come out; None
            where what it is composed of is mapped.
        read_through: (orders, types, params) -> which operands to take before they are transposed in these orders,
            types of all then, and parameters; None: it takes operands as they are.
        dimensions: (types, params) -> dimension numbers of the product of its first two operands, as which a policy
            of ``jax.checkpoint`` sees it; None: it sees none.
        of_groups: whether it is a product of groups, which JAX's own policies do not know.
        describe: (operand types, params, decision, limits, types=, platform=) -> what ``explain`` says of it where one
            call computes it, of operands with ``types`` before transpositions that are read through.
        describe_composed: (products, decision, avals=, params=) -> what it says of what it is composed of.
    """

    name: str
    several: bool = False
    abstract: Callable[..., Any]
    decide: Callable[[str, Sequence[Any], Params], Decision] | None = None
    launch: Callable[..., Any] | None = None
    by_xla: Callable[..., Any] | None = None
    compose: Callable[..., Any] | None = None
    narrow: Callable[..., Any] | None = None
    among_devices: Callable[[Params], Params] | None = None
    division: Callable[..., Any] | None = None
    part: Callable[[Sequence[Any], Params, Any], tuple[list[Any], Params]] | None = None
    refusal: str | None = XLA_DIVIDES
    linear: Linear | None = None
    jvp: Callable[..., Any] | None = None
    transpose: Callable[..., Any] | None = None
    taylor: Callable[..., Any] | None = None
    batch: Callable[..., Any] | None = None
    read_through: Callable[..., Any] | None = None
    dimensions: Callable[[Sequence[Any], Params], DimensionNumbers] | None = None
    of_groups: bool = False
    describe: Callable[..., Any] | None = None
    describe_composed: Callable[..., Any] | None = None

    def decided(self, platform: str, types: Sequence[Any], params: Params) -> Decision:
        """What computes a product of operands with these types on one device.

        A product that only a derivative needs takes the kernel that was asked for by name where that can compute it,
        and else what "auto" takes.

        Raises:
            UnsupportedError: a kernel that is asked for by name cannot, or none can that is batch-invariant.
        """
        assert self.decide is not None
        try:
            return self.decide(platform, types, params)
        except UnsupportedError as refusal:
            if params.get("strict", True):
                raise
            free = {"kernel": "auto", "options": (), "batch_invariant": False}
            found = self.decide(platform, types, params | {name: free[name] for name in free.keys() & params.keys()})
            why = f"a derivative's product; {refusal}; {found.choice.why}"
            return replace(found, choice=replace(found.choice, why=why))


#: The kinds by their primitives; jaxgemm/products/register.py fills it.
KINDS: dict[Primitive, Kind] = {}


def wanted(params: Params) -> str:
    """What is asked for that XLA's product would not be, for messages."""
    return "batch_invariant" if params.get("batch_invariant") else f"kernel '{params['kernel']}'"


def by_name(params: Params) -> bool:
    """Whether a kernel of ours was asked for, so that XLA's product may not stand in."""
    return not may_be_xlas(params) and bool(params.get("strict", True))


def may_be_xlas(params: Params) -> bool:
    """Whether XLA's product may be taken for this very one, and so what it is composed with may be as in jnp."""
    return params["kernel"] in ("auto", "xla") and not params.get("batch_invariant", False)
