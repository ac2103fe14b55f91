"""A bar chart of a bench: ours and XLA's paths by problem, with the roofline as a line over each group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxgemm.measure.bench import Row

_FORMATS = (".png", ".svg", ".pdf")


def check(file: Path) -> None:
    """Raise ImportError or ValueError, saying what is wrong, before anything is measured in vain."""
    if file.suffix.lower() not in _FORMATS:
        raise ValueError(f"cannot draw {file}: its name must end in one of {', '.join(_FORMATS)}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'jaxgemm[bench]'") from error


def save(rows: Sequence[Row], file: Path, title: str) -> None:
    """Write the chart to a file; its ending chooses the format."""
    check(file)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    problems = list(dict.fromkeys(str(row.case) for row in rows))
    series = _series(rows)
    width = 0.8 / max(len(series), 1)
    # Not through pyplot, which would look for a display and keep the figure alive.
    figure = Figure(figsize=(max(6.0, 1.6 + 1.3 * len(problems)), 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    for i, (name, values) in enumerate(series.items()):
        at = [problems.index(problem) + (i - (len(series) - 1) / 2) * width for problem in values]
        axes.bar(at, list(values.values()), width, label=name, color=f"C{i}")
    floors = {str(row.case): 1e-12 * row.case.flops / row.floor.seconds for row in rows if row.floor}
    for n, (problem, best) in enumerate(floors.items()):
        left = problems.index(problem) - 0.45
        axes.hlines(best, left, left + 0.9, color="black", linestyle="--", label=None if n else "roofline")
    axes.set_xticks(range(len(problems)), problems, rotation=20, ha="right")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(title, fontsize="medium")
    axes.grid(axis="y", alpha=0.3)
    if series:
        axes.legend()
    figure.savefig(file, dpi=150)


def _series(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """TFLOP/s by problem, for each kernel and each of XLA's paths."""
    series: dict[str, dict[str, float]] = {}
    for row in rows:
        if row.tflops is not None:
            series.setdefault(f"jaxgemm {row.kernel}", {})[str(row.case)] = row.tflops
    for row in rows:
        for path, ran in row.xla.items():
            if ran.timing is not None:
                series.setdefault(f"XLA {path}", {})[str(row.case)] = 1e-6 * row.case.flops / ran.timing.us
    return series
