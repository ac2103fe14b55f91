"""The build backend: scikit-build-core, plus what compiling the kernels needs, where kernels are compiled."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

from scikit_build_core import build as _core
from scikit_build_core.build import (  # noqa: F401  (the hooks that pip looks up here)
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
)

# For its FFI headers: a handler must not be newer than the runtime that loads it, so the build uses the oldest
# version supported.
HEADERS = ["jaxlib==0.10.2"]
# All of one minor version: nvcc alone pulls a newer nvvm, whose PTX its ptxas rejects.
CUDA_WHEELS = [f"nvidia-{name}==13.0.*" for name in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime", "cuda-cccl")]

Settings = dict[str, Any] | None


def _setting(name: str, default: str, settings: Settings) -> str:
    """A CMake variable as the environment or pip's ``--config-settings`` give it."""
    value = os.environ.get(name, default)
    for key in (f"cmake.define.{name}", f"skbuild.cmake.define.{name}"):
        value = str((settings or {}).get(key, value))
    return value


def _extra(settings: Settings) -> list[str]:
    if sys.version_info < (3, 11):  # noqa: UP036  (pip asks before it looks at requires-python)
        raise RuntimeError(f"jaxgemm needs Python 3.11 or newer, and this is Python {platform.python_version()}")
    if _setting("JAXGEMM_LIBRARY", "", settings):
        return []
    if _setting("JAXGEMM_CUDA", "AUTO", settings).upper() in {"OFF", "0", "FALSE", "NO"}:
        return HEADERS
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return HEADERS
    found = os.environ.get("CUDACXX") or shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()
    return HEADERS if found else HEADERS + CUDA_WHEELS


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What pip installs before it builds a wheel."""
    return _core.get_requires_for_build_wheel(config_settings) + _extra(config_settings)


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """What pip installs before it builds an editable install."""
    return _core.get_requires_for_build_editable(config_settings) + _extra(config_settings)
