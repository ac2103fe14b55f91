"""Loads the compiled module, checks that the running JAX can take it, and registers its handlers.

It is imported before the rest of the package, so that packages that are too old are refused by name.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import jax

#: The name under which XLA finds the handlers.
TARGET = "jaxgemm_gemm"
GATED_TARGET = "jaxgemm_gated_gemm"
GROUPED_TARGET = "jaxgemm_grouped_gemm"
GROUPED_GATED_TARGET = "jaxgemm_grouped_gated_gemm"
SCALED_TARGET = "jaxgemm_scaled_gemm"
MANY_TARGET = "jaxgemm_many_gemm"
QUANTIZE_TARGET = "jaxgemm_quantize"

#: What holds the handlers, the kernel table and the kernels; the compiled module is a binding to it.
LIBRARY = "libjaxgemm.so"


def _release(text: str) -> tuple[int, ...]:
    """The numbers at a version's beginning."""
    return tuple(int(x) for x in re.findall(r"\d+", re.split(r"[^\d.]", text)[0]))


def check_requirements(requirements: Iterable[str]) -> None:
    """Raise ImportError if a package is installed that is older than required."""
    for requirement in requirements:
        if not (found := re.fullmatch(r"(\w+)>=([\d.]+)", requirement)):
            continue  # of an extra
        try:
            installed = version(found[1])
        except PackageNotFoundError:
            continue  # its import says that, or finds it in another way
        if _release(installed) < _release(found[2]):
            raise ImportError(
                f"jaxgemm needs {requirement}, and {found[1]} {installed} is installed. Install a newer one: "
                f"pip install '{requirement}'",
                name=found[1],
            )


def _load() -> Any:
    try:
        return import_module("jaxgemm._ffi")
    except ImportError as error:
        here = Path(__file__).parent
        if f"{LIBRARY}: cannot open" in str(error):
            raise ImportError(
                f"jaxgemm: {LIBRARY}, which holds the kernels, is missing beside the compiled module in {here}. "
                "Install the package again (pip install .), or build it with JAXGEMM_LIBRARY naming such a library.",
                name=LIBRARY,
            ) from error
        compiled = sorted(path.name for path in here.glob("_ffi*.so"))
        if not compiled:
            raise ImportError(
                f"jaxgemm was imported from {here}, which holds no compiled module: it is the source tree rather "
                "than an installed package. Install it (pip install .) and run from another directory, or with "
                "`python -P`, so that the source tree does not come first on sys.path."
            ) from error
        if isinstance(error, ModuleNotFoundError):
            raise ImportError(
                f"jaxgemm: the compiled module in {here} is for another Python: {', '.join(compiled)}. This is Python "
                f"{sys.version_info.major}.{sys.version_info.minor}, for which jaxgemm has to be installed again."
            ) from error
        raise


def runtime_ffi_version() -> tuple[int, int]:
    """(major, minor) of the FFI API of the running jaxlib, read from the headers that it ships."""
    text = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", text))
    return int(found["MAJOR"]), int(found["MINOR"])


def check_ffi_version(built: tuple[int, int], runtime: tuple[int, int]) -> None:
    """Raise ImportError if handlers built against ``built`` cannot run on ``runtime``.

    A runtime takes handlers up to its own version; a newer one would make the backend's start-up fail later,
    with a message that names neither side.
    """
    if built[0] != runtime[0] or built > runtime:
        raise ImportError(
            f"jaxgemm was built against XLA FFI {built[0]}.{built[1]}, but the installed jaxlib runs FFI "
            f"{runtime[0]}.{runtime[1]}, which takes handlers up to its own version only. Install a newer jaxlib "
            "or rebuild jaxgemm against this one."
        )


def source_digest(sources: Path, endings: tuple[str, ...] = ("",)) -> str:
    """The digest of a folder of sources, or of those of its files whose names end so.

    Of the folder ffi/ of a source tree it is what ``ffi.source_digest()`` gives for what was compiled.
    """
    files = [f.relative_to(sources) for f in sources.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    files = [f for f in files if f.name.endswith(endings)]
    sums = {f.as_posix(): hashlib.sha256((sources / f).read_bytes()).hexdigest() for f in files}
    return hashlib.sha256("".join(f"{sums[name]} {name}\n" for name in sorted(sums)).encode()).hexdigest()


@cache
def register() -> Any:
    """The compiled module, with its handlers registered with XLA."""
    module = _load()
    check_ffi_version(module.ffi_api_version(), runtime_ffi_version())
    stages: dict[tuple[str, str], dict[str, object]] = {}
    for target, platform, stage, capsule in module.registrations():
        stages.setdefault((target, platform), {})[stage] = capsule
    for (target, platform), handlers in stages.items():
        jax.ffi.register_ffi_target(target, handlers, platform=platform)
    return module


with suppress(PackageNotFoundError):  # a source tree that is not installed has no module to load either
    check_requirements(requires("jaxgemm") or ())
ffi = register()
