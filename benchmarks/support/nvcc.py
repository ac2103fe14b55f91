"""CUDA kernels that a benchmark compiles, and calls through XLA's FFI."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax


def nvcc() -> str | None:
    """The compiler: of the PATH, of a toolkit's usual place, or of its wheel."""
    places = [shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]
    places += [str(path) for entry in sys.path for path in Path(entry or ".").glob("nvidia/cu*/bin/nvcc")]
    return next((place for place in places if place and Path(place).is_file()), None)


def build(folder: Path, device: jax.Device, text: str) -> Path:
    """Compile CUDA code for a device; RuntimeError if that fails."""
    compiler = nvcc()
    if compiler is None:
        raise RuntimeError("nvcc is not on the PATH: this benchmark's own kernels are compiled here")
    source, library = folder / "kernels.cu", folder / "libkernels.so"
    source.write_text(text)
    arch = str(device.compute_capability).replace(".", "")
    flags = ["-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", f"-arch=sm_{arch}", "-I", jax.ffi.include_dir()]
    done = subprocess.run([compiler, *flags, "-o", library, source], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"nvcc failed:\n{done.stderr[-2000:]}")
    return library


def register(library: Path, names: Sequence[str]) -> None:
    """Make the library's handlers, by their symbols, known to XLA."""
    loaded = ctypes.CDLL(str(library))
    for name in names:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(loaded, name)), platform="CUDA")
