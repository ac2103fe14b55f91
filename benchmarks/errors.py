"""Errors of float32 products by precision, ours beside XLA's: python benchmarks/errors.py

    python benchmarks/errors.py --k 512,1024 --seed 1
    python benchmarks/errors.py --m 8 --n 16 --k 64 --results /tmp/results
    python benchmarks/errors.py --sizes 512x512,1024x1024 --k 256,512,1024

Every precision computes the same products of five kinds of data, drawn in float64 and rounded to float32, and is held
to float64. `error` is the difference over the exact product, in the Frobenius norm; `worst` is an element's difference
over its sum of |a||b|, at most. Of ours `sm90` computes what has planes, `simt` F32_F32_F32, and `auto` "highest"; on a
CPU `host` computes what it can. TF32_TF32_F32_X3 is of scaled parts, also where BF16_BF16_F32_X6 would be faster. A
program that does not run has a message instead of figures. Results go to benchmarks/results/<device>/errors.json,
written anew after each k. Last it says from which k on BF16_BF16_F32_X6 has no larger error than XLA's product in fp32,
for m x n results. XLA splits sums of few results, and has smaller errors then. So --sizes compares these two alone, for
results of several sizes, and writes exact.json: EXACT_K and EXACT_TILES of jaxgemm/choice/rules.py are read off that.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from jaxgemm.choice.resolve import least_exact
from jaxgemm.choice.rules import EXACT_K
from jaxgemm.measure import provenance, report
from jaxgemm.measure.bench import chosen_kernel
from jaxgemm.measure.case import ALGORITHMS, Case, relative_error
from jaxgemm.measure.data import KINDS as DRAWN
from jaxgemm.measure.data import Array
from jaxgemm.tuning import slug

_HERE = Path(__file__).resolve().parent

K = (64, 256, 512, 1024, 4096, 16384, 131072)
PRECISIONS = ("highest", *ALGORITHMS)
OURS, XLA = "jaxgemm", "XLA"
SGEMM, _EXACT = "F32_F32_F32", "BF16_BF16_F32_X6"

Row = dict[str, Any]


# --- Data ---

#: Of all kinds those whose numbers are mostly of their kind.
KINDS = tuple(name for name in DRAWN if name != "one tiny value")


class Data(NamedTuple):
    """Operands, and of the exact product each element and its sum of |a||b|."""

    operands: tuple[npt.NDArray[Any], npt.NDArray[Any]]
    exact: Array
    magnitude: Array


def draw(kind: str, m: int, n: int, k: int, seed: int, dtype: npt.DTypeLike = np.float32) -> Data:
    """Operands rounded to float32, then to ``dtype``; the same for the same arguments."""
    rng = np.random.default_rng([seed, k, KINDS.index(kind)])
    a, b = (x.astype(np.float32).astype(dtype) for x in DRAWN[kind](rng, m, n, k))
    wide = a.astype(np.float64), b.astype(np.float64)
    return Data((a, b), wide[0] @ wide[1], abs(wide[0]) @ abs(wide[1]))


# --- Programs ---


class Form(NamedTuple):
    """Who computes a precision, and the kernel of ours that is asked for."""

    precision: str
    side: str
    kernel: str = ""


def forms(platform: str) -> list[Form]:
    """XLA's first, as they take longest to compile."""
    by_name = {"highest": "auto", SGEMM: "simt"}
    ours = [Form(x, OURS, "host" if platform == "cpu" else by_name.get(x, "sm90")) for x in PRECISIONS]
    return [*(Form(x, XLA) for x in PRECISIONS), *ours]


class Compiled(NamedTuple):
    """A form's program for one k, or why there is none; the kernel that runs."""

    program: Any
    kernel: str
    message: str = ""


def described(error: Exception) -> str:
    """The first line of an exception, for a row."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:300]


def compiled(form: Form, m: int, n: int, k: int) -> Compiled:
    """A form's program, for all kinds of data."""
    case = Case(m, n, k, precision=form.precision)
    if not form.kernel:
        return compile_for(case.operands, case.xla, "")
    return compile_for(case.operands, partial(case.ours, kernel=form.kernel), chosen_kernel(case, form.kernel, {}))


def compile_for(operands: Sequence[jax.ShapeDtypeStruct], function: Callable[..., Any], kernel: str) -> Compiled:
    """A function's program for operands of these types; ``kernel``: the one that runs."""
    try:
        return Compiled(jax.jit(function).lower(*operands).compile(), kernel)
    except Exception as error:  # the others may still run
        return Compiled(None, kernel, described(error))


