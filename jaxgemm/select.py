"""Which kernel runs a problem: a pure function of the problem, its precision and the device.

``auto`` takes one of our kernels only where it is known to be at least as fast as XLA's own product, by a
model that measurements have checked (benchmarks/results); everything else goes to XLA, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from jaxgemm import precision as prec
from jaxgemm._runtime import ffi
from jaxgemm.dtypes import KERNEL_DTYPES
from jaxgemm.kernels import Device, Kernel, UnsupportedError, find_kernel
from jaxgemm.problem import Problem

#: The largest workspace a kernel may ask XLA for, in bytes.
MAX_WORKSPACE = 1 << 30


@dataclass(frozen=True)
class Choice:
    """What runs a problem.

    Attributes:
        kernel: a row of the table, or None for XLA's own product.
        config: values for the kernel's options, in their order; empty: the kernel's own defaults.
        workspace: bytes of scratch memory that the call asks XLA for.
        why: one sentence.
    """

    kernel: Kernel | None
    config: tuple[int, ...]
    workspace: int
    why: str


def check(kernel: Kernel, config: tuple[int, ...], problem: Problem, device: Device) -> tuple[str, int]:
    """(why the kernel cannot run the problem, or "", and its workspace bytes), by the compiled constraints."""
    if kernel.platform != device.platform:
        return f"kernel '{kernel.name}' runs on {kernel.platform}, the program is for {device.platform}", 0
    if any(name not in KERNEL_DTYPES for name in problem.dtypes):
        a, b, d = problem.dtypes
        supported = ", ".join(f"{t[0]} x {t[1]} -> {t[2]}" for t in kernel.types)
        return f"kernel '{kernel.name}' got {a} x {b} -> {d}; it supports {supported}", 0
    e = problem.epilogue
    reason, workspace = ffi.check(
        kernel=kernel.name,
        dims=[problem.m, problem.n, problem.k, *problem.batch],
        a=list(problem.a.wire()),
        b=list(problem.b.wire()),
        alpha=e.alpha,
        beta=e.beta,
        activation=e.activation or "none",
        config=list(config),
        has_bias=e.has_bias,
        dtypes=list(problem.dtypes),
        arch=device.arch,
    )
    return reason, workspace


def select(
    problem: Problem,
    device: Device,
    *,
    precision: prec.Precision = None,
    kernel: str = "auto",
    options: tuple[tuple[str, int], ...] = (),
) -> Choice:
    """The kernel for a problem.

    Args:
        problem: what is to be computed.
        device: where.
        precision: canonical precision (:func:`jaxgemm.precision.canonical`).
        kernel: "auto", "xla", or a name from the table.
        options: (name, value) pairs of the kernel's options.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run the problem.
    """
    if kernel == "xla":
        return Choice(None, (), 0, "XLA's product was asked for by name")
    if kernel == "auto":
        return _automatic(problem, device, precision)
    row = find_kernel(kernel)
    config = configuration(row, options)
    reason = prec.refusal(precision, np.dtype(jnp.dtype(problem.dtypes[0])))
    workspace = 0
    if not reason:
        reason, workspace = check(row, config, problem, device)
    if not reason and workspace > MAX_WORKSPACE:
        reason = f"kernel '{kernel}' needs {workspace} bytes of workspace, the limit is {MAX_WORKSPACE}"
    if reason:
        raise UnsupportedError(reason)
    return Choice(row, config, workspace, "asked for by name")


def configuration(kernel: Kernel, options: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """Option values in the table's order; ValueError for an option the kernel does not have."""
    if not options:
        return ()
    given = dict(options)
    unknown = sorted(set(given) - set(kernel.options))
    if unknown:
        known = ", ".join(kernel.options) or "none"
        raise ValueError(f"kernel '{kernel.name}' has no option {', '.join(unknown)}; its options: {known}")
    return tuple(given.get(name, values[0] if values else 0) for name, values in kernel.options.items())


def _automatic(problem: Problem, device: Device, precision: prec.Precision) -> Choice:
    if device.platform != "cuda":
        return Choice(None, (), 0, f"on {device.platform} XLA's own product is the fastest there is")
    dtype = problem.dtypes[0]
    if reason := prec.refusal(precision, np.dtype(jnp.dtype(dtype))):
        return Choice(None, (), 0, reason)
    if dtype == "float32" and not prec.wants_full_fp32(precision):
        return Choice(
            None,
            (),
            0,
            "fp32 at this precision means tf32 to XLA, and no kernel of ours computes tf32 faster",
        )
    return Choice(None, (), 0, f"no kernel of ours is known to be faster for {dtype}")
