"""What a device could reach at best, and the least time a product can take on it.

A product must do 2 m n k operations and must read A and B and write D once. The operations over the rate of
the unit that does them, and the bytes over the memory bandwidth, give two times; the larger is the floor.
Rates are derived from what the device says of itself: multiprocessors x clock x fused multiply-adds per
clock. No driver is needed unless an attached GPU is asked about.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from jaxgemm.dtypes import ELEMENT_TYPES
from jaxgemm.precision import products_of


@dataclass(frozen=True)
class Rates:
    """Fused multiply-adds per clock of one multiprocessor, dense, by unit."""

    fp32: int
    fp64: int
    tensor: Mapping[str, int] = field(default_factory=dict)
    # The vendor states some chips' tensor rates at a lower clock than the one the device reports as its
    # maximum: under matrix load it does not hold that one. fp64 is exempt. 0: no such cap.
    tensor_clock_hz: float = 0.0


# By compute capability times ten. Consumer parts of 8.6, 8.9 and 12.0 halve the 16-bit rate when they
# accumulate in fp32, which the device does not report: there the floor is optimistic. An unlisted chip has no
# roofline, rather than a guessed one.
RATES: Mapping[int, Rates] = MappingProxyType(
    {
        70: Rates(64, 32, {"16-bit": 512}),
        72: Rates(64, 2, {"16-bit": 512, "8-bit": 1024}),
        75: Rates(64, 2, {"16-bit": 512, "8-bit": 1024}),
        80: Rates(64, 32, {"16-bit": 1024, "8-bit": 2048, "tf32": 512, "fp64": 64}),
        86: Rates(128, 2, {"16-bit": 512, "8-bit": 1024, "tf32": 256}),
        87: Rates(128, 2, {"16-bit": 1024, "8-bit": 2048, "tf32": 512}),
        89: Rates(128, 2, {"16-bit": 512, "8-bit": 1024, "tf32": 256}),
        90: Rates(128, 64, {"16-bit": 2048, "8-bit": 4096, "tf32": 1024, "fp64": 128}, tensor_clock_hz=1.83e9),
        100: Rates(128, 64, {"16-bit": 4096, "8-bit": 8192, "tf32": 2048, "fp64": 64}, tensor_clock_hz=1.85e9),
        120: Rates(128, 2, {"16-bit": 512, "8-bit": 1024, "tf32": 256}),
    }
)


@dataclass(frozen=True)
class DeviceLimits:
    """The attributes of a GPU that bound a product."""

    name: str
    arch: int  # compute capability times ten
    multiprocessors: int
    clock_hz: float
    bandwidth: float  # bytes per second
    l2_bytes: int

    def peak(self, unit: str) -> float | None:
        """Operations per second of "fp32", "fp64", or "<kind> tensor"; None where the unit is unknown."""
        rates = RATES.get(self.arch)
        if rates is None:
            return None
        clock = self.clock_hz
        if unit.endswith(" tensor"):
            kind = unit.removesuffix(" tensor")
            fma = rates.tensor.get(kind, 0)
            if rates.tensor_clock_hz and kind != "fp64":
                clock = min(clock, rates.tensor_clock_hz)
        else:
            fma = {"fp32": rates.fp32, "fp64": rates.fp64}.get(unit, 0)
        return 2.0 * fma * self.multiprocessors * clock or None


def _gpu(name: str, arch: int, sms: int, mhz: float, memory_mhz: float, bus_bits: int, l2_mib: int) -> DeviceLimits:
    return DeviceLimits(name, arch, sms, mhz * 1e6, _bandwidth(memory_mhz * 1e6, bus_bits), l2_mib << 20)


def _bandwidth(memory_hz: float, bus_bits: int) -> float:
    return 2.0 * memory_hz * bus_bits / 8  # two transfers per clock


# Devices that can be asked about without having one.
KNOWN_DEVICES: Mapping[str, DeviceLimits] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            _gpu("NVIDIA A100-SXM4-80GB", 80, 108, 1410, 1593, 5120, 40),
            _gpu("NVIDIA H100 80GB HBM3", 90, 132, 1980, 2619, 5120, 50),
            _gpu("NVIDIA H200", 90, 132, 1980, 3201, 6016, 60),
        )
    }
)


# CUdevice_attribute values of the driver's interface.
_CLOCK_KHZ, _SM_COUNT, _MEMORY_KHZ, _BUS_BITS, _L2_BYTES, _CC_MAJOR, _CC_MINOR = 13, 16, 36, 37, 38, 75, 76


@functools.cache
def attached_device(ordinal: int = 0) -> DeviceLimits | None:
    """The GPU of this number as the driver describes it, or None without a driver or without that GPU.

    JAX does not report clocks or the memory bus, so the driver is asked; it is loaded by name because nothing
    else in this package needs it. Reading attributes makes no context on the device.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    if cuda.cuInit(0) != 0 or cuda.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
        return None

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        return value.value if cuda.cuDeviceGetAttribute(ctypes.byref(value), which, device) == 0 else 0

    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), device)
    return DeviceLimits(
        name=name.value.decode(),
        arch=10 * attribute(_CC_MAJOR) + attribute(_CC_MINOR),
        multiprocessors=attribute(_SM_COUNT),
        clock_hz=attribute(_CLOCK_KHZ) * 1e3,
        bandwidth=_bandwidth(attribute(_MEMORY_KHZ) * 1e3, attribute(_BUS_BITS)),
        l2_bytes=attribute(_L2_BYTES),
    )


