"""What a kind of product is: a :class:`Kind` states it, and everything else reads that statement.

There are dense products, scaled products, gated pairs, lists of products, products of groups of rows, and products of
groups with what follows them. Each kind has a module, which holds what is the kind's own: the shape of the result, the
problem that a kernel computes, the call of a kernel, the composition of other products, how the product is divided over
devices, which products its derivatives are.

What all kinds have in common is written once:

======================  ============================================================================================
register.py             creates JAX's primitive, defines its rules, and lowers it under one policy of devices
derivatives.py          derivatives forward and backward, and Taylor mode, of products that are linear in each operand
explain.py              what is decided for each product of a program
override.py             what a kernel by name can compute
checkpoint_policies.py  which products ``jax.checkpoint`` keeps
======================  ============================================================================================

A kind's functions take operands, or their types, and the primitive's parameters. Functions that are lowered take both
as JAX hands them over, ``*operands, **params``. All kinds have these parameters:

    precision, preferred_element_type   as ``lax.dot_general`` has them
    kernel                              "auto", "xla", or a name
    batch_invariant                     whether rows must not depend on other rows; left out if the kind cannot promise
                                        it
    strict                              whether the kernel was asked for this very product, not for one of which it is a
                                        derivative; left out if it is always so
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
        problem: the problem that the kernel computes, in the first of several calls; None if no kernel can be asked.
        view: how a dense product lies in memory; None for other kinds, and if ``problem`` is None.
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
        derived: (params) -> the parameters of the products that make up a derivative.
        cotangents: (side, [(cotangent, known, unknown), ...], operands, params) -> the cotangents of the operands on
            side 0 or 1 of products whose results have these cotangents.
        addends: (tangents, result, params) -> what the other operands' tangents add to the result's.
        activated: (params) -> the activation that is applied to the product, and parameters without it; or None.
    """

    pairs: Callable[[Sequence[Any]], list[tuple[Any, Any]]]
    bind: Callable[[Sequence[tuple[Any, Any]], Sequence[Any], Params], list[jax.Array]]
    derived: Callable[[Params], Params]
    cotangents: Callable[[int, list[tuple[Any, Any, Any]], Sequence[Any], Params], list[Any]]
    addends: Callable[[Sequence[Any], jax.Array, Params], list[jax.Array]] = _no_addends
    activated: Callable[[Params], tuple[str, Params] | None] = lambda _: None


#: Why a kernel asked for by name does not run if XLA divides the program without asking a rule of ours.
XLA_DIVIDES = (
    " {place}: XLA divides this program over several devices by itself, and it cannot divide a kernel's call; map over "
    "all of the mesh's axes, or leave the product to kernel 'auto' or 'xla'"
)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of product.

    Attributes:
        name: of its primitive.
        several: whether the primitive has several results, as a list.
        abstract: (types, params) -> the result's type, and effects.
        decide: (platform, types, params) -> what computes the product on one device; raises UnsupportedError if a
            kernel asked for by name cannot. None: the kind is always composed. Callers call ``decided``.
        launch: (decision, operands, params) -> the result by the kernel that was decided for.
        by_xla: (platform, parts, operands, params) -> the result by XLA's products, which XLA may divide over ``parts``
            devices afterwards; None: XLA has no such product, and the kind is composed.
        compose: (operands, params) -> the same result made of other kinds of product; None: there is no composition.
        narrow: as ``compose``, with products as wide as in jnp, whoever computes them. It is for derivatives, which
            keep the products (wider ones would take twice the memory, and make the products of the backward pass as
            wide), and for products of which several devices may add up parts. None: ``compose`` serves.
        among_devices: (params) -> the parameters in a program over several devices; None: they are the same.
        division: (local, types, params, platform=, decision=, count=, out=) -> how ``local``, which computes the
            product on one device, is divided over ``count`` devices for a result of type ``out``; or None, if XLA is to
            divide its own product. Without this function the kind is composed.
        part: (types, params, out) -> types of the operands and parameters on one device, from types that say how
            operands and the result (``out``) are sharded; None: a device's part is not known before the product is
            divided.
        refusal: the message, after a kernel's name, if the kernel's product cannot be divided; None: the kind is
            composed then.
        linear: how the kind is differentiated as a product; None: its composition is differentiated.
        jvp, transpose, taylor: the kind's own rules, if neither ``linear`` nor ``narrow`` gives them.
        batch: (axis_data, operands, axes, params) -> the product mapped along these axes, and the mapped axes of
            results; or None, if the composition is to be mapped.
        read_through: (orders, types, params) -> which operands to take before they are transposed in these orders, the
            types of all operands then, and the parameters; None: the kind takes operands as they are.
        dimensions: (types, params) -> dimension numbers of a product of the first two operands, as which a policy of
            ``jax.checkpoint`` sees the kind; None: a policy sees no product.
        of_groups: whether it is a product of groups, which JAX's own policies do not know.
        describe: (operand types, params, decision, limits, types=, platform=) -> what ``explain`` says if one call
            computes the product. ``types`` are those of operands before transpositions that are read through.
        describe_composed: (products, decision, avals=, params=) -> what ``explain`` says of the products of the
            composition.
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

        A product that only a derivative needs takes the kernel asked for by name if that kernel can compute it, and
        else what "auto" takes.

        Raises:
            UnsupportedError: the kernel asked for by name cannot compute it, or no batch-invariant kernel can.
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
    """What is asked for and XLA's product cannot give, for messages."""
    return "batch_invariant" if params.get("batch_invariant") else f"kernel '{params['kernel']}'"


def by_name(params: Params) -> bool:
    """Whether a kernel of ours was asked for, so that XLA's product may not stand in."""
    return not may_be_xlas(params) and bool(params.get("strict", True))


def may_be_xlas(params: Params) -> bool:
    """Whether XLA may compute the product; jnp code around it may then round as in jnp."""
    return params["kernel"] in ("auto", "xla") and not params.get("batch_invariant", False)
