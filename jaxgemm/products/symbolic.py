"""Products whose extents are not known while they are lowered, as with ``jax.export.symbolic_shape``.

Kernels and their configurations are chosen by extent, and a kernel's call holds extents as numbers. So XLA, which has
the extents at run time, computes products with symbolic extents. A kernel asked for by name is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxgemm.choice import rules
from jaxgemm.choice.resolve import Choice
from jaxgemm.kernels import UnsupportedError
from jaxgemm.products.kind import Params


def extents(avals: Sequence[Any]) -> list[str]:
    """The symbolic extents of shapes, as JAX prints them, each once."""
    return [*dict.fromkeys(str(n) for x in avals for n in x.shape if not isinstance(n, int))]


def choose(avals: Sequence[Any], params: Params) -> Choice | None:
    """XLA's product, if an extent of the operands is symbolic; None if every extent is known.

    Raises:
        UnsupportedError: an extent is symbolic, and XLA's product may not be taken.
    """
    found = extents(avals)
    if not found:
        return None
    if params["kernel"] == "xla":
        return Choice.xlas(rules.BY_NAME, "XLA's product was asked for by name")
    why = f"symbolic extents ({', '.join(found)}), and kernels are chosen by extents that are known"
    if params["kernel"] == "auto" and not params["batch_invariant"]:
        return Choice.xlas(rules.SYMBOLIC, why)
    asked = "batch_invariant" if params["kernel"] == "auto" else f"kernel '{params['kernel']}'"
    raise UnsupportedError(f"{asked}: {why}; give numbers for them, or leave the product to XLA (kernel 'auto')")
