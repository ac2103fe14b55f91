"""What the shape of a rung implies: operations a byte, shared memory, registers, and how many blocks fit.

Nothing here is measured. tests/kernels/test_ladder.py holds it against the compiled code: its shared memory, and its
registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
        item: bytes of an operand's element.
        staged: whether the block's tiles pass through its threads' registers on their way to shared memory.
        launched: whether a launch asks for the shared memory, which is more than compiled code may declare.
    """

    tile: tuple[int, int]
    step: int
    threads: int
    results: int
    operands: int
    registers: int
    shared: tuple[tuple[int, int, int], ...] = ()
    item: int = 4
    staged: bool = True
    launched: bool = False

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


_WIDE = (16, 128, 4)  # a tile of B, 16 of k
_AT = (16, 132, 4)  # one of A, transposed and padded
_WMMA_STAGE = (4, 256, 4)  # one 16 x 16 tile of results a warp

_MMA_STAGE = ((128, 32, 2), (128, 32, 2))
_WGMMA_STAGE = ((128, 64, 2), (256, 64, 2), (2, 1, 8))  # with two barriers
_ALIGNMENT = ((1, 1024, 1),)  # until the first stage

RUNGS = {
    "naive": Rung((1, 1), 1, 256, 1, 2, 48, staged=False),
    "coalesced": Rung((1, 1), 1, 1024, 1, 2, 32, staged=False),
    "tiled": Rung((32, 32), 32, 1024, 1, 2, 32, ((32, 36, 4), (32, 33, 4))),
    "coarse_1d": Rung((64, 64), 8, 512, 8, 9, 64, ((64, 8, 4), (8, 64, 4))),
    "register_blocked": Rung((64, 64), 16, 256, 16, 8, 64, ((64, 20, 4), (16, 64, 4))),
    "coarse_2d": Rung((128, 128), 16, 256, 64, 16, 128, ((128, 16, 4), _WIDE)),
    "coarse_2d_vec": Rung((128, 128), 16, 256, 64, 16, 128, (_AT, _WIDE)),
    "vec4_global": Rung((4, 4), 4, 256, 16, 32, 80, staged=False),
    "vec4_shared": Rung((128, 128), 16, 256, 64, 40, 128, ((128, 20, 4), _WIDE)),
    "vec4_shared_at": Rung((128, 128), 16, 256, 64, 16, 128, (_AT, _WIDE)),
    "fragment_pipeline": Rung((128, 128), 16, 256, 64, 32, 128, (_AT, _WIDE)),
    "shared_pipeline": Rung((128, 128), 16, 256, 64, 32, 128, (_AT, _WIDE) * 2),
    "warp_tiled": Rung((128, 128), 8, 256, 64, 32, 128, ((8, 132, 4), (8, 128, 4)) * 2),
    "outer_product": Rung((24, 512), 1, 128, 0, 56, 128, ((24, 512, 4),), staged=False),
    "wmma_tf32": Rung((64, 64), 8, 128, 32, 16, 96, ((64, 12, 4), (8, 72, 4), _WMMA_STAGE)),
    "wmma_f16": Rung((64, 64), 16, 128, 32, 16, 64, ((64, 24, 2), (16, 72, 2), _WMMA_STAGE), item=2),
    "wmma": Rung((16, 16), 16, 512, 8, 8, 64, ((16, 256, 4),), item=2, staged=False),
    "mma_sync": Rung((128, 128), 32, 128, 128, 64, 256, _MMA_STAGE * 3, item=2, staged=False),
    "wgmma_tma": Rung(
        (128, 256), 64, 288, 128, 0, 160, _WGMMA_STAGE * 4 + _ALIGNMENT, item=2, staged=False, launched=True
    ),
}
