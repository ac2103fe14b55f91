"""What a result was measured with: the sources that ran, the device and its clocks, and the versions.

Every result file begins with :func:`record`. Of files that are older than it, what is not known says "unknown".
"""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxgemm
from jaxgemm import roofline
from jaxgemm._runtime import ffi, source_digest

UNKNOWN = "unknown"
#: What a record holds.
KEYS = (
    "script",
    "device",
    "platform",
    "driver",
    "clocks",
    "versions",
    "date",
    "commit",
    "ffi_digest",
    "package_digest",
)
#: What is asked of nvidia-smi about a GPU, and what it is called here: MHz and W.
_CLOCKS = {
    "sm_mhz": "clocks.sm",
    "memory_mhz": "clocks.mem",
    "sm_limit_mhz": "clocks.max.sm",
    "memory_limit_mhz": "clocks.max.mem",
    "power_limit_w": "power.limit",
}
_PACKAGE = Path(jaxgemm.__file__).parent
#: Files of the package that it runs: its modules, and the tuned products.
_RUN = (".py", ".json")


def record(device: jax.Device) -> dict[str, Any]:
    """What a result depends on besides what was measured, as plain values.

    ``script`` and its arguments, the ``device`` and its ``platform``, ``driver`` (None on a CPU), ``clocks`` ({} on a
    CPU) and ``versions``; ``date``, in UTC; ``ffi_digest`` of the folder ffi/ that the library was compiled from,
    ``package_digest`` of the package's own files as they run, and the ``commit``, as :func:`commit` finds it.
    """
    on_gpu = device.platform == "gpu"
    return {
        "script": script(),
        "device": device_name(device),
        "platform": device.platform,
        "driver": roofline.driver_version() if on_gpu else None,
        "clocks": clocks(device.local_hardware_id or 0) if on_gpu else {},
        "versions": {
            "jaxgemm": jaxgemm.__version__,
            "jax": jax.__version__,
            "jaxlib": version("jaxlib"),
            "numpy": np.__version__,
            "python": platform.python_version(),
            "cuda": ffi.cuda_version(),
        },
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **sources(),
    }


def sources() -> dict[str, str]:
    """Digests of what runs, and the commit that they are of."""
    return {
        "commit": commit(Path(sys.argv[0]).resolve().parent),
        "ffi_digest": ffi.source_digest(),
        "package_digest": source_digest(_PACKAGE, _RUN),
    }


def script() -> str:
    """The command. Of absolute paths only the last part is told."""
    file = Path(sys.argv[0]).resolve()
    name = "python -m jaxgemm" if file.parent == _PACKAGE else f"{file.parent.name}/{file.name}"
    return " ".join([name, *(re.sub(r"(^|=)/\S*/", r"\1", argument) for argument in sys.argv[1:])])


def commit(folder: Path) -> str:
    """The commit of the git checkout that a folder lies in, if its ffi/ and jaxgemm/ are what runs; "" otherwise.

    "+changes" stands behind it where these differ from what was committed.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    root = Path(top)
    if not top or source_digest(root / "ffi") != ffi.source_digest():
        return ""
    if source_digest(root / "jaxgemm", _RUN) != source_digest(_PACKAGE, _RUN):
        return ""
    changes = _git(root, "status", "--porcelain", "--", "ffi", "jaxgemm")
    return _git(root, "rev-parse", "HEAD") + ("+changes" if changes else "")


def _git(folder: Path, *arguments: str) -> str:
    """What git prints; "" where it cannot."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def clocks(ordinal: int) -> dict[str, float] | str:
    """A GPU's clocks now and their limits in MHz, and its power limit in W, or "unknown" without nvidia-smi."""
    query = ["nvidia-smi", f"--id={ordinal}", f"--query-gpu={','.join(_CLOCKS.values())}"]
    try:
        done = subprocess.run([*query, "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True)
        return dict(zip(_CLOCKS, map(float, done.stdout.split(",")), strict=True))
    except (OSError, subprocess.CalledProcessError, ValueError):
        return UNKNOWN


def device_name(device: jax.Device) -> str:
    """The device's own name; for a CPU, the processor's."""
    if device.platform != "cpu":
        return str(device.device_kind)
    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, StopIteration), open("/proc/cpuinfo") as info:
        model = next(line for line in info if line.startswith("model name")).partition(":")[2].strip()
    return f"{model} ({len(os.sched_getaffinity(0))} cores)"
