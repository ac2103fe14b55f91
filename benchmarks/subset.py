"""Which of a kernel's tiles are worth their code: what smaller sets of them lose against all, by timings there are.

    python benchmarks/subset.py
    python benchmarks/subset.py --cost 16 --cost 8:tile_n=112 --cost 8:tile_n=144 --cost 4:every_eighth=2
    python benchmarks/subset.py --drop tile_m=192 --stop 99 --worst 20
    python benchmarks/subset.py nvidia-h200/regret nvidia-h200/choices

Timings are those of benchmarks/results/<kernel>_configurations.json, which regret.py writes: of the sources that are
named, or of all. Of a product the best time of each tile counts, and a set of tiles loses on it what its best
tile takes longer than the best of all. From the set of all tiles the one goes next without which the others lose least,
for what it costs; then one in the set and one outside change places as long as that loses less. These are bounds from
above: not every configuration of a tile was timed, and where none of a set's was it loses as much as --cap says. An
option that a source is too old to know is 1.

A TILES argument names tiles by values of their options, as tile_m=128,every_eighth=2: all those that have these values.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxgemm.kernels import find_kernel
from jaxgemm.measure import configurations, report
from jaxgemm.measure.configurations import LAUNCH, Table

_HERE = Path(__file__).resolve().parent

Tile = tuple[int, ...]  # values of the options that say what a tile is


class Product(NamedTuple):
    """One product of one source, and the microseconds of the best configuration of each tile that was timed."""

    name: str
    source: str
    us: Mapping[Tile, float]


class Loss(NamedTuple):
    """What a set loses over all products, as parts of the best's time: 0.01 is one per cent."""

    mean: float
    late: float  # the 95th percentile
    worst: float

    def __str__(self) -> str:
        return f"{100 * self.mean:.2f} % on average, 95th percentile {100 * self.late:.1f} %, {100 * self.worst:.0f} %"


def read(table: Table, sources: Sequence[str], options: Sequence[str], least: int, longer: float) -> list[Product]:
    """The products with so many tiles timed or more, the best of which take so many microseconds or longer."""
    found = []
    for product in table.of(*(sources or table.sources)):
        us: dict[Tile, float] = {}
        for config, took in product.timed:
            value = dict(zip(table.options, config, strict=True))
            tile = tuple(value.get(name, 1) for name in options)
            if took is not None:
                us[tile] = min(us.get(tile, math.inf), took)
        if len(us) >= max(1, least) and min(us.values()) >= longer:
            found.append(Product(str(product.case), product.source, us))
    return found


class Subsets:
    """Sets of tiles, by their places in ``tiles``, and what they lose and cost."""

    def __init__(self, products: Sequence[Product], cap: float, cost: Mapping[Tile, float]) -> None:
        self.tiles = sorted({tile for product in products for tile in product.us})
        self.cost = [cost.get(tile, 1.0) for tile in self.tiles]
        us = [[product.us.get(tile, math.inf) for tile in self.tiles] for product in products]
        logs: npt.NDArray[np.float64] = np.log(np.array(us))
        self._late = np.minimum(logs - logs.min(axis=1, keepdims=True), math.log(cap))

    def late(self, chosen: Collection[int]) -> npt.NDArray[np.float64]:
        """Logarithms of what the best of these takes of the best of all, by product."""
        late: npt.NDArray[np.float64] = self._late[:, sorted(chosen)].min(axis=1)
        return late

    def mean(self, chosen: Collection[int]) -> float:
        """The mean of these logarithms, which choices are made by."""
        return float(self.late(chosen).mean())

    def loss(self, chosen: Collection[int]) -> Loss:
        """What they lose, over all products."""
        late = self.late(chosen)
        values = (late.mean(), np.quantile(late, 0.95), late.max())
        return Loss(*(math.expm1(float(x)) for x in values))

    def costs(self, chosen: Iterable[int]) -> float:
        """What they cost together."""
        return sum(self.cost[i] for i in chosen)

    def without_one(self, chosen: frozenset[int], keep: Collection[int]) -> int | None:
        """The tile that is missed least, for its cost; None where all stay."""
        free = [i for i in sorted(chosen) if i not in keep]
        if not free or len(chosen) < 2:
            return None
        now = self.mean(chosen)
        return min(free, key=lambda i: (self.mean(chosen - {i}) - now) / self.cost[i])

    def swapped(self, chosen: frozenset[int], keep: Collection[int], drop: Collection[int]) -> frozenset[int]:
        """Tiles in and out change places, the best two first, while the set loses less and costs no more."""
        while True:
            now = self.mean(chosen)
            others = [i for i in range(len(self.tiles)) if i not in chosen and i not in drop]
            pairs = [(x, y) for x in chosen - set(keep) for y in others if self.cost[y] <= self.cost[x]]
            best = min(((self.mean(chosen - {x} | {y}), x, y) for x, y in pairs), default=None)
            if best is None or best[0] >= now - 1e-12:
                return chosen
            chosen = chosen - {best[1]} | {best[2]}


