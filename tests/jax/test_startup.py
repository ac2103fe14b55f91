"""Import, and what must not go wrong in it: silence, a source tree that is not installed, an FFI that does not fit."""

import os
import re
import runpy
import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest

from jaxgemm import _runtime


def run(code, path=None, **environment):
    """Run code in a fresh interpreter on the CPU, away from the source tree."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    if path is not None:
        env["PYTHONPATH"] = str(path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=env, cwd="/", capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def test_import_prints_nothing():
    environment = {k: v for k, v in os.environ.items() if k != "JAX_PLATFORMS"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import jaxgemm; jaxgemm.kernels()"],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_source_tree_says_that_it_is_not_installed():
    root = Path(__file__).resolve().parents[2]
    if any((root / "jaxgemm").glob("_ffi*.so")):
        pytest.skip("the source tree holds a compiled module")
    code, out, err = run("import jaxgemm", path=root)
    assert (code, out) == (1, "")
    last = err.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: jaxgemm was imported from {root / 'jaxgemm'}, which holds no compiled module")
    assert "pip install ." in last


def test_arrays_on_different_devices():
    code, _, err = run(
        "import jax, jax.numpy as jnp, jaxgemm\n"
        "x, y = (jax.device_put(jnp.ones((4, 4)), d) for d in jax.devices())\n"
        "jaxgemm.gemm(x, y, kernel='host')\n",
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
    )
    assert code == 1
    message = err[err.index("ValueError") :]
    assert "incompatible devices" in message
    assert "jaxgemm_gemm" in message
    assert "[0]" in message
    assert "[1]" in message


def test_a_jax_that_is_too_old():
    code, out, err = run(
        "import importlib.metadata as metadata\n"
        "version = metadata.version\n"
        "metadata.version = lambda name: '0.9.0' if name == 'jax' else version(name)\n"
        "import jaxgemm\n"
    )
    assert (code, out) == (1, "")
    least = next(x for x in metadata.requires("jaxgemm") if x.startswith("jax>="))
    assert err.strip().splitlines()[-1].startswith(f"ImportError: jaxgemm needs {least}, and jax 0.9.0 is installed. ")


@pytest.mark.parametrize(
    ("installed", "fits"),
    [
        ("0.9.2", False),
        ("0.10.1", False),
        ("0.10.2", True),
        ("0.10.2.dev20260101", True),
        ("0.10.10", True),
        ("1", True),
    ],
)
def test_which_versions_are_too_old(monkeypatch, installed, fits):
    monkeypatch.setattr(_runtime, "version", lambda _: installed)
    _runtime.check_requirements(["numpy>=99; extra == 'test'", "jax[cuda13]>=99"])
    if fits:
        _runtime.check_requirements(["jaxlib>=0.10.2"])
        return
    with pytest.raises(ImportError, match=rf"^jaxgemm needs jaxlib>=0\.10\.2, and jaxlib {re.escape(installed)} is"):
        _runtime.check_requirements(["jaxlib>=0.10.2"])


def test_a_package_that_no_metadata_tells_of(monkeypatch):
    """Its import says that it is missing, or finds it."""

    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(_runtime, "version", unknown)
    _runtime.check_requirements(["jax>=0.10.2"])


@pytest.mark.parametrize("built", [(0, 4), (1, 0)])
def test_built_against_a_newer_ffi(built):
    text = (
        f"jaxgemm was built against XLA FFI {built[0]}.{built[1]}, but the installed jaxlib runs FFI 0.3, which takes "
        "handlers up to its own version only. Install a newer jaxlib or rebuild jaxgemm against this one."
    )
    with pytest.raises(ImportError, match=re.escape(text)):
        _runtime.check_ffi_version(built, (0, 3))


def test_the_running_ffi_takes_what_was_built():
    built, runtime = _runtime.ffi.ffi_api_version(), _runtime.runtime_ffi_version()
    assert built <= runtime
    _runtime.check_ffi_version(built, runtime)
    _runtime.check_ffi_version((0, 2), (0, 3))


def test_a_build_for_a_python_that_is_too_old(monkeypatch):
    """Before pip looks at requires-python it installs what a build needs, and would complain of jaxlib."""
    core = types.ModuleType("scikit_build_core")
    core.build = types.SimpleNamespace(
        **dict.fromkeys(("build_editable", "build_sdist", "build_wheel", "get_requires_for_build_sdist")),
        get_requires_for_build_wheel=lambda _: [],
    )
    monkeypatch.setitem(sys.modules, "scikit_build_core", core)
    monkeypatch.setitem(sys.modules, "scikit_build_core.build", core.build)
    monkeypatch.setenv("JAXGEMM_CUDA", "OFF")
    backend = runpy.run_path(str(Path(__file__).resolve().parents[2] / "ffi/toolchain/backend.py"))
    assert backend["get_requires_for_build_wheel"]() == backend["HEADERS"]
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(RuntimeError, match=r"^jaxgemm needs Python 3\.11 or newer, and this is Python "):
        backend["get_requires_for_build_wheel"]()
