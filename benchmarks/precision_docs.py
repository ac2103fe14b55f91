"""Writes docs/precision.md, with what errors.py, errors_fp8.py, fits.py and suite `precisions` found.

python benchmarks/precision_docs.py
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import jaxgemm
from jaxgemm.choice.rules import EXACT_K, EXACT_TILES
from jaxgemm.measure import report
from jaxgemm.measure.case import parse_case
from jaxgemm.precision import ARITHMETICS, arithmetics, canonical

_HERE = Path(__file__).resolve().parent
sys.path += [str(_HERE), str(_HERE / "support")]

import errors  # noqa: E402
import fits  # noqa: E402
from errors import PRECISIONS  # noqa: E402
from performance import markdown, when  # noqa: E402
from solvers import FITS  # noqa: E402

RESULTS = _HERE / "results"
PAGE = _HERE.parent / "docs/precision.md"
Row = dict[str, Any]

#: What a precision keeps of its operands and products.
KEEPS = {
    "highest": "24 bits",
    "F32_F32_F32": "24 bits; every multiply-add is rounded",
    "BF16_BF16_F32": "8 bits",
    "BF16_BF16_F32_X3": "16 bits",
    "BF16_BF16_F32_X6": "24 bits, without the three smallest products of parts",
    "BF16_BF16_F32_X9": "24 bits, and all products of parts",
    "TF32_TF32_F32_X3": "22 bits, as two parts in TF32 do",
}
_HIGHEST = "what should be fastest of `bf16_x6`, `plain` and XLA's product"
#: The row of JAX's default precision, which promises no bound.
_DEFAULT = ("`default`", "XLA's product in TF32; `sm90` by name: `bf16_x3`", "11 bits, or 16 by name", "-")
_K = 4096
_X6 = "BF16_BF16_F32_X6"
#: What a case that names no data has.
_IN_FLOAT32 = "in float32"

_TEXT = """<!-- python benchmarks/precision_docs.py writes this page -->
# Precisions of float32 products

On Hopper, `sm90` multiplies float32 matrices on tensor cores of 16 bits. A splitting pass makes each number a sum of
parts of 16 bits. Parts are multiplied with parts, the smallest products first, and sums are float32. A precision's name
says how many products of parts there are. Each costs about what a bf16 product of that size does.

{precisions}

The bound is `jaxgemm.error_bound(precision, k)` at k = {k}: the b with which every element keeps |error| ≤ b·Σ|a||b| +
2⁻¹⁴⁷·Σ(|a| + |b|) + k·2⁻¹⁴⁵. For `TF32_TF32_F32_X3` there is also 2⁻⁵⁰·(max|a|·Σ|b| + max|b|·Σ|a|), of the element's
row and column. The bound holds in any order of additions; most errors are far smaller.

`auto` takes `sm90` for these names on Hopper, but for `F32_F32_F32`, and for `BF16_BF16_F32` where rows are aligned
once they are rounded: XLA multiplies these as fast. For "highest" it weighs `bf16_x6` only where XLA's sums are long
chains: where k is at least {exact}, and the result has {tiles} tiles of 128×128 or more. XLA's shorter sums, and those
that it splits, may err less than sums in parts. For `TF32_TF32_F32_X3` it takes `bf16_x6` where that should be faster
and its bound is no larger, as for small products: finding the scales takes more passes. `kernel="sm90"` does so too.
`explain` says what was taken, in the line `arithmetic`. For a name `auto` takes ours even if XLA's is faster, because
ours keeps the bound: XLA's X9, for one, errs far more than its X6. On other devices `auto` leaves all of this to XLA,
and `kernel="sm90"` refuses.

## Which to choose

"highest" is for solvers, fits, and whatever counts on float32. `TF32_TF32_F32_X3` has half of X6's products, and suits
what tolerates an error of 2⁻²² in each product of two numbers; where numbers of a row are 2³⁸ apart it takes longer
than X6. `BF16_BF16_F32_X3` has as many, 16 bits, and no such limit. `BF16_BF16_F32` is for operands of which 8 bits
matter, as in training with bf16. `BF16_BF16_F32_X9` has half as many products again as X6, and no smaller bound to
speak of. `F32_F32_F32` is plain multiply-adds, by `simt` or XLA.

## The guard

float16 has few exponents. So `TF32_TF32_F32_X3` scales each row of A and each column of B by a power of two, which
brings its largest finite number near float16's largest. Numbers keep 22 bits down to 2⁻²⁹ of that largest number, and
13 bits down to 2⁻³⁸. If one is smaller, and not 0, the splitting pass raises a guard. That is a number in device
memory, which the host does not read. Then the result is that of `BF16_BF16_F32_X6`. With the guard down, the kernels
that would compute it end at once. With the guard up, the time is X6's and that of finding the scales and splitting in
vain. Batches and groups are X6. Each slab of k has its own guard.

