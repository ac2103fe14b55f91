"""What ``auto`` decides by: rules that are read in order, until one's condition holds.

A rule says whether XLA computes a product or a kernel of ours, in one sentence, and names the result file that it was
read off. ``explain`` prints the rule that decided, docs/auto.md lists all of them, and benchmarks/choices.py says what
each of them gains and loses on stored timings.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from jaxgemm import dtypes
from jaxgemm import precision as prec
from jaxgemm.choice.xla_times import unaligned
from jaxgemm.kernels import Device
from jaxgemm.problem import Problem


class Contenders(NamedTuple):
    """Kernels that ``auto`` chooses from, and the compute capabilities, times ten, that they were measured on.

    ``chains``: whether the kernels are exact enough for a ``lax.Precision`` only if XLA's sums are long chains. A
    precision that names an algorithm gets this algorithm for sums of any length.
    """

    oldest: int
    newest: int
    kernels: tuple[str, ...]
    chains: bool = False


#: XLA's sums in fp32 are long chains from EXACT_K terms on, if results make at least EXACT_TILES of XLA's tiles: for
#: fewer tiles XLA splits a sum into many. Products of three parts in bfloat16 have smaller errors than long chains.
EXACT_K, EXACT_TILES, _TILE = 256, 64, 128


def long_chains(problem: Problem) -> bool:
    """Whether XLA's sums in fp32 are long chains. Each group is a product; in the form "sums" it has its share of k."""
    groups = problem.groups
    products = problem.batch[0] if groups else math.prod(problem.batch)
    k = problem.k // max(groups.count, 1) if groups and groups.sums else problem.k
    tiles = products * -(-problem.m // _TILE) * -(-problem.n // _TILE)
    return k >= EXACT_K and tiles >= EXACT_TILES


#: By the types of both operands and an arithmetic of jaxgemm/precision.py. What is not listed was not measured, and is
#: left to XLA.
CONTENDERS: dict[tuple[str, ...], Contenders] = {
    ("bfloat16", "bfloat16", "plain"): Contenders(90, 90, ("sm90", "direct")),
    ("float16", "float16", "plain"): Contenders(90, 90, ("sm90", "direct")),
    ("float32", "float32", "plain"): Contenders(90, 90, ("simt", "gemv")),
    **{
        ("float32", "float32", name): Contenders(90, 90, ("sm90",), name == "bf16_x6")
        for name in ("bf16", "bf16_x3", "bf16_x6", "bf16_x9", "f16_x3")
    },
    **{
        (*pair, "plain"): Contenders(90, 90, ("sm90",))
        for types in (("int8", "uint8"), ("float8_e4m3fn", "float8_e5m2"))
        for pair in itertools.product(types, repeat=2)
    },
}


class Side(enum.Enum):
    """Who computes a product by a rule."""

    OURS = "ours"
    XLA = "XLA"
    FASTER = "the faster"  # by expected times


@dataclass(frozen=True)
class Question:
    """What rules look at.

    Attributes:
        problem, device, precision: what is to be computed, where, and how exactly.
        ours: microseconds that the best of our kernels expects; infinity if it has no cost model.
        theirs: microseconds that XLA's product should take; None if they are not modelled.
        arithmetic: how the best of our kernels multiplies.
    """

    problem: Problem
    device: Device
    precision: prec.Precision = None
    ours: float = math.inf
    theirs: float | None = None
    arithmetic: str = "plain"

    @property
    def dtype(self) -> str:
        """Element type of the first operand, by name."""
        return self.problem.dtypes[0]

    @property
    def operands(self) -> str:
        """Element types of the operands; one name if both have the same type."""
        return " x ".join(dict.fromkeys(self.problem.dtypes[:2]))

    @property
    def arithmetics(self) -> tuple[str, ...]:
        """The arithmetics that the precision allows, the least exact first."""
        return prec.arithmetics(self.precision, dtypes.named(self.dtype))

    @property
    def contenders(self) -> list[Contenders]:
        """The kernels that ``auto`` chooses from, on any device."""
        keys = ((*self.problem.dtypes[:2], arithmetic) for arithmetic in self.arithmetics)
        found = [CONTENDERS[key] for key in keys if key in CONTENDERS]
        return [x for x in found if self.emulated or not x.chains or long_chains(self.problem)]

    @property
    def emulated(self) -> str:
        """The arithmetic that an algorithm's name asks for, other than the plain one; empty if it asks for none."""
        return prec.emulated(self.precision, dtypes.named(self.dtype))

    @property
    def measured(self) -> list[Contenders]:
        """The contenders that were measured on a device of this compute capability."""
        return [x for x in self.contenders if x.oldest <= self.device.arch <= x.newest]

    @property
    def platform(self) -> str:
        """What the program is for: "cuda", "cpu", or another JAX platform."""
        return self.device.platform

    @property
    def capability(self) -> str:
        """The device's compute capability, as in "9.0"."""
        return f"{self.device.arch / 10:.1f}"

    @property
    def is_16bit(self) -> bool:
        """Whether elements of the operands have 16 bits."""
        return dtypes.named(self.dtype).itemsize == 2

    @property
    def is_8bit(self) -> bool:
        """Whether elements of the operands have 8 bits."""
        return dtypes.is_8bit(dtypes.named(self.dtype))

    @property
    def along_k(self) -> bool:
        """Whether both operands lie along k: a (m, k) and b (n, k)."""
        return not self.problem.a.transposed and self.problem.b.transposed

    @property
    def unaligned(self) -> bool:
        """Whether rows of an operand are no multiple of 16 bytes."""
        return unaligned(self.problem)

    @property
    def single(self) -> bool:
        """Whether it is one product, not a batch of them."""
        return self.problem.batch == (1, 1)

    @property
    def k(self) -> int:
        """How long the sums are."""
        return self.problem.k

    @property
    def short(self) -> int:
        """The result's shorter side, rows or columns."""
        return min(self.problem.m, self.problem.n)

    @property
    def long(self) -> int:
        """The result's longer side."""
        return max(self.problem.m, self.problem.n)

    @property
    def activates(self) -> bool:
        """Whether there is an activation that costs XLA's small kernels time."""
        return not self.problem.epilogue.cheap_activation

    def prefers(self, side: Side) -> Side:
        """``side`` itself; if it is ``FASTER``, the side that expects less time."""
        if side is not Side.FASTER:
            return side
        return Side.OURS if self.ours < (math.inf if self.theirs is None else self.theirs) else Side.XLA


@dataclass(frozen=True)
class Reason:
    """Why XLA or a kernel of ours computes a product.

    Attributes:
        name: short and stable, in kebab case.
        says: one sentence; "{q.k}" in it stands for the attribute of a :class:`Question`.
        evidence: the result file, under benchmarks/results, that it was read off; empty if it rests on no measurement.
    """

    name: str
    says: str
    evidence: str = ""


@dataclass(frozen=True)
class Rule(Reason):
    """A reason with the condition under which it decides.

    Attributes:
        side: who computes the product then.
        holds: the condition.
    """

    side: Side = Side.FASTER
    holds: Callable[[Question], bool] = lambda _: True

    def sentence(self, question: Question) -> str:
        """What the rule says of a product."""
        return self.says.format(q=question)


@dataclass(frozen=True)
class Section:
    """Rules for products that have something in common.

    Attributes:
        title: what the products have in common.
        of: whether a product belongs to the section.
        rules: in the order in which they are read.
    """

    title: str
    of: Callable[[Question], bool]
    rules: tuple[Rule, ...]


def first(sections: Iterable[Section], question: Question, without: str = "") -> Rule | None:
    """The first rule whose condition holds, but for the rule named ``without``; None if there is none."""
    for section in sections:
        if section.of(question):
            for rule in section.rules:
                if rule.name != without and rule.holds(question):
                    return rule
    return None


#: Facts that leave a product to XLA whatever our kernels expect.
FACTS = Section(
    "What no kernel of ours is asked for",
    lambda _: True,
    (
        Rule(
            "other-platform",
            "on {q.platform} products are left to XLA",
            side=Side.XLA,
            holds=lambda q: q.platform != "cuda",
        ),
        Rule(
            "other-precision",
            "precision {q.precision} is not one that jaxgemm's kernels compute for {q.dtype} operands",
            side=Side.XLA,
            holds=lambda q: not q.arithmetics,
        ),
        Rule(
            "tf32",
            "fp32 at this precision means tf32 to XLA, and no kernel of ours computes tf32 faster",
            side=Side.XLA,
            holds=lambda q: (
                q.problem.dtypes[:2] == ("float32", "float32")
                and not prec.wants_full_fp32(q.precision)
                and (not q.emulated or q.emulated == "tf32")
            ),
        ),
        Rule(
            "other-type",
            "no kernel of ours is known to be faster for {q.operands}",
            side=Side.XLA,
            holds=lambda q: not q.contenders,
        ),
        Rule(
            "other-chip",
            "no kernel of ours is known to be faster for {q.operands} on compute capability {q.capability}",
            side=Side.XLA,
            holds=lambda q: not q.measured,
        ),
    ),
)

#: Reasons that decide before the rules for Hopper are read, beside the facts.
BY_NAME = Reason("by-name", "asked for by name")
SYMBOLIC = Reason("symbolic-extents", "extents are symbolic, and kernels are chosen by extents that are known")
INVARIANT = Reason(
    "batch-invariant",
    "batch-invariant: chosen for a fixed number of rows; for groups, all tiles add up in one order",
)
DIVIDED = Reason("divided-by-xla", "XLA divides the program by itself, and it cannot divide a kernel's call")
TUNED = Reason("tuned", "this very product was measured on this chip, and jaxgemm/tuning holds what was fastest")
UNFIT = Reason("no-kernel-fits", "no kernel that was measured can run the product, each for its own reason")
#: How a gated pair of products is computed.
GATED_ONE_LAUNCH = Reason(
    "gated-one-launch", "one launch expects to take no longer than two products", "nvidia-h200/gated.json"
)
GATED_COMPOSED = Reason(
    "gated-composed", "two products and what follows them should take less", "nvidia-h200/gated.json"
)
GATED_MISSING = Reason("no-gated-form", "no kernel that may run here computes the pair in one launch")

#: How a product of 8 bits with scales is computed.
SCALED_ONE_LAUNCH = Reason(
    "scaled-one-launch", "one launch multiplies, scales and rounds; jnp would read 32-bit sums from memory"
)
SCALED_COMPOSED = Reason("scaled-composed", "no kernel of ours is known to be faster here; jnp scales a dense product")
SCALED_MISSING = Reason("no-scaled-form", "no kernel that may run here scales what it multiplies")

#: How a grouped product is computed.
GROUPED_ONE_LAUNCH = Reason(
    "grouped-one-launch", "one launch for all groups, unless dense products are modelled and should take less"
)
GROUPED_DENSE = Reason("grouped-dense", "a dense product for each group should take less")
GROUPED_NAMED = Reason(
    "grouped-named-algorithm", "our kernel keeps the error bound of the named algorithm, and XLA's products may not"
)
GROUPED_SHORT_SUMS = Reason(
    "grouped-short-sums",
    "XLA's sums in fp32 are short, and may have smaller errors than sums of 16-bit parts",
    "nvidia-h200/exact.json",
)
GROUPED_NOTHING = Reason("nothing-to-multiply", "there is nothing to multiply, and so no launch of a kernel")
GROUPED_MISSING = Reason("no-grouped-form", "no kernel that may run here computes products of groups")

#: How a list of products of different shapes is computed.
MANY_ONE_LAUNCH = Reason("many-one-launch", "many products share few launches, without comparing expected times")
MANY_FEW = Reason("few-products", "fewer than two of the products have anything to multiply")
MANY_MISSING = Reason("no-many-form", "no kernel that may run here has a form for many products")

#: Reasons that leave a product to XLA whatever its extents, and so its part on each of several devices as well.
SETTLED = frozenset(reason.name for reason in (*FACTS.rules, BY_NAME, SYMBOLIC))

#: All reasons that are not rules: whether they hold, only the code that gives them knows.
REASONS = (
    *(BY_NAME, SYMBOLIC, DIVIDED, INVARIANT, TUNED, UNFIT, GATED_ONE_LAUNCH, GATED_COMPOSED, GATED_MISSING),
    *(SCALED_ONE_LAUNCH, SCALED_COMPOSED, SCALED_MISSING),
    *(GROUPED_ONE_LAUNCH, GROUPED_DENSE, GROUPED_NAMED, GROUPED_SHORT_SUMS, GROUPED_NOTHING, GROUPED_MISSING),
    *(MANY_ONE_LAUNCH, MANY_FEW, MANY_MISSING),
)
