"""A function's jaxpr, as the tests that count products read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import jaxprs_in_params


def equations(function: Callable[..., Any], *args: Any) -> Iterator[Any]:
    """Every equation of the function's jaxpr, and of the jaxprs inside of those; not in order."""
    stack = [jax.make_jaxpr(function)(*args).jaxpr]
    while stack:
        for eqn in stack.pop().eqns:
            yield eqn
            stack.extend(jaxprs_in_params(eqn.params))
