"""What the shape of a rung implies: operations a byte, shared memory, registers, and how many blocks fit.

The shape is told at the head of the rung's source. Nothing here is measured. tests/kernels/test_ladder.py holds it
against the compiled code: its shared memory, and its registers.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp

from jaxgemm.dtypes import ELEMENT_TYPES
from jaxgemm.kernels import Kernel, kernels

SOURCES = Path(__file__).resolve().parents[2] / "ffi/cuda/ladder"

# A multiprocessor of compute capability 9.0.
THREADS, REGISTERS, PARTITIONS = 2048, 65536, 4
SHARED = 228 << 10  # bytes, of which every block takes what it declares and one KB


@dataclass(frozen=True)
class Rung:
    """The shape of a kernel.

    Attributes:
        tile: (m, n) of D whose operands are read once: the block's, or a warp's or thread's where nothing is shared.
        step: how far along k at a time.
        threads: of a block.
        results: sums that a thread keeps in registers.
        operands: registers of a thread for what it multiplies.
        registers: all of a thread's, as a multiprocessor allots them: in eights.
        shared: (lines, elements from one line to the next, bytes an element) of each array in shared memory.
        summary: what the row says it is.
        types: of a, b and d that the budget is of: the row's first whose results are f32.
        arithmetic: what the operands' type makes it, in which the rung's page gives its speed.
        staged: whether the block's tiles pass through its threads' registers on their way to shared memory.
        launched: whether a launch asks for the shared memory, which is more than compiled code may declare.
        shows: by operand type, instructions that its machine code must have.
    """

    tile: tuple[int, int]
    step: int
    threads: int
    results: int
    operands: int
    registers: int
    shared: tuple[tuple[int, int, int], ...]
    summary: str
    types: tuple[str, ...]
    arithmetic: str
    staged: bool
    launched: bool
    shows: dict[str, tuple[str, ...]]

    @property
    def item(self) -> int:
        """Bytes of an operand's element."""
        return jnp.dtype(self.types[0]).itemsize

    @property
    def intensity(self) -> float:
        """Floating-point operations for each byte that is read from global memory."""
        m, n = self.tile
        return 2 * m * n / (self.item * (m + n))

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return sum(math.prod(array) for array in self.shared)

    @property
    def in_flight(self) -> int:
        """Registers of a thread for the tiles on their way to shared memory."""
        return sum(self.tile) * self.step * self.item // (4 * self.threads) if self.staged else 0

    @property
    def blocks(self) -> int:
        """How many blocks a multiprocessor holds."""
        warps = PARTITIONS * (REGISTERS // PARTITIONS // (32 * self.registers))
        return min(warps * 32 // self.threads, THREADS // self.threads, SHARED // (self.shared_bytes + 1024))

    @property
    def occupancy(self) -> float:
        """The share of a multiprocessor's threads that are there when it is full."""
        return self.blocks * self.threads / THREADS


def read(row: Kernel) -> Rung:
    """The shape that the last paragraph at the head of a rung's source tells, a word and its value a line.

    tile:       m x n x k: the piece of D whose operands are read once, and how far along k at a time.
    threads:    of a block.
    registers:  all that a multiprocessor allots to a thread: those for its sums, those for operands.
    tiles:      "pass through registers", where the block's do on their way to shared memory. Else absent.
    stages:     how often there is what the next line lists. Absent: once.
    shared:     lines x elements from one to the next x bytes an element, of each array in shared memory. Absent: none.
    launched:   bytes that align the first stage, where a launch asks for the memory. Else absent.
    shows:      operand type and the instructions that its code must have, for as many types as one likes.
    """
    head = (SOURCES / f"{row.name}.cu").read_text().partition("#include")[0]
    said = dict(re.findall(r"^//   (\w+) +(\S.*)$", head.rpartition("\n//\n")[2], re.M))
    missing = {"tile", "threads", "registers", "shows"} - said.keys()
    unknown = said.keys() - {"tile", "threads", "registers", "tiles", "stages", "shared", "launched", "shows"}
    if missing or unknown:
        raise ValueError(f"{row.name}.cu: the head lacks {sorted(missing)}, and has {sorted(unknown)} too many")
    m, n, step = _numbers(said["tile"])
    registers, results, operands = _numbers(said["registers"])
    arrays = tuple(_numbers(array) for array in said["shared"].split(", ")) if "shared" in said else ()
    aligning = ((1, 1, int(said["launched"])),) if "launched" in said else ()
    types = next(types for types in row.types if types[2] == "float32")
    return Rung(
        (m, n),
        step,
        int(said["threads"]),
        results,
        operands,
        registers,
        arrays * int(said.get("stages", 1)) + aligning,
        row.summary,
        types[:3],
        "tf32" if row.tf32 and types[0] == "float32" else ELEMENT_TYPES[types[0]].short,
        staged="tiles" in said,
        launched="launched" in said,
        shows={dtype: tuple(names) for dtype, *names in map(str.split, said["shows"].split(";"))},
    )


def _numbers(text: str) -> tuple[int, int, int]:
    first, second, third = map(int, re.findall(r"\d+", text))
    return first, second, third


#: In the order of the climb.
RUNGS = {row.name: read(row) for row in kernels() if row.family == "ladder"}
