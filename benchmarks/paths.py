"""What is measured side by side: a function by kernels of ours, and by XLA's paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxgemm.bench import Bench, cache_bytes

Function = Callable[..., jax.Array]


def forms(
    bench: Bench, kernels: Sequence[str], ours: Callable[[str], Function], theirs: Function
) -> dict[str, tuple[Function, dict[str, Any]]]:
    """By the name of a row: a function, and the options to compile it with. `ours` takes a kernel's name."""
    found: dict[str, tuple[Function, dict[str, Any]]] = {f"jaxgemm {name}": (ours(name), {}) for name in kernels}
    return found | {f"XLA {path}": (theirs, options) for path, options in bench.xla_paths.items()}


def sets_of_operands(bench: Bench, size: int) -> int:
    """How many sets of so many bytes pass three times the cache, or 32 if that is less."""
    return min(32, 1 + 3 * cache_bytes(bench.limits) // size)