@functools.cache
def driver_version() -> str | None:
    """The NVIDIA driver's version, or None where there is none."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if nvml.nvmlInit_v2() != 0:
        return None
    try:
        text = ctypes.create_string_buffer(96)
        return text.value.decode() if nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0 else None
    finally:
        nvml.nvmlShutdown()


@dataclass(frozen=True)
class Floor:
    """The least time of a product, and what sets it."""

    seconds: float
    bound: str  # "compute" or "memory"
    unit: str  # the unit whose rate was used


def compute_unit(dtype: str, precision: str = "default", arch: int = 0) -> str:
    """The fastest unit of this architecture that multiplies operands of this type at this precision; "" for none.

    fp32 at precision "highest" is held against plain fp32 arithmetic: that is the promise made, even though a
    kernel that assembles fp32 from 16-bit tensor products can pass this line. An arithmetic of parts of 16 bits, by its
    name in :data:`jaxgemm.precision.ARITHMETICS`, is held against what multiplies these.
    """
    t = ELEMENT_TYPES["bfloat16" if products_of(precision) else dtype]
    rates = RATES[arch].tensor if arch in RATES else {}
    rounds = t.tensor == "tf32" and precision != "default"
    if t.plain and (rounds or t.tensor not in rates):
        return t.plain
    return f"{t.tensor} tensor" if t.tensor else ""


def floor(
    m: int,
    n: int,
    k: int,
    *,
    limits: DeviceLimits,
    a: str,
    b: str | None = None,
    d: str | None = None,
    batch: int = 1,
    precision: str = "default",
    weights: int = 1,
) -> Floor | None:
    """The floor of `batch` products, types by name; None where the chip's rate for them is not known.

    With several `weights`, each result takes as many products: of the same `a` with as many `b`.
    """
    size_a, size_b, size_d = (ELEMENT_TYPES[name].bytes for name in (a, b or a, d or a))
    moved = m * k * size_a + weights * k * n * size_b + m * n * size_d
    return least(batch * weights * 2.0 * m * n * k, batch * moved, limits=limits, a=a, precision=precision)


def least(operations: float, moved: int, *, limits: DeviceLimits, a: str, precision: str = "default") -> Floor | None:
    """The floor of so many operations on elements of type `a`, and of so many bytes; None as for `floor`."""
    unit = compute_unit(a, precision, limits.arch)
    peak = limits.peak(unit)
    if peak is None or limits.bandwidth <= 0:
        return None
    compute, memory = operations * max(1, products_of(precision)) / peak, moved / limits.bandwidth
    return Floor(max(compute, memory), "compute" if compute >= memory else "memory", unit)
