"""Switches an unmodified function over: its ``dot_general``s become products of jaxgemm.

The function is traced to a jaxpr. In it, also inside of jit, scan, while, cond, checkpoint and the like, the primitive
of each eligible product is exchanged, and the resulting jaxpr is evaluated. Both primitives have the same types, so
nothing else in the jaxpr changes: custom derivatives, sharding and effects are those of the function. Modules of
jaxgemm/rewriting change more than the primitive:

- fusion.py: a bias and an activation become the product's epilogue, and the products of a gated layer become one pair.
- ragged.py: a ``ragged_dot`` becomes a product of groups.
- narrow.py: a product of dequantised values becomes one of 8 bits, and takes up its scales.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

import jax
from jax import lax
from jax.extend import linear_util
from jax.extend.core import Jaxpr, jaxpr_as_fun, jaxprs_in_params, primitives

from jaxgemm import dtypes
from jaxgemm import precision as prec
from jaxgemm.checkpoint_policies import with_dense_products
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import UnsupportedError, find_kernel, kernels
from jaxgemm.products.arguments import check_kernel
from jaxgemm.products.dense import decide, gemm_p
from jaxgemm.products.gated import gated_p
from jaxgemm.products.kind import KINDS
from jaxgemm.products.xla_product import narrow_integers
from jaxgemm.rewriting import nnx_state
from jaxgemm.rewriting.fusion import Values
from jaxgemm.rewriting.narrow import Narrow, narrow_products
from jaxgemm.rewriting.ragged import as_grouped, with_whole_sums

F = TypeVar("F", bound=Callable[..., Any])

#: The name of the primitive behind ``lax.ragged_dot``.
RAGGED = "ragged_dot_general"

#: Primitives whose jaxprs are programs like any other. What is not listed keeps its products: a Pallas kernel,
#: for one, is written in the same primitives but is not compiled by XLA.
OPENED = frozenset(
    {
        primitives.jit_p.name,
        primitives.scan_p.name,
        primitives.while_p.name,
        primitives.cond_p.name,
        primitives.remat_p.name,
        primitives.custom_jvp_call_p.name,
        primitives.custom_vjp_call_p.name,
        primitives.linear_solve_p.name,
        "call",
        "closed_call",
        "eval_jaxpr",
        "custom_vmap_call",
        "shard_map",
    }
)


@dataclass(frozen=True)
class Routing:
    """Where products go.

    Attributes:
        kernel: as ``gemm`` takes it.
        precision: canonical precision of the products that ask for none themselves.
    """

    kernel: str = "auto"
    precision: prec.Precision = None


@overload
def override(function: F, /, *, kernel: str = "auto", precision: prec.Precision = None) -> F: ...
@overload
def override(*, kernel: str = "auto", precision: prec.Precision = None) -> Callable[[F], F]: ...
def override(function: Any = None, /, *, kernel: str = "auto", precision: prec.Precision = None) -> Any:
    """The function with its products computed by jaxgemm, wherever in it they are.

    Products are found inside of jit, scan, while, cond, checkpoint, shard_map, custom_jvp, custom_vjp and
    custom_linear_solve, whose rules stay in force. grad, vmap and jit may be put around the result. Products that no
    kernel computes stay as they are; ``jaxgemm.explain(override(function), ...)`` lists both kinds, with reasons.

    A bias along the last axis and an activation that :func:`jaxgemm.gemm` knows, right after a product, become part of
    the product if nothing else reads the values between. Unless a kernel is named, the two products of a gated layer
    become one :func:`jaxgemm.gated_gemm`, under the same condition.

    Values of 8 bits that are dequantised right before a product are multiplied in 8 bits. Scales before or right after
    such a product become a part of it (jaxgemm/rewriting/narrow.py says when). A result may differ by roundings that
    the program makes and the product does not; a product that asks for an algorithm by name stays as it is.

    ``lax.ragged_dot`` and ``lax.ragged_dot_general`` become :func:`jaxgemm.ragged_dot_general`, which keeps the values
    of one group out of the results of others. What follows a ragged product stays in jnp. Ragged products stay as they
    are if ``kernel`` is "xla" or has no grouped form, and in a ``shard_map`` inside of ``function``: override the
    function that is mapped instead.

    Each call traces ``function``, so put ``jax.jit`` around the result rather than inside. Of the arguments, JAX
    arrays are traced, and all else (numbers, strings, numpy arrays) reaches ``function`` as it is. Objects of flax.nnx
    among the arguments (models, optimizers, variables) are changed as ``function`` changes them.

    Args:
        function: any function of pytrees that JAX can trace. Without it, a decorator is returned.
        kernel: as for :func:`jaxgemm.gemm`. A product that the named kernel cannot compute stays as it is.
        precision: for the products that do not ask for one themselves.

    Returns:
        A function of the same arguments and results.

    Raises:
        TypeError: ``function`` is not callable.
        ValueError: ``kernel`` or ``precision`` is not a name that exists.
    """
    if function is None:
        return functools.partial(override, kernel=kernel, precision=precision)
    if not callable(function):
        raise TypeError(f"override: expected a function, got {type(function).__name__}")
    check_kernel(kernel)
    routing = Routing(kernel, None if precision is None else prec.canonical(precision))

    # The attributes are not copied: a callable may be an object with a large state.
    @functools.wraps(function, updated=())
    def routed(*args: Any, **kwargs: Any) -> Any:
        return _called(function, routing, args, kwargs)

    setattr(routed, _ATTRIBUTE, routing)
    return routed


_ATTRIBUTE = "__jaxgemm_routing__"


def routing_of(function: Any) -> Routing | None:
    """The routing of a function that :func:`override` made, also if jit or grad is around it."""
    found = getattr(function, _ATTRIBUTE, None)
    return found if isinstance(found, Routing) else None


def _called(function: Callable[..., Any], routing: Routing, args: Any, kwargs: Any) -> Any:
    if not nnx_state.holds_state((args, kwargs)):
        return _evaluate(function, routing, args, kwargs)
    return nnx_state.carry(lambda pure, given: _evaluate(pure, routing, given, {}), function, args, kwargs)


def _evaluate(function: Callable[..., Any], routing: Routing, args: Any, kwargs: Any) -> Any:
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = [x for x in leaves if isinstance(x, jax.Array)]
    results: list[Any] = []
    result_tree = None

    def traced(*tracers: jax.Array) -> list[jax.Array]:
        nonlocal result_tree
        given = iter(tracers)
        args, kwargs = jax.tree.unflatten(tree, [next(given) if isinstance(x, jax.Array) else x for x in leaves])
        found, result_tree = jax.tree.flatten(function(*args, **kwargs))
        results[:] = [None if isinstance(x, jax.Array) else (x,) for x in found]
        return [x for x in found if isinstance(x, jax.Array)]

    program = _route(jax.make_jaxpr(traced)(*arrays), routing)
    values = iter(jaxpr_as_fun(program)(*arrays))
    assert result_tree is not None
    return jax.tree.unflatten(result_tree, [next(values) if x is None else x[0] for x in results])


# --- Jaxprs ---------------------------------------------------------------------------------------------------

# The routed form of each jaxpr; None if it is the jaxpr itself. JAX caches what it compiles by the jaxpr object, and
# jit gives the same object for the same function again, so routing must return the same object again as well.
_memo: WeakKeyDictionary[Any, dict[Routing, Any]] = WeakKeyDictionary()


def _route(jaxpr: Any, routing: Routing) -> Any:
    """The jaxpr, open or closed, with its eligible products exchanged."""
    known = _memo.setdefault(jaxpr, {})
    if routing not in known:
        fused, absorbed = _fuse(getattr(jaxpr, "jaxpr", jaxpr), routing)
        kept = [i for i in range(len(jaxpr.eqns)) if i not in absorbed]
        eqns = [fused[i] if i in fused else _route_eqn(jaxpr.eqns[i], routing) for i in kept]
        if len(eqns) == len(jaxpr.eqns) and all(new is old for new, old in zip(eqns, jaxpr.eqns, strict=True)):
            known[routing] = None
        elif isinstance(jaxpr, Jaxpr):
            known[routing] = jaxpr.replace(eqns=eqns)
        else:
            known[routing] = jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=eqns))
    new = known[routing]
    return jaxpr if new is None else new


def _fuse(jaxpr: Jaxpr, routing: Routing) -> tuple[dict[int, Any], set[int]]:
    """Fused products by the index of the equation that each replaces, and indices of the other equations to drop."""
    fused: dict[int, Any] = {}
    taken: set[int] = set()
    if routing.kernel == "xla":
        return fused, taken
    values, dropped, read = Values(jaxpr), set[Any](), set[Any]()
    for product in narrow_products(jaxpr, values):
        for form in product.forms:
            drops = {v for i in form.eqns[:-1] for v in jaxpr.eqns[i].outvars}
            call = None if taken & {*form.eqns} or drops & read else _narrow(form, routing)
            if call and dropped.isdisjoint(call.invars):  # it may read what is on the way to another product's operand
                fused[form.eqns[-1]] = call
                taken, dropped, read = taken | {*form.eqns}, dropped | drops, read | {*call.invars}
    # A kernel by name may have no gated form, or not on several devices.
    for pair in values.pairs() if routing.kernel == "auto" else ():
        eqn, last = jaxpr.eqns[pair.eqns[0]], jaxpr.eqns[pair.eqns[-1]]
        if not taken & {*pair.eqns} and not refusal(eqn, routing):
            wanted = _gemm_params(eqn, routing)
            params = {name: wanted[name] for name in _OF_A_PAIR}
            params["activation"] = pair.activation
            invars = list(pair.operands)
            fused[pair.eqns[-1]] = eqn.replace(primitive=gated_p, invars=invars, outvars=last.outvars, params=params)
            taken |= {*pair.eqns}
    for found in values.fusions():
        eqn, last = jaxpr.eqns[found.eqns[0]], jaxpr.eqns[found.eqns[-1]]
        invars = [*eqn.invars, *([] if found.bias is None else [found.bias])]
        params = {**_gemm_params(eqn, routing), "epilogue": found.epilogue}
        if found.eqns[0] in taken or refusal(eqn, routing) or not _takes_up([v.aval for v in invars], params):
            continue
        fused[found.eqns[-1]] = eqn.replace(primitive=gemm_p, invars=invars, outvars=last.outvars, params=params)
        taken |= {*found.eqns}
    return fused, taken - fused.keys()


def _narrow(product: Narrow, routing: Routing) -> Any:
    """A call that computes a product in 8 bits; None if it is not to be."""
    params = _gemm_params(product.dot, routing)
    if product.refusal(params["precision"]) or not _names_are_bound(product.dot.invars[0].aval):
        return None
    if routing.kernel != "auto":
        try:
            sums = dict(params, preferred_element_type=product.sums)
            decide(find_kernel(routing.kernel).platform, product.types, sums)
        except UnsupportedError:
            return None
    call = product.replaced(params, [_route_eqn(product.scope.jaxpr.eqns[i], routing) for i in product.eqns])
    return None if _refused([call], routing) else call


#: The parameters of a product that a gated pair has too.
_OF_A_PAIR = ("preferred_element_type", "precision", "kernel", "batch_invariant")


def _takes_up(avals: Sequence[Any], params: dict[str, Any]) -> bool:
    """Whether the kernel that is asked for by name applies the epilogue itself.

    Under "auto" a product may always have its epilogue: for XLA it is lowered to the jnp code that stood there.
    """
    if params["kernel"] == "auto":
        return True
    try:
        problem = decide(find_kernel(params["kernel"]).platform, avals, params).problem
    except UnsupportedError:
        return False
    return problem is not None and problem.epilogue == params["epilogue"]


def _route_eqn(eqn: Any, routing: Routing) -> Any:
    if eqn.primitive is lax.dot_general_p:
        if refusal(eqn, routing):
            # XLA computes it. Sums of narrow integers may need padding, which our primitive adds: see xla_product.py.
            if not narrow_integers(*(v.aval for v in eqn.invars)):
                return eqn
            routing = Routing("auto", routing.precision)
        return eqn.replace(primitive=gemm_p, params=_gemm_params(eqn, routing))
    if eqn.primitive.name == RAGGED:
        if refusal(eqn, routing):
            return with_whole_sums(eqn)
        return as_grouped(eqn, kernel=routing.kernel, precision=routing.precision)
    if eqn.primitive.name not in OPENED:
        return eqn
    params = {name: _route_param(value, routing) for name, value in eqn.params.items()}
    changed = any(params[name] is not value for name, value in eqn.params.items())
    # Rules are functions that have not been traced yet. Their products are exchanged when the rules are traced.
    if eqn.primitive is primitives.custom_jvp_call_p:
        params["jvp_jaxpr_fun"], changed = _route_thunk(params["jvp_jaxpr_fun"], routing), True
    if eqn.primitive is primitives.custom_vjp_call_p:
        params["fwd_jaxpr_thunk"], changed = _route_thunk(params["fwd_jaxpr_thunk"], routing), True
        params["bwd"] = _route_function(params["bwd"], routing)
    if eqn.primitive is primitives.remat_p and changed and params["policy"] is not None:
        params["policy"] = with_dense_products(params["policy"])  # so that it saves what it saved before
    return eqn.replace(params=params) if changed else eqn


def _route_param(value: Any, routing: Routing) -> Any:
    if isinstance(value, tuple):
        routed = tuple(_route_param(x, routing) for x in value)
        if all(new is old for new, old in zip(routed, value, strict=True)):
            return value
        return type(value)(*routed) if hasattr(value, "_fields") else routed  # a linear solve has a named tuple
    return _route(value, routing) if isinstance(getattr(value, "jaxpr", value), Jaxpr) else value


def _route_thunk(thunk: Any, routing: Routing) -> Any:
    """A function that returns a jaxpr first."""

    def routed(*args: Any) -> tuple[Any, ...]:
        jaxpr, *rest = thunk.call_wrapped(*args)
        return _route(jaxpr, routing), *rest

    return linear_util.wrap_init(routed, debug_info=thunk.debug_info)


def _route_function(function: Any, routing: Routing) -> Any:
    def routed(*args: Any) -> Any:
        return _evaluate(function.call_wrapped, routing, args, {})

    return linear_util.wrap_init(routed, debug_info=function.debug_info)


# --- Products -------------------------------------------------------------------------------------------------


def _gemm_params(eqn: Any, routing: Routing) -> dict[str, Any]:
    precision = eqn.params["precision"]
    return {
        "dimension_numbers": eqn.params["dimension_numbers"],
        "precision": routing.precision if precision is None else prec.canonical(precision),
        "preferred_element_type": eqn.outvars[0].aval.dtype,
        "out_sharding": eqn.params["out_sharding"],
        "epilogue": Epilogue(),
        "kernel": routing.kernel,
        "options": (),
        "batch_invariant": False,
        "strict": True,
    }


def refusal(eqn: Any, routing: Routing) -> str:
    """Why a product is not routed; empty if it is."""
    if eqn.primitive.name == RAGGED and (why := _ragged_refusal(eqn, routing)):
        return why
    lhs, rhs = (v.aval for v in eqn.invars[:2])
    a, b, d = lhs.dtype.name, rhs.dtype.name, eqn.outvars[0].aval.dtype.name
    if not all(isinstance(extent, int) for extent in (*lhs.shape, *rhs.shape)):
        return "its shape is symbolic, and kernels are chosen by shape"
    results = _results(a, b)
    if not results:
        return f"no kernel multiplies {a} by {b}"
    if d not in results and dtypes.accumulator(lhs.dtype).name not in results:
        return f"no kernel computes {a} x {b} -> {d}"
    return "" if routing.kernel in ("auto", "xla") else _refusal_by_name(eqn, routing)


def _ragged_refusal(eqn: Any, routing: Routing) -> str:
    """Why a ragged product of any shape and type is not routed; empty if it may be."""
    if routing.kernel == "xla":
        return "XLA's product was asked for by name, and it has a ragged one of its own"
    if eqn.params["group_offset"] is not None:
        return "it starts at a later group (group_offset)"
    if not _names_are_bound(eqn.invars[0].aval):
        return "it is in a shard_map that override was put around; override the function that is mapped"
    return ""


def _refusal_by_name(eqn: Any, routing: Routing) -> str:
    """Why the kernel that is asked for by name does not compute a product; empty if it does."""
    if eqn.primitive.name == RAGGED:
        return _refused([as_grouped(eqn, kernel=routing.kernel, precision=routing.precision)], routing)
    return _refused([eqn.replace(primitive=gemm_p, params=_gemm_params(eqn, routing))], routing)


def _refused(eqns: Sequence[Any], routing: Routing) -> str:
    """Why the kernel asked for by name does not compute all products in equations; empty if it does, or under auto."""
    if routing.kernel == "auto":
        return ""
    try:
        for eqn in eqns:
            kind = KINDS.get(eqn.primitive)
            if kind and kind.decide:
                kind.decided(find_kernel(routing.kernel).platform, [v.aval for v in eqn.invars], eqn.params)
    except UnsupportedError as error:
        return str(error)
    return next(filter(None, (_refused(x.eqns, routing) for eqn in eqns for x in jaxprs_in_params(eqn.params))), "")


def _names_are_bound(aval: Any) -> bool:
    """Whether the axis names of the ``shard_map`` around a value, if there is one, are bound here.

    They are not bound if ``override`` is outside of the ``shard_map``; no new code for its body can be traced then.
    """
    try:
        for name in aval.sharding.mesh.manual_axes:
            lax.axis_size(name)
    except NameError:
        return False
    return True


@functools.cache
def _results(a: str, b: str) -> set[str]:
    """The element types that some kernel returns for these operands."""
    return {t[2] for row in kernels() for t in row.types if t[:2] == (a, b)}