def matching(tiles: Sequence[Tile], options: Sequence[str], text: str) -> set[int]:
    """The places of those that a TILES argument names; ValueError where that is none of them."""
    asked: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in options or not value.isdigit():
            raise ValueError(f"'{part}' is not OPTION=VALUE with an option of a tile: {', '.join(options)}")
        asked[name] = int(value)
    found = {i for i, x in enumerate(tiles) if all(x[options.index(name)] == asked[name] for name in asked)}
    if not found:
        raise ValueError(f"no tile that was timed has {text}")
    return found


def costs(tiles: Sequence[Tile], options: Sequence[str], texts: Iterable[str]) -> dict[Tile, float]:
    """What each tile costs, by COST or COST:TILES, of which the last that fits a tile holds."""
    found: dict[Tile, float] = {}
    for text in texts:
        cost, colon, which = text.partition(":")
        if not 0 < float(cost) < math.inf:
            raise ValueError(f"a tile's cost is above 0, got {cost}")
        found |= {tiles[i]: float(cost) for i in (matching(tiles, options, which) if colon else range(len(tiles)))}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if nothing was timed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", help="of timings (default all of the table)")
    parser.add_argument("--table", type=Path, help="of configurations (default benchmarks/results')")
    parser.add_argument("--kernel", default="sm90", help="whose tiles (default sm90)")
    parser.add_argument("--tile", help="what a tile is, options by commas (default: all but a launch's)")
    parser.add_argument("--keep", action="append", default=[], metavar="TILES", help="that stay")
    parser.add_argument("--drop", action="append", default=[], metavar="TILES", help="that go first")
    parser.add_argument("--cost", action="append", default=[], metavar="COST[:TILES]", help="of a tile, as in kernels")
    parser.add_argument("--stop", type=float, default=4, help="when the set costs no more than this (default 4)")
    parser.add_argument("--worst", type=int, default=12, help="products to list by what that set loses (default 12)")
    parser.add_argument("--least", type=int, default=6, help="tiles that a product has timings of (default 6)")
    parser.add_argument("--longer", type=float, default=0, help="products of so many microseconds or more (default 0)")
    parser.add_argument("--cap", type=float, default=2, help="most that a product counts, times its best (default 2)")
    asked = parser.parse_args(arguments)
    try:
        if asked.cap <= 1:
            raise ValueError("--cap is above 1")
        known = list(find_kernel(asked.kernel).options)
        options = asked.tile.split(",") if asked.tile else [name for name in known if name not in LAUNCH]
        if unknown := set(options) - set(known):
            raise ValueError(f"kernel '{asked.kernel}' has no option {', '.join(sorted(unknown))}")
        file = asked.table or configurations.default_file(_HERE / "results", asked.kernel)
        table = configurations.load(file, asked.kernel)
        products = read(table, asked.sources, options, asked.least, asked.longer)
        if not products:
            print(f"nothing was timed: no product has configurations of {asked.least} tiles of kernel '{asked.kernel}'")
            return 1
        tiles = sorted({tile for product in products for tile in product.us})
        sets = Subsets(products, asked.cap, costs(tiles, options, asked.cost))
        keep, drop = ({i for text in x for i in matching(tiles, options, text)} for x in (asked.keep, asked.drop))
    except (OSError, KeyError, ValueError) as error:
        parser.error(str(error))
    if keep & drop or len(drop) == len(tiles):
        parser.error("a tile cannot stay and go, and one has to stay")
    names = [" ".join(map(str, tile)) for tile in tiles]
    _print_tiles(products, sets, names, options)
    chosen = _print_removals(sets, names, keep, drop, asked.stop)
    print(f"{len(chosen)} tiles, cost {sets.costs(chosen):g}: {sets.loss(chosen)} at most")
    _print_worst(products, sets, names, chosen, asked.worst)
    return 0


