"""What is shown and kept of measurements: tables, a progress bar, and result files.

Tables come through rich where it is installed, and as aligned text where not, so that `info` works in every
installation. A result file is a JSON object of what it was measured with (jaxgemm.measure.provenance) and "rows", of
which each has a line of its own. Where kernels were held to XLA's paths, a row of the file is a product, with all
kernels and paths; read again it is a row for each kernel.
"""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import jaxgemm
from jaxgemm import roofline
from jaxgemm._runtime import ffi
from jaxgemm.measure import provenance
from jaxgemm.measure.bench import Bench, Row
from jaxgemm.measure.case import DTYPES, parse_case
from jaxgemm.measure.provenance import device_name as device_name

if TYPE_CHECKING:
    from jaxgemm.kernels import Kernel

_SHORT = {name: short for short, name in DTYPES.items()} | {"int32": "s32"}
_PATH_NAMES = {"default": "XLA", "cublas": "cuBLAS"}
_WIDTH = 160  # of a table that goes to a file or a pipe


# --- Tables ---


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> None:
    """Print a table whose first `left` columns are text and the rest figures."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        _print_plain(title, columns, rows, left)
        return
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for i, column in enumerate(columns):
        table.add_column(Text(column), justify="left" if i < left else "right", overflow="fold", no_wrap=i < 2)
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)


def _print_plain(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> None:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    print(f"\n{title}")
    for row in (columns, ["-" * width for width in widths], *rows):
        cells = (
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join(cells).rstrip())
    print()


@contextlib.contextmanager
def progress(total: int, what: str) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr, nothing where that is no terminal. Yields what announces the next step."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield lambda step: print(f"{what}: {step}", file=sys.stderr)
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        started = 0

        def step(name: str) -> None:
            nonlocal started
            bar.update(task, completed=started, description=f"{what}: {name}")
            started += 1

        yield step


# --- Results ---


def document(bench: Bench, rows: Sequence[Row], **more: Any) -> dict[str, Any]:
    """The whole report as plain values, for :func:`write`."""
    return {
        **provenance.record(bench.device),
        "how": f"{bench.how}, median of up to {bench.repeats} calls, random data rotated past the cache",
        "wall": "of calls issued in a row" if bench.queued else "of calls waited for one by one",
        **more,
        "rows": [row.to_json() for row in rows],
    }


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Write a document of `rows` in one step, so that the file is never half of one: a line for each row."""
    about = [f' "{name}": {_line(value)}' for name, value in content.items() if name != "rows"]
    rows = ",\n".join(f"  {json.dumps(_rounded(row))}" for row in content["rows"])
    text = "{\n" + ",\n".join([*about, f' "rows": [\n{rows}\n ]' if rows else ' "rows": []']) + "\n}\n"
    if file.exists() and not file.is_file():  # a pipe, or a terminal
        file.write_text(text)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".part")
    draft.write_text(text)
    draft.replace(file)


