"""What ladder.py shows of a result: tables on a terminal, and a plot of speed over size.

Both are made from the result file alone, so that they can be made again without a device.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxgemm.measure import report

Result = dict[str, Any]
Series = dict[str, dict[int, float]]

#: Names of XLA's paths where a kernel's name might stand.
PATHS = {"default": "XLA", "cublas": "cuBLAS"}
UNITS = {"s8": "TOP/s", "u8": "TOP/s"}


# --- Reading a result ---


def speeds(
    document: Result, arithmetic: str, part: str = "sizes", axis: str = "n", *, effective: bool = False
) -> Series:
    """10^12 operations a second by that axis, for each kernel, then for each of XLA's paths, then the roofline."""
    rows = [row for row in document["rows"] if row["arithmetic"] == arithmetic and row["part"] == part]
    out: Series = {}
    for row in rows:
        if row["us"]:
            out.setdefault(row["kernel"], {})[row[axis]] = operations(row, effective) / row["us"]
    for row in rows:
        for path, ran in row["xla"].items():
            if ran["us"]:
                out.setdefault(PATHS[path], {})[row[axis]] = operations(row, effective) / ran["us"]
    for row in rows:
        if row["floor_us"]:
            out.setdefault("roofline", {})[row[axis]] = operations(row, effective) / row["floor_us"]
    return out


def operations(row: Result, effective: bool) -> float:
    """Of a product, in millions: 2 m n k, or as the Jetson write-up counts, m k + (2 k - 1) m n + 2 m n."""
    m, n, k = int(row["m"]), int(row["n"]), int(row["k"])
    return 1e-6 * (m * k + (2 * k - 1) * m * n + 2 * m * n if effective else 2 * m * n * k)


def find(document: Result, kernel: str, arithmetic: str, size: int) -> Result | None:
    """The row of a kernel at a square size, if it was measured."""
    for row in document["rows"]:
        if (row["kernel"], row["arithmetic"], row["n"], row["part"]) == (kernel, arithmetic, size, "sizes"):
            return dict(row)
    return None


def number(value: float | None) -> str:
    """Three digits."""
    return "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:#.3g}"


# --- Tables on a terminal ---


def show(document: Result, *, effective: bool = False) -> None:
    """One table for each arithmetic that was measured over sizes, one for the write-ups' own products and the curve
    over k, and the messages of what failed.
    """
    rows = document["rows"]
    for arithmetic in dict.fromkeys(row["arithmetic"] for row in rows if row["part"] == "sizes"):
        here = [row for row in rows if row["part"] == "sizes" and row["arithmetic"] == arithmetic]
        sizes = sorted({row["n"] for row in here})
        unit = UNITS.get(arithmetic, "TFLOP/s")
        lines = []
        for name in dict.fromkeys(row["kernel"] for row in here):
            by_size = {row["n"]: row for row in here if row["kernel"] == name}
            lines.append([name, *(_cell(by_size.get(size), effective) for size in sizes)])
        for name, series in speeds(document, arithmetic, effective=effective).items():
            if name in (*PATHS.values(), "roofline"):
                lines.append([name, *(number(series.get(size)) for size in sizes)])
        counted = ", operations counted as the Jetson write-up does" if effective else ""
        title = f"{arithmetic}: {unit} by size (over the faster of XLA's paths){counted}"
        report.print_table(title, ["kernel", *map(str, sizes)], lines)
    others = [row for row in rows if row["part"] != "sizes"]
    if others:
        columns = ["product", "kernel", "time", *others[0]["xla"], "T/s", "ratio", "roofline", "error"]
        columns = [PATHS.get(column, column) for column in columns]
        report.print_table("The write-ups' own products, and outer_product over k", columns, _lines(others, effective))
    for row in rows:
        if row["message"]:
            print(f"{row['m']}x{row['n']}x{row['k']} {row['arithmetic']} {row['kernel']}: {row['message']}")


def _rate(row: Result, effective: bool) -> float | None:
    rate = row["effective_tops" if effective else "tflops"]
    return None if rate is None else float(rate)


def _cell(row: Result | None, effective: bool) -> str:
    if row is None:
        return ""
    if row["status"] != "ok":
        return str(row["status"])
    ratio = "" if row["ratio"] is None else f" ({row['ratio']:.2f})"
    return number(_rate(row, effective)) + ratio


def _lines(rows: list[Result], effective: bool) -> list[list[str]]:
    paths = list(rows[0]["xla"])
    return [
        [
            f"{row['m']}x{row['n']}x{row['k']} {row['arithmetic']}",
            row["kernel"],
            report.time_text(row["us"]) if row["status"] == "ok" else row["status"],
            *(report.time_text(row["xla"].get(path, {}).get("us")) for path in paths),
            number(_rate(row, effective)),
            "" if row["ratio"] is None else f"{row['ratio']:.2f}",
            f"{row['floor_us'] / row['us']:.0%}" if row["floor_us"] and row["us"] else "",
            "" if row["error"] is None else f"{row['error']:.0e}",
        ]
        for row in rows
    ]