def figures(of: Compiled, operands: Sequence[jax.Array], data: Data) -> Row:
    """Both errors, or a message."""
    if of.program is None:
        return {"message": of.message}
    try:
        got = np.asarray(of.program(*operands), np.float64)
    except Exception as error:
        return {"message": described(error)}
    if not np.isfinite(got).all():
        return {"message": "the result is not finite"}
    return {"error": relative_error(got, data.exact), "worst": float(np.max(abs(got - data.exact) / data.magnitude))}


def measure(
    extents: tuple[int, int], options: argparse.Namespace, asked: Sequence[Form], step: Callable[[str], None]
) -> Iterator[list[Row]]:
    """Rows of one k after the other: one for each form and kind of data. Programs are compiled side by side."""
    with ThreadPoolExecutor(os.cpu_count()) as compiling, ThreadPoolExecutor(len(KINDS)) as drawing:
        drawn: dict[tuple[int, str], Future[Data]] = {}
        programs: dict[tuple[int, Form], Future[Compiled]] = {}
        for k in options.k:
            drawn |= {(k, kind): drawing.submit(draw, kind, *extents, k, options.seed) for kind in KINDS}
            programs |= {(k, form): compiling.submit(compiled, form, *extents, k) for form in asked}
        for k in options.k:
            data = {kind: drawn.pop((k, kind)).result() for kind in KINDS}
            operands = {kind: jax.device_put(x.operands) for kind, x in data.items()}
            rows = []
            for form in asked:
                step(f"k = {k}, {form.precision} by {form.side}")
                of = programs.pop((k, form)).result()
                about = {"precision": form.precision, "side": form.side, "kernel": of.kernel}
                rows += [{**about, "data": x, "k": k, **figures(of, operands[x], data[x])} for x in KINDS]
            yield rows


# --- What they say ---


def ratios(rows: Sequence[Row], sgemm: str = SGEMM) -> dict[str, dict[int, float | None]]:
    """By kind of data and k: the error of our planes over that of XLA's product in fp32."""
    found = {(x["precision"], x["side"], x["data"], x["k"]): x.get("error") for x in rows}
    out: dict[str, dict[int, float | None]] = {kind: {} for kind in KINDS}
    for kind, k in dict.fromkeys((x["data"], x["k"]) for x in rows):
        ours, theirs = found.get((_EXACT, OURS, kind, k)), found.get((sgemm, XLA, kind, k))
        out[kind][k] = None if ours is None or theirs is None else ours / theirs if theirs else float(ours > 0)
    return out


def exact_from(rows: Sequence[Row], sgemm: str = SGEMM) -> int | None:
    """From which measured k on these are at most 1 for all kinds of data; None if that cannot be said of any."""
    by_k: dict[int, list[float | None]] = {}
    for of_kind in ratios(rows, sgemm).values():
        for k, x in of_kind.items():
            by_k.setdefault(k, []).append(x)
    least = None
    for k in sorted(by_k, reverse=True):
        if not all(x is not None and x <= 1 for x in by_k[k]):
            break
        least = k
    return least


def _table(title: str, rows: Sequence[Row], cell: Callable[[list[Row]], str], heads: Sequence[str]) -> None:
    """A line for each of what rows have under `heads`, a column for each k."""
    ks = list(dict.fromkeys(row["k"] for row in rows))
    cells: dict[tuple[str, ...], dict[int, list[Row]]] = {}
    for row in rows:
        cells.setdefault(tuple(row[x] for x in heads), {}).setdefault(row["k"], []).append(row)
    lines = [[*key, *(cell(of.get(k, [])) for k in ks)] for key, of in cells.items()]
    report.print_table(title, [*heads, *(f"k {k}" for k in ks)], lines, left=len(heads))


def _most(name: str) -> Callable[[list[Row]], str]:
    def cell(rows: list[Row]) -> str:
        known = [row[name] for row in rows if name in row]
        return f"{max(known):.1e}" if known else "-"

    return cell


