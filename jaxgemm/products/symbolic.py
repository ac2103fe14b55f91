"""Products whose extents are not known while they are lowered, as with ``jax.export.symbolic_shape``.

Kernels and their configurations are chosen by extent, and a kernel's call holds extents as numbers. So these products
are XLA's, which has the extents at run time, and a kernel asked for by name is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxgemm.choice import rules
from jaxgemm.choice.select import Choice
from jaxgemm.kernels import UnsupportedError


def extents(avals: Sequence[Any]) -> list[str]:
    """The symbolic extents of shapes, as JAX prints them, each once."""
    return [*dict.fromkeys(str(n) for x in avals for n in x.shape if not isinstance(n, int))]


def choose(avals: Sequence[Any], *, kernel: str, batch_invariant: bool = False, derived: bool = False) -> Choice | None:
    """XLA's product, for operands of symbolic extents; None where every extent is known.

    Args:
        avals: the operands, anything with a shape.
        kernel, batch_invariant: as for :func:`jaxgemm.choice.select.select`.
        derived: whether differentiation made the product of one asked for by name, so that XLA's may stand in.

    Raises:
        UnsupportedError: an extent is symbolic, and XLA's product may not be taken.
    """
    found = extents(avals)
    if not found:
        return None
    if kernel == "xla":
        return Choice(None, (), 0, "XLA's product was asked for by name", rule=rules.BY_NAME.name)
    why = f"symbolic extents ({', '.join(found)}), and kernels are chosen by extents that are known"
    if derived or (kernel == "auto" and not batch_invariant):
        return Choice(None, (), 0, why, rule=rules.SYMBOLIC.name)
    asked = "batch_invariant" if kernel == "auto" else f"kernel '{kernel}'"
    raise UnsupportedError(f"{asked}: {why}; give numbers for them, or leave the product to XLA (kernel 'auto')")
