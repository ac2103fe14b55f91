"""Batch-invariant products: their configuration depends neither on m nor on the batch."""

from __future__ import annotations

from dataclasses import replace

from jaxgemm import precision as prec
from jaxgemm.choice import rules
from jaxgemm.choice.resolve import Choice, computed, resolve, xla_expects
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device, Kernel, UnsupportedError, configuration, find_kernel
from jaxgemm.problem import Problem

#: Kernels for batch-invariant products, in order of preference: the fastest for their types first.
INVARIANT = ("sm90", "sm80", "shared_pipeline", "register_blocked", "host")
#: A batch-invariant product's configuration is chosen for this number of rows, however many the product has.
INVARIANT_ROWS = 256


def invariant(
    problem: Problem,
    device: Device,
    precision: prec.Precision,
    kernel: str,
    options: tuple[tuple[str, int], ...],
) -> Choice:
    """The kernel and configuration that the product would have with ``INVARIANT_ROWS`` rows and no batch.

    Raises:
        UnsupportedError: the kernel asked for cannot run the product in that configuration; with "auto", no kernel can.
    """
    a, b = problem.a, problem.b
    stand_in = replace(
        problem,
        m=INVARIANT_ROWS,
        batch=(1, 1),
        a=replace(a, transposed=False, ld=max(problem.k, 1), batch_stride=(0, 0)),
        b=replace(b, batch_stride=(0, 0)),
        epilogue=Epilogue(),
    )
    reasons = []
    for name in INVARIANT if kernel == "auto" else (kernel,):
        row = find_kernel(name)
        if kernel == "auto" and _less_exact(row, problem, device, precision):
            continue
        chosen = _pinned(row, options, stand_in, device, precision)
        if isinstance(chosen, Choice):
            free = {name for name, value in row.pins.items() if not value} - dict(options).keys()
            config = tuple(0 if name in free else x for name, x in zip(row.options, chosen.config, strict=False))
            found = resolve(row.name, config, problem, device, precision, alone=True)
            if not isinstance(found, Choice):  # trying another kernel would make the choice depend on m
                raise UnsupportedError(f"batch_invariant: {found}")
            why = f"batch-invariant: chosen for {INVARIANT_ROWS} rows, however many there are"
            theirs = xla_expects(problem, device, precision)
            return replace(found.ours_by(rules.INVARIANT, why, theirs), considered=chosen.considered)
        reasons.append(chosen)
    raise UnsupportedError(f"batch_invariant: {'; '.join(reasons)}")


def _pinned(
    row: Kernel, options: tuple[tuple[str, int], ...], problem: Problem, device: Device, precision: prec.Precision
) -> Choice | str:
    """The kernel with every option fixed that changes the order of sums, or why it cannot run the problem so."""
    if row.batch_invariant:
        return resolve(row.name, configuration(row, options), problem, device, precision, alone=True)
    if not row.pins:
        return f"kernel '{row.name}' does not promise that a row's bits are the same for every m"
    given, held = dict(options), {name: value for name, value in row.pins.items() if value}
    for name, value in held.items():
        if given.get(name, 0) not in (0, value):
            return f"option {name} of kernel '{row.name}' must be {value}, got {given[name]}"
    return resolve(
        row.name, configuration(row, tuple({**given, **held}.items())), problem, device, precision, alone=True
    )


def _less_exact(row: Kernel, problem: Problem, device: Device, precision: prec.Precision) -> bool:
    """Whether ``auto`` passes over a kernel that multiplies 16-bit parts: others are more exact for short sums."""
    asked = computed(row, problem, device, precision)
    planes = isinstance(asked, Problem) and asked.arithmetic == "bf16_x6"
    return planes and not prec.is_algorithm(precision) and problem.k < rules.EXACT_K
