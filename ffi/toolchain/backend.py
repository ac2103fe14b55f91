"""The build backend: scikit-build-core, plus nvcc from wheels where the machine has no CUDA toolkit."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import Any

from scikit_build_core import build as _core
from scikit_build_core.build import (  # noqa: F401  (the hooks that pip looks up here)
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
)

# All of one minor version: nvcc alone pulls a newer nvvm, whose PTX its ptxas rejects.
CUDA_WHEELS = [f"nvidia-{name}==13.0.*" for name in ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime", "cuda-cccl")]

Settings = dict[str, Any] | None


def _needs_wheels(settings: Settings) -> bool:
    wanted = os.environ.get("JAXGEMM_CUDA", "AUTO")
    for key in ("cmake.define.JAXGEMM_CUDA", "skbuild.cmake.define.JAXGEMM_CUDA"):
        wanted = (settings or {}).get(key, wanted)
    if str(wanted).upper() in {"OFF", "0", "FALSE", "NO"}:
        return False
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    found = os.environ.get("CUDACXX") or shutil.which("nvcc") or Path("/usr/local/cuda/bin/nvcc").exists()
    return not found


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What pip installs before it builds a wheel."""
    extra = CUDA_WHEELS if _needs_wheels(config_settings) else []
    return _core.get_requires_for_build_wheel(config_settings) + extra


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """What pip installs before it builds an editable install."""
    extra = CUDA_WHEELS if _needs_wheels(config_settings) else []
    return _core.get_requires_for_build_editable(config_settings) + extra