def _print_tiles(products: Sequence[Product], sets: Subsets, names: Sequence[str], options: Sequence[str]) -> None:
    best = [min(x.us, key=x.us.__getitem__) for x in products]
    lines = [
        (name, f"{cost:g}", str(sum(tile in x.us for x in products)), str(best.count(tile)))
        for name, cost, tile in zip(names, sets.cost, sets.tiles, strict=True)
    ]
    print(f"{len(products)} products; tiles by {' '.join(options)}")
    report.print_table("In how many a tile was timed, and best", ("tile", "cost", "timed", "best"), lines)


def _print_removals(
    sets: Subsets, names: Sequence[str], keep: Collection[int], drop: Collection[int], stop: float
) -> frozenset[int]:
    """Prints what goes, down to this cost, and returns what is left."""
    chosen = frozenset(range(len(names))) - set(drop)
    lines: list[tuple[str, ...]] = []

    def line(change: str) -> None:
        figures = (f"{100 * x:.2f}" for x in sets.loss(chosen))
        lines.append((change, str(len(chosen)), f"{sets.costs(chosen):g}", *figures))

    line("all" if not drop else "all but those dropped")
    while sets.costs(chosen) > stop and (gone := sets.without_one(chosen, keep)) is not None:
        before = chosen - {gone}
        chosen = sets.swapped(before, keep, {*drop, gone})
        back = "".join(f"; {names[i]}" for i in sorted(before - chosen))
        instead = "".join(f"; {names[i]}" for i in sorted(chosen - before))
        line(f"without {names[gone]}{back}" + (f" (again with {instead[2:]})" if instead else ""))
    report.print_table("What is lost as tiles go", ("set", "tiles", "cost", "mean %", "95th %", "worst %"), lines)
    print(f"What is left: {'; '.join(names[i] for i in sorted(chosen))}")
    return chosen


def _print_worst(
    products: Sequence[Product], sets: Subsets, names: Sequence[str], chosen: Collection[int], count: int
) -> None:
    late = sets.late(chosen)
    name_of = dict(zip(sets.tiles, names, strict=True))
    left = {sets.tiles[i] for i in chosen}
    lines = []
    for place in np.argsort(-late, kind="stable")[: max(count, 0)]:
        product, lost = products[place], math.expm1(float(late[place]))
        if lost <= 0:
            break
        us, best = min((us, name_of[tile]) for tile, us in product.us.items())
        instead = min(((us, name_of[tile]) for tile, us in product.us.items() if tile in left), default=None)
        other = f"{instead[1]}: {instead[0]:.1f}" if instead else "none timed"
        lines.append((product.name, product.source, f"{best}: {us:.1f}", other, f"{100 * lost:.1f}"))
    report.print_table(
        "Where that loses most", ("product", "source", "best, us", "of the set", "lost %"), lines, left=4
    )


if __name__ == "__main__":
    sys.exit(main())
