"""Functions of ``flax.nnx`` models, which change as they are called, as functions of their state.

A model passed to a function that is traced is a copy, and its batch statistics and random counters would be lost with
the copy. So, as with ``nnx.jit``, the state of copies comes out of the program, and goes into the objects that were
passed. flax is used only if something has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import jax

#: (function, args) -> result
Evaluate = Callable[[Callable[..., Any], tuple[Any, ...]], Any]


def is_stateful(x: Any) -> bool:
    """Whether something is a module, an optimizer or a variable of nnx, or another of its objects."""
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(x, (nnx.Pytree, nnx.Variable))


def holds_state(tree: Any) -> bool:
    """Whether there is an object of nnx in a pytree."""
    return any(map(is_stateful, jax.tree.leaves(tree, is_leaf=is_stateful)))


def carry(evaluate: Evaluate, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """``function(*args, **kwargs)`` by ``evaluate``, and the changes that it makes to objects of nnx.

    ``evaluate`` traces a function of pytrees of arrays, and evaluates it. An object that several arguments share is one
    object for the function as well.

    Raises:
        flax.errors.TraceContextError: an object that changes was made outside of the transformation around this call.
    """
    nnx: Any = sys.modules["flax.nnx"]
    tag = object()
    given, rebuild = _split((args, kwargs))
    changed, rebuild_out = True, rebuild

    def pure(graph: Any, state: Any, rest: list[Any]) -> Any:
        nonlocal changed, rebuild_out
        with nnx.merge_context(tag, inner=True) as context:
            nodes = context.unflatten(graph, state)
        before = _seen(nodes)
        args, kwargs = rebuild(nodes, rest)
        (made, rest_out), rebuild_out = _split(function(*args, **kwargs))
        changed = bool(made) or _differ(before, _seen(nodes))
        with nnx.split_context(tag) as context:
            return (*context.flatten((nodes, made), with_paths=False), rest_out) if changed else rest_out

    with nnx.update_context(tag):
        with nnx.split_context(tag) as context:
            graph, state = context.flatten(given[0], with_paths=False)
        result = evaluate(pure, (graph, state, given[1]))
        if not changed:
            return rebuild_out((), result)
        # A merge that fails leaves a model without its attributes, so first see whether the model may be changed.
        for _, value in nnx.iter_graph(given[0]):
            if isinstance(value, nnx.Variable):
                value.set_raw_value(value.get_raw_value())
        graph, state, rest = result
        with nnx.merge_context(tag, inner=False) as context:
            _, made = context.unflatten(graph, state)
    return rebuild_out(made, rest)


def _split(tree: Any) -> tuple[tuple[tuple[Any, ...], list[Any]], Callable[[Any, list[Any]], Any]]:
    """A pytree's objects of nnx and its other leaves, and a function that puts a pytree together from both."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_stateful)
    stateful = [is_stateful(x) for x in leaves]

    def rebuild(nodes: Any, rest: list[Any]) -> Any:
        objects, others = iter(nodes), iter(rest)
        return jax.tree.unflatten(structure, [next(objects) if of_nnx else next(others) for of_nnx in stateful])

    nodes = tuple(x for x, of_nnx in zip(leaves, stateful, strict=True) if of_nnx)
    return (nodes, [x for x, of_nnx in zip(leaves, stateful, strict=True) if not of_nnx]), rebuild


def _seen(nodes: Any) -> tuple[Any, list[Any]]:
    """The structure of a graph, and what its variables hold now."""
    found: tuple[Any, list[Any]] = sys.modules["flax.nnx"].flatten(nodes, with_paths=False)
    return found


def _differ(before: tuple[Any, list[Any]], after: tuple[Any, list[Any]]) -> bool:
    if before[0] != after[0]:
        return True
    # A leaf that is no array, such as a reference to one, may have changed and still be the same object.
    pairs = zip(before[1], after[1], strict=True)
    return any(old is not new or not isinstance(new, jax.Array) for old, new in pairs)