def renewed(file: Path, source: str, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What to write into a file of several sources, which were measured apart: these rows in place of those that it
    had of the source. The head's "sources" says what each was measured with.
    """
    before = json.loads(file.read_text()) if file.exists() else {"sources": {}, "rows": []}
    kept = [row for row in before["rows"] if row["source"] != source]
    return {
        "sources": {**before["sources"], source: {name: value for name, value in about.items() if name != "rows"}},
        "rows": [*kept, *({"source": source, **row} for row in rows)],
    }


def _line(value: Any) -> str:
    """A value of the head; an object of objects has a line for each of them."""
    if not isinstance(value, dict) or not all(isinstance(part, dict) for part in value.values()) or not value:
        return json.dumps(_rounded(value))
    return "{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(part)}" for name, part in value.items()) + "\n }"


def _rounded(value: Any) -> Any:
    """The value with floats of seven digits, which are more than any measurement has."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, (list, tuple)) else value


#: What a suite's file keeps of each program, where it is not as is usual.
_KEPT = {"us": None, "wall_us": None, "launches": None, "error": None, "message": ""}


def by_product(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of :meth:`Row.to_json` as a suite's file keeps them: a product each, without what follows from the rest."""
    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for row in rows:
        floor = {name: row[name] for name in ("floor_us", "floor_bound", "floor_unit") if row[name] is not None}
        precision = {"precision": row["precision"]} if row["precision"] == "default" else {}
        paths = {name: _kept({**path, "us": _us(path)}) for name, path in row["xla"].items()}
        product = {"problem": row["problem"], **precision, **floor, "kernels": {}, "xla": paths}
        product = found.setdefault((row["problem"], row["precision"]), product)
        ran = {"chosen": row["chosen"]} if row["chosen"] != row["kernel"].partition(":")[0] else {}
        status = {} if row["status"] == "ok" else {"status": row["status"]}
        product["kernels"][row["kernel"]] = ran | status | _kept(row)
    return list(found.values())


def _us(path: Mapping[str, Any]) -> float | None:
    us: float | None = path["wall_us"] if path["device_us"] is None else path["device_us"]
    return us


def _kept(program: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: program.get(name, usual) for name, usual in _KEPT.items() if program.get(name, usual) != usual}
    if kept.get("error"):
        kept["error"] = float(f"{kept['error']:.2g}")
    if program["device_us"] is None and kept.pop("wall_us", None) is not None:
        kept["device_us"] = None
    return kept


def load(file: Path) -> dict[str, Any]:
    """A result file as it was before it was written; of a suite's file a row for each product and kernel.

    Such a row has the fields of :meth:`Row.to_json` but those that no file keeps (the names of device kernels, calls,
    bytes and seconds to compile).

    Raises:
        OSError: there is no such file.
        ValueError: it is not a result file.
    """
    try:
        content = json.loads(file.read_text())
        rows = content["rows"]
        content["rows"] = [one for row in rows for one in (_by_kernel(row) if "kernels" in row else [row])]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a result file: {error!r}") from error
    return dict(content)


def _by_kernel(product: Mapping[str, Any]) -> list[dict[str, Any]]:
    case = parse_case(product["problem"])
    case = replace(case, precision=product.get("precision", case.precision))
    xla = {name: _program(path) for name, path in product["xla"].items()}
    about = {
        **{name: product[name] for name in ("source",) if name in product},
        **case.to_json(),
        **{name: product.get(name) for name in ("floor_us", "floor_bound", "floor_unit")},
    }
    rows = []
    for name, ran in product["kernels"].items():
        row = {"kernel": name, "chosen": name.partition(":")[0], "status": "ok", **_program(ran), "xla": xla}
        us = row["us"]
        row["tflops"] = 1e-6 * case.flops / us if us else None
        row["ratio"] = _ratio(row, [path for path in xla.values() if path["us"]])
        row["roofline_fraction"] = about["floor_us"] / us if us and about["floor_us"] else None
        rows.append({**about, **row})
    return rows


def _program(kept: Mapping[str, Any]) -> dict[str, Any]:
    """A program's figures. Its time is a device time unless a line says that there is none."""
    us = kept.get("us")
    return {**_KEPT, "device_us": us, **({"wall_us": us} if "device_us" in kept else {}), **kept}


def _ratio(ours: Mapping[str, Any], theirs: Sequence[Mapping[str, Any]]) -> float | None:
    """As :attr:`Row.ratio`."""
    if not ours["us"] or not theirs:
        return None
    which = "device_us" if all(x["device_us"] for x in (ours, *theirs)) else "wall_us"
    return float(min(x[which] for x in theirs) / ours[which])


# --- info ---


def print_info() -> None:
    """Versions, devices and kernels."""
    major, minor = ffi.ffi_api_version()
    archs = ffi.cuda_architectures()
    print(f"jaxgemm {jaxgemm.__version__}, jax {jax.__version__}, jaxlib {version('jaxlib')}")
    print(f"numpy {np.__version__}, Python {platform.python_version()}, {platform.platform()}")
    print(f"built against XLA FFI {major}.{minor}; CUDA kernels: {', '.join(archs) or 'none in this build'}")
    driver = roofline.driver_version()
    print(f"NVIDIA driver: {driver or 'none found'}")
    for device in jax.devices():
        print(f"device {device.id}: {device_name(device)} [{device.platform}]{_limits(device)}")
    rows = [_kernel_row(kernel) for kernel in jaxgemm.kernels()]
    columns = ("kernel", "family", "runs on", "types (a b > d)", "options", "bits", "here", "what it is")
    print_table("Kernels", columns, rows, left=len(columns))
    print(
        "bits: r, the same on every run; b, a row's bits do not depend on the other rows. "
        "Accumulators: fp32 for 16-bit types, int32 for 8-bit types."
    )


def _limits(device: jax.Device) -> str:
    limits = roofline.attached_device(device.local_hardware_id or 0) if device.platform == "gpu" else None
    if limits is None:
        return ""
    units = ("fp32", "fp64", "tf32 tensor", "16-bit tensor", "8-bit tensor", "fp64 tensor")
    peaks = {unit: limits.peak(unit) for unit in units}
    rates = ", ".join(f"{unit} {peak / 1e12:.0f}" for unit, peak in peaks.items() if peak)
    return (
        f"\n  compute capability {limits.arch / 10:.1f}, {limits.multiprocessors} multiprocessors at "
        f"{limits.clock_hz / 1e6:.0f} MHz, {limits.bandwidth / 1e12:.2f} TB/s, {limits.l2_bytes >> 20} MiB L2"
        f"\n  peak TFLOP/s (TOP/s): {rates or 'not known for this architecture'}"
    )


def _kernel_row(kernel: Kernel) -> tuple[str, ...]:
    types = dict.fromkeys(
        f"{_SHORT.get(a, a)} {_SHORT.get(b, b)}>{_SHORT.get(d, d)}" if a != b else f"{_SHORT[a]}>{_SHORT.get(d, d)}"
        for a, b, d, _ in kernel.types
    )
    where = kernel.platform
    if kernel.min_arch:
        upper = f" to {kernel.max_arch / 10:.1f}" if kernel.max_arch else "+"
        where += f" {kernel.min_arch / 10:.1f}{upper}"
    options = "; ".join(f"{name}={'|'.join(map(str, values)) or 'int'}" for name, values in kernel.options.items())
    bits = ("r" if kernel.deterministic else "-") + ("b" if kernel.batch_invariant else "-")
    return kernel.name, kernel.family, where, " ".join(types), options, bits, _usable(kernel), kernel.summary


def _usable(kernel: Kernel) -> str:
    """Whether a kernel can run in this process, or what it lacks."""
    if not kernel.built:
        return "not built"
    if kernel.platform == "cpu":
        return "yes"
    gpus = [device for device in jax.devices() if device.platform == "gpu"]
    archs = [int(10 * float(str(gpu.compute_capability))) for gpu in gpus]
    if not archs:
        return "no GPU"
    fits = any(kernel.min_arch <= arch and (not kernel.max_arch or arch <= kernel.max_arch) for arch in archs)
    return "yes" if fits else "other GPU"


# --- bench ---


def time_text(us: float | None) -> str:
    """Three digits, in the unit that suits."""
    if us is None:
        return "-"
    for unit, scale in (("us", 1.0), ("ms", 1e3)):
        if us < 1e3 * scale or unit == "ms":
            value = us / scale
            return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"
    return "-"


def _figure(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def print_header(bench: Bench) -> None:
    """Where this runs, and what the times are."""
    driver = f", driver {roofline.driver_version()}" if bench.device.platform == "gpu" else ""
    print(f"Device: {device_name(bench.device)}{driver}; jaxgemm {jaxgemm.__version__}, jax {jax.__version__}")
    if bench.device.platform == "cpu":
        print("JAX offers no GPU here, so this runs on the CPU, and times are wall times of whole calls.")
        print("Kernel 'auto' means XLA's own product here; 'host' is ours, called through the FFI.")
    else:
        print(f"Times: {bench.how}; inputs rotated past the cache.")


def print_rows(rows: Sequence[Row]) -> None:
    """The table of a bench, what it compares with, and the messages of what did not run."""
    names = [_PATH_NAMES[path] for path in rows[0].xla] if rows else []
    slow = all((row.tflops or 0.0) < 1.0 for row in rows)
    floors = any(row.floor for row in rows)
    columns = ["problem", "kernel", "time", *names, "GFLOP/s" if slow else "TFLOP/s", "ratio"]
    columns += ["roofline"] * floors + ["error", *(f"err {name}" for name in names)]
    cells = [_cells(row, 1e3 if slow else 1.0, floors) for row in rows]
    print_table("ratio: XLA's faster path / ours, above 1 ours is faster", columns, cells, left=2)
    if "cuBLAS" in names:
        print("XLA is its default path, cuBLAS the one with XLA's own generated kernels switched off.")
    if any(row.case.dtype == "float32" for row in rows):
        precisions = sorted({row.case.precision.upper() for row in rows if row.case.dtype == "float32"})
        meaning = {
            "HIGHEST": "HIGHEST (SIMT against SGEMM, no tf32)",
            "DEFAULT": "DEFAULT (XLA may use tf32)",
        }
        print(f"float32 at precision {', '.join(meaning.get(p, p) for p in precisions)}, on both sides.")
    units = sorted({row.floor.unit for row in rows if row.floor})
    if units:
        print(f"roofline: share of the speed that the {', '.join(units)} rate and the memory bandwidth allow.")
    for message, problems in _messages(rows).items():
        count = "" if len(problems) == 1 else f" and {len(problems) - 1} more"
        print(f"{problems[0]}{count}: {message}")


def _messages(rows: Sequence[Row]) -> dict[str, list[str]]:
    """What kept programs from running, each once, with the problems that it befell."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row.status != "ok":
            found.setdefault(f"kernel {row.kernel}: {row.status}: {row.ours.message}", {})[str(row.case)] = None
        for path, ran in row.xla.items():
            if ran.message:
                found.setdefault(f"{_PATH_NAMES[path]}: {ran.message}", {})[str(row.case)] = None
    return {message: list(problems) for message, problems in found.items()}


def _cells(row: Row, per_tflops: float, floors: bool) -> list[str]:
    settled = row.status == "ok" and row.kernel == "auto"
    kernel = f"auto > {row.chosen}" if settled else row.kernel
    times = [time_text(None if p.timing is None else p.timing.us) for p in row.xla.values()]
    return [
        str(row.case),
        kernel,
        row.status if row.status != "ok" else time_text(row.us),
        *times,
        _figure(row.tflops and per_tflops * row.tflops, ".3g"),
        _figure(row.ratio, ".2f"),
        *([_figure(row.roofline, ".0%")] if floors else []),
        *(_figure(path.error, ".1e").replace("e-0", "e-") for path in (row.ours, *row.xla.values())),
    ]