def show(rows: Sequence[Row]) -> None:
    """The tables, what did not run, and the k from which on planes are exact."""
    ran = [row for row in sorted(rows, key=lambda x: PRECISIONS.index(x["precision"])) if "message" not in row]
    for kind in KINDS:
        of = [row for row in ran if row["data"] == kind]
        _table(f"{kind}: error in the Frobenius norm", of, _most("error"), ("precision", "side"))
    _table("All data: an element's error over its sum of |a||b|, at most", ran, _most("worst"), ("precision", "side"))
    taken: dict[str, list[int]] = {}
    for row in rows:
        if row["precision"] == "highest" and row["side"] == OURS and row["data"] == "normal":
            taken.setdefault(row["kernel"], []).append(row["k"])
    for kernel, at in taken.items():
        print(f"highest is computed by {kernel or 'no kernel'} at k = {', '.join(map(str, at))}")
    messages: dict[str, dict[int, None]] = {}
    for row in rows:
        if "message" in row:
            messages.setdefault(f"{row['precision']} by {row['side']}: {row['message']}", {})[row["k"]] = None
    for message, at_k in messages.items():
        print(f"{message} (k = {', '.join(map(str, at_k))})")
    for sgemm in (SGEMM, "highest"):
        of_planes = ratios(rows, sgemm)
        if all(x is None for of in of_planes.values() for x in of.values()):
            print(f"{_EXACT} by {OURS} and {sgemm} by {XLA} did not both run, so their errors are not compared.")
            continue
        known = [
            {"data": kind, "k": k, "ratio": x} for kind, of in of_planes.items() for k, x in of.items() if x is not None
        ]
        title = f"Error of {_EXACT} by {OURS} over that of {sgemm} by {XLA}"
        _table(title, known, lambda x: f"{x[0]['ratio']:.2f}" if x else "-", ("data",))
        least = exact_from(rows, sgemm)
        print(
            f"At most 1 for all data: {'at no k' if least is None else f'from k = {least} on'}. EXACT_K is {EXACT_K}."
        )


# --- The command line ---

HOW = "against float64; error: in the Frobenius norm, worst: of an element over its sum of |a||b|, at most"


def parser(description: str | None, ks: Sequence[int]) -> argparse.ArgumentParser:
    """The arguments that say which products to measure, by default of these k, and where results go."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--k", type=_extents, default=ks, help=f"with commas (default {','.join(map(str, ks))})")
    found.add_argument("--m", type=_extent, default=256, help="rows of results (default 256)")
    found.add_argument("--n", type=_extent, default=256, help="columns of results (default 256)")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--results", type=Path, default=_HERE / "results", help="default benchmarks/results")
    return found


def document(
    suite: str, options: argparse.Namespace, how: str = HOW, given: Sequence[str] = ("m", "n", "seed")
) -> tuple[Path, dict[str, Any]]:
    """A suite's file, and what stands there beside the rows: ``given`` names arguments."""
    device = jax.devices()[0]
    about = {**provenance.record(device), "suite": suite, **{x: getattr(options, x) for x in given}, "how": how}
    return options.results / slug(report.device_name(device)) / f"{suite}.json", about


def _extent(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected an integer of at least 2")
    return int(text)


def _extents(text: str) -> list[int]:
    return sorted({_extent(x) for x in text.split(",")})


def _sizes(text: str) -> list[tuple[int, int]]:
    found = [tuple(_extent(x) for x in size.split("x")) for size in text.split(",")]
    if any(len(size) != 2 for size in found):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected sizes like 512x1024")
    return [(m, n) for m, n in found]


def _exact(options: argparse.Namespace) -> int:
    """Measures and writes the largest ratio of our planes' error to that of XLA's product in fp32, by size and k."""
    asked = [x for x in forms(jax.default_backend()) if (x.precision, x.side) in ((SGEMM, XLA), (_EXACT, OURS))]
    how = f"error of {_EXACT} by {OURS} over that of {SGEMM} by {XLA}, in the Frobenius norm, by kind of data"
    file, about = document("exact", options, how, ("seed",))
    rows: list[Row] = []
    with report.progress(len(options.sizes) * len(options.k) * len(asked), "errors") as step:
        for m, n in options.sizes:
            for each in measure((m, n), options, asked, step):
                k = each[0]["k"]
                found = {kind: x and round(x, 3) for kind, of in ratios(each).items() for x in [of[k]]}
                rows.append({"m": m, "n": n, "k": k, "ratios": found})
                report.write(file, {**about, "rows": rows})
    lines = [[f"{x['m']}x{x['n']}", str(x["k"]), *map(str, x["ratios"].values())] for x in rows]
    report.print_table(how, ["size", "k", *KINDS], lines, left=1)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile, measure, write and print."""
    asked_for = parser(__doc__, K)
    asked_for.add_argument("--sizes", type=_sizes, help="of results, with commas; of which only exact.json is made")
    options = asked_for.parse_args(arguments)
    if options.sizes:
        return _exact(options)
    file, about = document("errors", options)
    asked = forms(jax.default_backend())
    rows: list[Row] = []
    with report.progress(len(options.k) * len(asked), "errors") as step, least_exact():
        for found in measure((options.m, options.n), options, asked, step):
            rows += found
            report.write(file, {**about, "rows": rows})
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