# --- The plot ---


def check_plot(file: Path) -> None:
    """Raise ImportError or ValueError if nothing can be drawn into that file."""
    from jaxgemm.measure import plot

    plot.check(file)
    if not file.absolute().parent.is_dir():
        raise ValueError(f"cannot write {file}: there is no such directory")


def draw(document: Result, file: Path) -> None:
    """Speed over size: fp32, then the tensor cores and `outer_product` over k, where they were measured."""
    check_plot(file)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    single = speeds(document, "f32")
    tensor = {name: series for name in ("tf32", "f16") if (series := speeds(document, name))}
    over_k = speeds(document, "f32", "over k", "k")
    panels = 1 + bool(tensor) + bool(over_k)
    # Text as text keeps the file small; a fixed salt and no date keep it the same from run to run.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "ladder", "font.size": _POINTS}):
        figure = Figure(figsize=(5.2 * panels, 5.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes: Any = figure.subplots(1, panels, squeeze=False)[0]
        _panel(axes[0], "fp32, TFLOP/s over m = n = k", single, _ramp(matplotlib.colormaps["viridis"], single))
        if tensor:
            lines, styles = {}, {}
            for i, (arithmetic, series) in enumerate(tensor.items()):
                for name, values in series.items():
                    label = name if arithmetic in name else f"{name} {arithmetic}"
                    lines[label], styles[label] = values, {"color": f"C{i}"}
            _panel(axes[1], "tensor cores, TFLOP/s over m = n = k", lines, styles, log=True)
        if over_k:
            m, n = next((row["m"], row["n"]) for row in document["rows"] if row["part"] == "over k")
            _panel(axes[-1], f"fp32, TFLOP/s over k, m = n = {m if m == n else (m, n)}", over_k, {})
        figure.draw_without_rendering()  # fixes the axes' places, which the labels need
        for axis in axes:
            _label_ends(figure, axis)
        figure.suptitle(f"The ladder, {document['device']}", fontsize="medium")
        figure.savefig(file, dpi=110, metadata={"Date": None} if file.suffix.lower() == ".svg" else None)


_POINTS = 9  # of text


def _ramp(colors: Any, series: Series) -> dict[str, dict[str, Any]]:
    """Colors of our kernels, from dark to bright as the ladder climbs."""
    ours = [name for name in series if name not in (*PATHS.values(), "roofline")]
    return {name: {"color": colors(0.9 * i / max(len(ours) - 1, 1))} for i, name in enumerate(ours)}


def _panel(axes: Any, title: str, series: Series, styles: dict[str, dict[str, Any]], *, log: bool = False) -> None:
    markers = "osv^D<>ph*XPd8"
    reference = {"roofline": ":", "XLA": "--", "cuBLAS": "-"}
    for i, (name, values) in enumerate(series.items()):
        kind = name.split()[0]
        style: dict[str, Any] = {"marker": markers[i % len(markers)], "markersize": 3, "linewidth": 1.2}
        if kind in reference:
            style = {"linestyle": reference[kind], "linewidth": 1.6, "color": "black"}
        at = sorted(values)
        axes.plot(at, [values[x] for x in at], label=name, **{**style, **styles.get(name, {})})
    sizes = sorted({x for values in series.values() for x in values})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, map(str, sizes))
    axes.minorticks_off()
    axes.set_title(title, fontsize="medium", loc="left")
    axes.grid(alpha=0.25)
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
    else:
        axes.set_ylim(bottom=0)


def _label_ends(figure: Any, axes: Any) -> None:
    """Each line's name and last value beside its end, moved apart where they would cover each other."""
    to_pixels, height = axes.transData.transform, 1.2 * _POINTS * figure.dpi / 72
    ends = [(to_pixels((line.get_xdata()[-1], line.get_ydata()[-1]))[1], line) for line in axes.lines]
    ends.sort(key=lambda end: end[0])
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + height) if places else y)
    # Labels that were pushed past the top push back down.
    top = to_pixels((1, axes.get_ylim()[1]))[1]
    for i in reversed(range(len(places))):
        places[i] = min(places[i], top - height * (len(places) - 1 - i))
    to_axes = axes.transAxes.inverted().transform
    for (y, line), place in zip(ends, places, strict=True):
        text = f"{line.get_label()}  {number(float(line.get_ydata()[-1]))}"
        axes.annotate(
            text,
            xy=(1.0, to_axes((0, y))[1]),
            xytext=(1.04, to_axes((0, place))[1]),
            xycoords="axes fraction",
            color=line.get_color(),
            va="center",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": line.get_color(), "linewidth": 0.5},
            annotation_clip=False,
        )
