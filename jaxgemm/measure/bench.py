"""Measures one product: kernels of ours and XLA's own paths, in one process, in turn, on the same data.

XLA has two paths for a product on a GPU. By default it may choose its own generated kernels; with those
switched off it calls cuBLAS. A ratio is taken against the faster of the two. On a CPU there is one path.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import jax

import jaxgemm
from jaxgemm import precision as prec
from jaxgemm import roofline
from jaxgemm.dtypes import named
from jaxgemm.measure import timing
from jaxgemm.measure.case import Case, make_inputs, reference_rows, relative_error, sample_rows, take_rows

#: XLA's paths on a GPU, with the compiler options that select them.
XLA_PATHS: Mapping[str, dict[str, Any]] = {"default": {}, "cublas": {"xla_gpu_enable_triton_gemm": False}}

_MEMORY_CAP = {"gpu": 4 << 30, "cpu": 256 << 20}  # bytes of operands made for one case


def parse_kernel(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of "simt" or "simt:option=value,option=value", checked against the kernel table."""
    name, _, tail = text.partition(":")
    table = {kernel.name: kernel for kernel in jaxgemm.kernels()}
    if name not in ("auto", "xla", *table):
        raise ValueError(f"unknown kernel {name!r}: expected one of {', '.join(['auto', 'xla', *table])}")
    known = table[name].options if name in table else {}
    options: dict[str, Any] = {}
    for item in filter(None, tail.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key not in known:
            choice = ", ".join(known) or "none"
            raise ValueError(
                f"malformed option {item!r} of kernel {name!r}: expected option=integer, options: {choice}"
            )
        if not value.isdecimal() or (known[key] and int(value) not in known[key]):
            values = ", ".join(map(str, known[key])) or "any integer of at least 0"
            raise ValueError(f"option {key!r} of kernel {name!r}: got {value!r}, expected one of: {values}")
        options[key] = int(value)
    return name, options


@dataclass(frozen=True)
class Path:
    """What one program did; a message instead of numbers where it did not run."""

    timing: timing.Timing | None = None
    compile_s: float | None = None
    temp_bytes: int | None = None
    error: float | None = None
    message: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        t = self.timing
        return {
            "device_us": None if t is None else t.device_us,
            "wall_us": None if t is None else t.wall_us,
            "launches": None if t is None else t.launches,
            "device_kernels": [] if t is None else list(t.kernels),
            "calls": None if t is None else t.calls,
            "compile_s": self.compile_s,
            "temp_bytes": self.temp_bytes,
            "error": self.error,
            "message": self.message,
        }


@dataclass(frozen=True)
class Row:
    """One kernel of ours on one case, beside XLA."""

    case: Case
    kernel: str  # as asked for
    chosen: str  # what ran
    status: str  # "ok", "unsupported" or "error"
    ours: Path
    xla: Mapping[str, Path]
    floor: roofline.Floor | None = None

    @property
    def us(self) -> float | None:
        """Our time: device time where there is one."""
        return None if self.ours.timing is None else self.ours.timing.us

    @property
    def tflops(self) -> float | None:
        """10^12 operations per second."""
        return None if not self.us else 1e-6 * self.case.flops / self.us

    @property
    def ratio(self) -> float | None:
        """XLA's faster time over ours: above 1, ours is faster. Device times are never held to wall times."""
        if self.ours.timing is None:
            return None
        others = [path.timing for path in self.xla.values() if path.timing is not None]
        if not others or not self.us:
            return None
        if self.ours.timing.device_us and all(t.device_us for t in others):
            return min(t.us for t in others) / self.us
        return min(t.wall_us for t in others) / self.ours.timing.wall_us

    @property
    def roofline(self) -> float | None:
        """Share of the best possible speed."""
        return 1e6 * self.floor.seconds / self.us if self.floor and self.us else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, the derived ones too."""
        return {
            **self.case.to_json(),
            "kernel": self.kernel,
            "chosen": self.chosen,
            "status": self.status,
            "us": self.us,
            "tflops": self.tflops,
            "ratio": self.ratio,
            "roofline_fraction": self.roofline,
            "floor_us": self.floor and 1e6 * self.floor.seconds,
            "floor_bound": self.floor and self.floor.bound,
            "floor_unit": self.floor and self.floor.unit,
            **self.ours.to_json(),
            "xla": {name: path.to_json() for name, path in self.xla.items()},
        }


@dataclass(frozen=True)
class Bench:
    """How to measure, and on what. Make one with :func:`on_default_device`."""

    device: jax.Device
    limits: roofline.DeviceLimits | None
    recorder: timing.Recorder | None
    how: str  # what the times are
    repeats: int = 30
    budget_s: float = 1.0
    seed: int = 0
    xla_paths: Mapping[str, dict[str, Any]] = field(default_factory=lambda: XLA_PATHS)

    @property
    def queued(self) -> bool:
        """Whether wall times are of queued calls: see :func:`jaxgemm.measure.timing.measure`."""
        return str(self.device.platform) != "cpu"

    def default_kernels(self) -> list[str]:
        """ "auto", and the kernel of ours that covers most here, as "auto" may settle on XLA's product."""
        ours = "host" if self.device.platform == "cpu" else "simt"
        return ["auto", *(kernel.name for kernel in jaxgemm.kernels() if kernel.name == ours)]

    def measure(self, case: Case, kernels: Sequence[str] = ("auto",)) -> list[Row]:
        """One row a kernel, each named as :func:`parse_kernel` takes it. A failure is a row that says so."""
        with x64(case), jax.default_device(self.device):
            return self._measure(case, list(dict.fromkeys(kernels)))

    def _measure(self, case: Case, kernels: list[str]) -> list[Row]:
        paths: dict[str, Path] = {}
        programs: dict[str, timing.Program] = {}
        chosen = {name: name.partition(":")[0] for name in kernels}
        status: dict[str, str] = {}
        for name in kernels:
            kernel, options = parse_kernel(name)
            with self._caught(name, paths, status):
                programs[name], paths[name] = _compile(partial(case.ours, kernel=kernel, **options), case, {})
                chosen[name] = chosen_kernel(case, kernel, options)
        for name, options in self.xla_paths.items():
            with self._caught(f"xla {name}", paths, status):
                programs[f"xla {name}"], paths[f"xla {name}"] = _compile(case.xla, case, options)

        if programs:
            try:
                self._run(case, programs, paths, status)
            except Exception as error:  # out of memory for the operands, say
                for name in programs:
                    status[name], paths[name] = "error", Path(message=_describe(error))
        floor = None
        if self.limits is not None:
            floor = roofline.floor(
                case.m,
                case.n,
                case.k,
                limits=self.limits,
                a=case.dtype,
                d=case.out_dtype,
                batch=case.batch or 1,
                precision=prec.floored(prec.canonical(case.jax_precision), named(case.dtype)),
            )
        xla = {name: paths[f"xla {name}"] for name in self.xla_paths}
        return [Row(case, name, chosen[name], status.get(name, "ok"), paths[name], xla, floor) for name in kernels]

    def _run(
        self, case: Case, programs: dict[str, timing.Program], paths: dict[str, Path], status: dict[str, str]
    ) -> None:
        inputs = make_inputs(case, self._copies(case, len(programs)), self.seed)
        rows = sample_rows(case, self.seed)
        reference = reference_rows(case, *inputs[0], rows=rows)
        for name in list(programs):
            with self._caught(name, paths, status):
                error = relative_error(take_rows(programs[name](*inputs[0]), case, rows), reference)
                paths[name] = replace(paths[name], error=error)
            if name in status:
                del programs[name]
        for name, time_ in self.times(programs, inputs).items():
            paths[name] = replace(paths[name], timing=time_)

    def times(
        self, programs: Mapping[str, timing.Program], inputs: Sequence[Sequence[Any]]
    ) -> dict[str, timing.Timing]:
        """The times of programs, by name, that take turns on the same operands, as this bench measures."""
        return timing.measure(
            programs,
            inputs,
            repeats=self.repeats,
            budget_s=self.budget_s,
            recorder=self.recorder,
            queued=self.queued,
        )

    def _copies(self, case: Case, programs: int) -> int:
        """Enough operands to pass three times the cache, within the memory cap and what is ever called."""
        wanted = -(-3 * cache_bytes(self.limits) // case.operand_bytes)
        cap = _MEMORY_CAP["cpu" if self.device.platform == "cpu" else "gpu"] // case.operand_bytes
        used = programs * (2 * self.repeats + 11)  # warm-up, then wall and device time in rows of equal length
        return max(1, min(wanted, cap, used))

    @contextlib.contextmanager
    def _caught(self, name: str, paths: dict[str, Path], status: dict[str, str]) -> Any:
        """Turns an exception into a path that tells of it: one failure must not cost the rest of a run."""
        try:
            yield
        except jaxgemm.UnsupportedError as error:
            status[name], paths[name] = "unsupported", Path(message=str(error))
        except Exception as error:
            status[name], paths[name] = "error", Path(message=_describe(error))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def on_default_device(**options: Any) -> Bench:
    """A Bench on JAX's default device, with what can be known of it and the best clock that there is."""
    device = jax.devices()[0]
    recorder, how = timing.device_recorder(device.platform)
    on_gpu = device.platform == "gpu"
    return Bench(
        device=device,
        limits=roofline.attached_device(device.local_hardware_id or 0) if on_gpu else None,
        recorder=recorder,
        how=how,
        xla_paths=XLA_PATHS if on_gpu else {"default": {}},
        **options,
    )


def x64(case: Case) -> contextlib.AbstractContextManager[Any]:
    """Within it JAX keeps float64, if the case needs that."""
    if case.dtype == "float64":
        return cast(contextlib.AbstractContextManager[Any], jax.enable_x64(True))
    return contextlib.nullcontext()


def _compile(function: Callable[..., jax.Array], case: Case, options: dict[str, Any]) -> tuple[timing.Program, Path]:
    begin = time.perf_counter()
    program = jax.jit(function, compiler_options=options or None).lower(*case.operands).compile()
    seconds = time.perf_counter() - begin
    memory = program.memory_analysis()
    return program, Path(compile_s=seconds, temp_bytes=getattr(memory, "temp_size_in_bytes", None))


def chosen_kernel(case: Case, kernel: str, options: Mapping[str, Any]) -> str:
    """The kernel that runs: the one named, or what "auto" settles on."""
    if kernel != "auto":
        return kernel
    found = jaxgemm.explain(partial(case.ours, kernel=kernel, **options), *case.operands)
    return str(found.products[0].kernel)


def platform_of(device: str | None) -> str | None:
    """The platform that ``explain`` takes for a device's name; None for none."""
    if device is None:
        return None
    platforms = {"cpu": "cpu", gpu_name().lower(): "cuda"}
    if device.lower() not in platforms:
        raise ValueError(f"unknown device {device!r}: here programs can be explained for cpu and {gpu_name()}")
    return platforms[device.lower()]


def gpu_name() -> str:
    """The GPU that ``explain`` explains for: the one here, or else an H200."""
    attached = roofline.attached_device()
    return attached.name if attached else "NVIDIA H200"


def cache_bytes(limits: roofline.DeviceLimits | None) -> int:
    """The last-level cache that operands must outgrow; 32 MiB where nothing tells."""
    return limits.l2_bytes if limits is not None and limits.l2_bytes else 32 << 20
