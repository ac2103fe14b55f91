"""What the command line shows: tables, a progress bar, and the same figures as JSON.

Tables come through rich where it is installed, and as aligned text where not, so that `info` works in every
installation.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import jaxgemm
from jaxgemm import roofline
from jaxgemm._runtime import ffi
from jaxgemm.measure.bench import Bench, Row
from jaxgemm.measure.case import DTYPES

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


# --- What ran where ---


def device_name(device: jax.Device) -> str:
    """The device's own name; for a CPU, the processor's."""
    if device.platform != "cpu":
        return str(device.device_kind)
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as info:
        model = next(line for line in info if line.startswith("model name")).partition(":")[2].strip()
    return f"{model} ({len(os.sched_getaffinity(0))} cores)"


def environment(device: jax.Device) -> dict[str, Any]:
    """What a result depends on besides the code that was measured."""
    digest = getattr(ffi, "source_digest", None)
    return {
        "device": device_name(device),
        "platform": device.platform,
        "driver": roofline.driver_version() if device.platform == "gpu" else None,
        "versions": {
            "jaxgemm": jaxgemm.__version__,
            "jax": jax.__version__,
            "jaxlib": version("jaxlib"),
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "source_digest": digest() if callable(digest) else digest,
    }


def document(bench: Bench, rows: Sequence[Row], **more: Any) -> dict[str, Any]:
    """The whole report as plain values."""
    return {
        **environment(bench.device),
        "how": f"{bench.how}, median of up to {bench.repeats} calls, random data rotated past the cache",
        "wall": "of calls issued in a row" if bench.queued else "of calls waited for one by one",
        **more,
        "rows": [row.to_json() for row in rows],
    }


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
    here = environment(bench.device)
    versions = here["versions"]
    driver = f", driver {here['driver']}" if here["driver"] else ""
    print(f"Device: {here['device']}{driver}; jaxgemm {versions['jaxgemm']}, jax {versions['jax']}")
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
        print(f"float32 at precision {' and '.join(meaning[p] for p in precisions)}, on both sides.")
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
