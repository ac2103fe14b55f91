"""The table of timed configurations: what each configuration of a kernel took on each product.

Choices of tiles, fits of cost models and their losses are judged by it. benchmarks/results has one for a kernel, as
sm90_configurations.json, which benchmarks/regret.py writes and fit.py and subset.py read. A line of the file is a
product of one source, a run of regret.py:

    ["nvidia-h200/fit", "512x512x512 NN bf16", "4/2=5.1 0/8,2,1,1,4=5.6"]

Before "/" stands the number of a tile among the head's `tiles`, each the values of `tile_options`; behind it the values
of `launch_options`, less those at the end that are 1; behind "=" microseconds, or "-" where it did not run. regret.py
writes the configuration that the cost model chose first. Options that a source is too old to know are 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxgemm.kernels import find_kernel
from jaxgemm.measure import report
from jaxgemm.measure.case import Case, parse_case

Config = tuple[int, ...]

#: Options that say how tiles are launched, the rarest last. All others of a kernel say what a tile is.
LAUNCH = ("walk_height", "swap", "cluster_n", "cluster_m", "split_k", "grid", "reduction", "slabs", "tail")


@dataclass(frozen=True)
class Product:
    """One product of one source.

    Attributes:
        source: device and run, as "nvidia-h200/fit".
        case: the product.
        timed: (configuration, microseconds) by the kernel's options in their order; None where it did not run.
    """

    source: str
    case: Case
    timed: tuple[tuple[Config, float | None], ...]

    @property
    def loss(self) -> float | None:
        """What the model's choice took over the best; None where a configuration did not run."""
        us = [us for _, us in self.timed if us]
        return us[0] / min(us) if us and len(us) == len(self.timed) else None


@dataclass(frozen=True)
class Table:
    """Products of one kernel's configurations, and what their sources were measured with.

    Attributes:
        kernel: whose configurations.
        options: names of the configurations' values.
        sources: by name, what it was measured with.
        products: in the order of the file.
    """

    kernel: str
    options: tuple[str, ...]
    sources: Mapping[str, dict[str, Any]]
    products: tuple[Product, ...]

    def of(self, *sources: str) -> list[Product]:
        """The products of some sources; ValueError for one that is not there."""
        if unknown := set(sources) - set(self.sources):
            raise ValueError(f"no source {', '.join(sorted(unknown))}; there are {', '.join(self.sources)}")
        return [product for source in sources for product in self.products if product.source == source]


def default_file(results: Path, kernel: str) -> Path:
    """Where a folder of results has the table of a kernel."""
    return results / f"{kernel}_configurations.json"


def load(file: Path, kernel: str | None = None) -> Table:
    """The table in a file.

    Raises:
        OSError: there is no such file.
        ValueError: it is no table, or one of another kernel.
    """
    content = report.load(file)
    try:
        name, tiles = content["kernel"], content["tiles"]
        tile_options, launch = content["tile_options"], content["launch_options"]
        options = tuple(x for x in find_kernel(name).options if x in (*tile_options, *launch))
        options += tuple(x for x in (*tile_options, *launch) if x not in options)
        products = [
            Product(
                source,
                parse_case(problem),
                tuple(_read(text, tiles, tile_options, launch, options) for text in timed.split()),
            )
            for source, problem, timed in content["rows"]
        ]
        table = Table(name, options, content["sources"], tuple(products))
    except (KeyError, IndexError, AttributeError) as error:
        raise ValueError(f"{file} is no table of configurations: {error!r}") from error
    if kernel not in (None, name):
        raise ValueError(f"{file} has configurations of kernel '{name}', not of '{kernel}'")
    return table


def _read(
    text: str, tiles: Sequence[str], tile_options: Sequence[str], launch: Sequence[str], options: Sequence[str]
) -> tuple[Config, float | None]:
    config, _, us = text.partition("=")
    tile, _, rest = config.partition("/")
    values = dict(zip(tile_options, map(int, tiles[int(tile)].split()), strict=True))
    values |= dict.fromkeys(launch, 1) | dict(zip(launch, map(int, filter(None, rest.split(","))), strict=False))
    return tuple(values[name] for name in options), None if us == "-" else float(us)


def write(file: Path, table: Table) -> None:
    """Write a table, in the form that this module's head describes."""
    launch = [name for name in LAUNCH if name in table.options]
    tile_options = [name for name in table.options if name not in launch]
    tiles: dict[str, int] = {}
    rows = []
    for product in table.products:
        timed = []
        for config, us in product.timed:
            value = dict(zip(table.options, config, strict=True))
            tile = tiles.setdefault(" ".join(str(value[name]) for name in tile_options), len(tiles))
            rest = [value[name] for name in launch]
            while rest and rest[-1] == 1:
                rest.pop()
            timed.append(f"{tile}/{','.join(map(str, rest))}={'-' if us is None else us}")
        rows.append((product.source, str(product.case), " ".join(timed)))
    head = {"kernel": table.kernel, "tile_options": tile_options, "launch_options": launch, "tiles": list(tiles)}
    report.write(file, {**head, "sources": dict(table.sources), "rows": rows})


def renewed(file: Path, kernel: str, source: str, about: dict[str, Any], products: Iterable[Product]) -> Table:
    """The table in a file, if there is one, with these products of a source in place of those that it had of it."""
    options = tuple(find_kernel(kernel).options)
    sources: dict[str, dict[str, Any]] = {}
    kept: tuple[Product, ...] = ()
    if file.exists():
        before = load(file, kernel)
        sources |= before.sources
        kept = tuple(
            Product(x.source, x.case, tuple((_with(options, before.options, config), us) for config, us in x.timed))
            for x in before.products
            if x.source != source
        )
    return Table(kernel, options, {**sources, source: about}, (*kept, *products))


def _with(options: Sequence[str], known: Sequence[str], config: Config) -> Config:
    """A configuration by these options, of which those that it does not know are 1."""
    value = dict(zip(known, config, strict=True))
    return tuple(value.get(name, 1) for name in options)