## Special values

NaN and infinities reach the elements of their row or column, as in exact arithmetic, and no others. An element is
finite where Σ|a||b| is below (1 − 2b) of the largest float32. With X6 and X9, A times the identity is A, bit for bit,
for numbers from 2⁻¹²⁴ on, but for the sign of zeros. Of smaller numbers bits are lost: that is the second term of the
bound, with 2⁻¹⁴⁰ for `BF16_BF16_F32_X3` and 2⁻¹³¹ for `BF16_BF16_F32`.

## Workspace

Parts take two bytes each, in scratch memory. Where they would take more than 1 GiB, k is cut into slabs, and each
slab's products are added to the result. The option `slabs` asks for a number of slabs: fewer take more memory.
`explain` says how many there are, and how large the workspace is.
"""

_ERRORS = """
## Errors on {device}

Against float64, measured {when}. Results are {m}×{n}, of sums of k products. For so few results `auto` does not compute
"highest" by parts; the lines of X6 have the errors of parts. A cell has ours / XLA's at the same precision: the error
of all elements over the exact product, in the Frobenius norm. Data are uniform in [0, 1); normal; normal times 2ⁱ, with
i from -20 to 20; sums that cancel but for a thousandth; and rows of a softmax times normal. "-" did not run.

{frobenius}

An element's error over its Σ|a||b|, at most, of all these data:

{worst}
"""
_EXACT = """
## Where "highest" takes parts, on {device}

The error of `BF16_BF16_F32_X6` over that of XLA's product in float32, for m×n results of sums of k products, measured
{when}: the largest ratio of the five kinds of data. Above 1 XLA's error is smaller: it splits sums of few results.

{table}
"""
_SPEED = """
## Speed on {device}

Device time, measured {when}: that of XLA's product, or of ours at `BF16_BF16_F32_X6`, over that of `auto`. Above 1
`auto` is faster. Of XLA's two paths the faster one counts. Data are standard-normal. Those in float32 are made of 23
random bits each; "normal" ones are drawn in float64 and rounded, so that small ones have all bits. "One tiny value",
in a row of A, raises the guard of `TF32_TF32_F32_X3`.

{table}
"""
_FP8 = """
## Products of fp8 on {device}

A tensor core keeps about 13 bits of a sum of fp8 products. At `precision="highest"` `sm90` adds sums of 128 products
up in float32, so that the error does not grow with k. At any other precision all sums stay in the tensor core.

Against float64, measured {when}: ours / XLA's at the same precision, of {m}×{n} results in float32. In the Frobenius
norm:

{frobenius}

An element's error over its Σ|a||b|, at most:

{worst}
"""
_FITS = """
## Whole programs on {device}

Programs that know nothing of jaxgemm, measured {when} by `benchmarks/fits.py`. Ours is `jaxgemm.override(program,
precision=...)`; XLA's has that precision as JAX's default. The error is against the same program in float64, in the
Frobenius norm; float64 computes the residuals too. A cell has ours / XLA's, on the faster of its two paths. "-" did not
run, or is not asked of ours. Times are {how}. The last column counts the places of the program where a product stands,
by kernel and arithmetic.

{programs}

{table}
"""


def precisions() -> str:
    """What each precision does to operands, what that keeps, and its bound."""
    lines: list[tuple[str, ...]] = [_DEFAULT]
    for name in PRECISIONS:
        least, *_ = arithmetics(canonical(name), np.dtype(np.float32))
        does = _HIGHEST if name == "highest" else f"`{least}`: {ARITHMETICS[least] or 'multiplies them as they are'}"
        lines.append((f"`{name}`", does, KEEPS[name], f"{jaxgemm.error_bound(name, _K):.1e}"))
    return markdown(("precision", "what the kernel does", "keeps of each number", "bound"), lines)


def _by_k(rows: list[Row], heads: tuple[str, ...], name: str) -> str:
    """Ours / XLA's figure of that name, the largest there is: a line for each of what rows have under `heads`, a column
    for each k.
    """
    most: dict[tuple[str, ...], dict[tuple[str, int], float]] = {}
    for row in rows:
        cell = most.setdefault(tuple(row[x] for x in heads), {})
        if name in row:
            at = row["side"], row["k"]
            cell[at] = max(row[name], cell.get(at, 0.0))
    ks = list(dict.fromkeys(row["k"] for row in rows))

    def figure(value: float | None) -> str:
        return "-" if value is None else f"{value:.1e}".replace("e-0", "e-")

    lines = [
        (*key, *(" / ".join(figure(of.get((side, k))) for side in (errors.OURS, errors.XLA)) for k in ks))
        for key, of in most.items()
    ]
    return markdown((*heads, *(f"k = {k}" for k in ks)), lines)


def of_errors(content: Row) -> str:
    """What errors.py found."""
    kinds = list(errors.KINDS)
    rows = sorted(content["rows"], key=lambda x: (kinds.index(x["data"]), PRECISIONS.index(x["precision"])))
    return _ERRORS.format(
        **{name: content[name] for name in ("device", "m", "n")},
        when=when(content),
        frobenius=_by_k(rows, ("data", "precision"), "error"),
        worst=_by_k(rows, ("precision",), "worst"),
    )


def of_sizes(content: Row) -> str:
    """What errors.py found of several sizes."""
    ks = sorted({row["k"] for row in content["rows"]})
    most: dict[str, dict[int, str]] = {}
    for row in content["rows"]:
        known = [x for x in row["ratios"].values() if x is not None]
        most.setdefault(f"{row['m']}×{row['n']}", {})[row["k"]] = f"{max(known):.2f}" if known else "-"
    lines = [(size, *(of.get(k, "-") for k in ks)) for size, of in most.items()]
    table = markdown(("m × n", *(f"k = {k}" for k in ks)), lines)
    about = next(iter(content.get("sources", {"": content}).values()))  # sizes may have been measured one by one
    return _EXACT.format(device=about["device"], when=when(about), table=table)


def of_speed(content: Row) -> str:
    """What suite `precisions` found: over XLA at the same precision and at F32_F32_F32, and over our X6, of the same
    product.
    """
    ours: dict[tuple[str, str, str], float | None] = {}
    xla: dict[tuple[str, str, str], float | None] = {}
    for row in content["rows"]:
        if row["kernel"] == "auto":
            case = parse_case(row["problem"])
            key = case.precision, f"{case.m}×{case.n}×{case.k}", case.data or _IN_FLOAT32
            ours[key] = row["us"]
            xla[key] = min((path["us"] for path in row["xla"].values() if path["us"]), default=None)

    lines = []
    for (name, *product), us in ours.items():
        size, data = product
        others = xla[name, size, data], xla.get((errors.SGEMM, size, data)), ours.get((_X6, size, data))
        ratios = (f"{other / us:.2f}" if us and other else "-" for other in others)
        lines.append((f"`{name}`", size, data, f"{us:.0f}" if us else "-", *ratios))
    columns = (
        "precision",
        "m × n × k",
        "data",
        "`auto`, µs",
        "over XLA's",
        f"over XLA's {errors.SGEMM}",
        "over our X6",
    )
    return _SPEED.format(device=content["device"], when=when(content), table=markdown(columns, lines))


def of_fp8(content: Row) -> str:
    """What errors_fp8.py found."""
    heads = ("types", "data", "precision")
    return _FP8.format(
        **{name: content[name] for name in ("device", "m", "n")},
        when=when(content),
        frobenius=_by_k(content["rows"], heads, "error"),
        worst=_by_k(content["rows"], heads, "worst"),
    )


def of_fits(content: Row) -> str:
    """What fits.py found: ours beside XLA's faster path, and float64."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for row in content["rows"]:
        of = found.setdefault((row["fit"], row["precision"]), {})
        best = of.get(row["side"])
        if best is None or row.get("us", float("inf")) < best.get("us", float("inf")):
            of[row["side"]] = row

    def cell(of: dict[str, Row], name: str, form: str, unit: float = 1.0) -> str:
        figures = (of.get(side, {}).get(name) for side in (errors.OURS, errors.XLA))
        return " / ".join("-" if x is None else format(x * unit, form).replace("e-0", "e-") for x in figures)

    lines = []
    for (name, precision), of in found.items():
        error, residual, ms = cell(of, "error", ".1e"), cell(of, "residual", ".1e"), cell(of, "us", ".1f", 1e-3)
        lines.append((f"`{name}`", precision, error, residual, ms, fits.counted(of.get(errors.OURS, {})) or "-"))
    programs = [
        f"- `{name}`, of size {size}: {FITS[name].what}; residual {FITS[name].residual}."
        for name, size in {row["fit"]: row["size"] for row in content["rows"]}.items()
    ]
    return _FITS.format(
        device=content["device"],
        when=when(content),
        how=content["how"],
        programs="\n".join(programs),
        table=markdown(("program", "precision", "error", "residual", "ms", "products"), lines),
    )


def page() -> str:
    """docs/precision.md."""
    sections = [_TEXT.format(precisions=precisions(), k=_K, exact=EXACT_K, tiles=EXACT_TILES)]
    made = {
        "errors.json": of_errors,
        "exact.json": of_sizes,
        "precisions.json": of_speed,
        "fits.json": of_fits,
        "errors_fp8.json": of_fp8,
    }
    for folder in sorted(RESULTS.glob("nvidia-*")):
        for name, section in made.items():
            if (file := folder / name).exists():
                sections.append(section(report.load(file)))
    return "".join(sections)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page())
