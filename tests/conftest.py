"""Which tests run here: one instance a kernel of the table, and CUDA kernels only where there is a device.

A test that takes ``row`` runs for every kernel of the table, with ``types`` for each of its element types, and with
``option`` for each documented value of each of its options. Of floats of 8 bits, ``types`` has each pair once, whose
results take turns. A new row is tested with no edit here.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes may share the device
# Where there is a GPU it is the second platform: what a test does not ask for runs on the CPU, in the threads and
# processes that it starts as well. It may mean more by what it compares with than a GPU does: kernels by name, several
# devices, float32 at the default precision.
if Path("/dev/nvidiactl").exists() and any(importlib.util.find_spec(f"jax_cuda{v}_plugin") for v in (12, 13)):
    os.environ.setdefault("JAX_PLATFORMS", "cpu,cuda")
else:
    # Most of the suite's time is XLA's making of machine code for programs that run once, and plain code is made
    # sooner. With a GPU, and by ``XLA_FLAGS= pytest``, the suite runs the code that users run.
    plain = ["--xla_backend_optimization_level=0"]
    if importlib.metadata.version("jaxlib").startswith("0.10."):  # later ones do not know it, and end the process
        plain.append("--xla_cpu_use_fusion_emitters=false")
    os.environ.setdefault("XLA_FLAGS", " ".join(plain))

import cases
import gpu_record
import hypothesis
import jax
import numpy as np
import pytest
import sanitize
from arrays import array

jax.config.update("jax_enable_x64", True)

# meshes asks for 8 CPU devices, before anything starts the backend.
import cubins  # noqa: E402
import meshes  # noqa: E402, F401

import jaxgemm  # noqa: E402
from jaxgemm.kernels import device_for  # noqa: E402

hypothesis.settings.register_profile(
    "jaxgemm",
    deadline=None,  # compiling takes longer than any deadline
    derandomize=True,
    database=None,
    max_examples=30,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("jaxgemm")


def _cuda_missing() -> str:
    """Why CUDA kernels cannot run here; empty if they can."""
    try:
        jax.devices("cuda")
    except RuntimeError:
        return "no CUDA device"
    return ""


def _refusal(row: jaxgemm.Kernel) -> str:
    """Why this kernel cannot run here; empty if it can."""
    if row.platform != "cuda":
        return ""
    if missing := _cuda_missing():
        return missing
    if not row.built:
        return "this build has no CUDA kernels"
    arch = device_for("cuda").arch
    if arch < row.min_arch or (row.max_arch and arch > row.max_arch):
        return "kernels for other devices"
    return ""


@pytest.fixture
def benchmark_script(monkeypatch):
    """Loads a module of benchmarks/ by its name. What it imports from there is forgotten afterwards."""
    folder = Path(__file__).parent.parent / "benchmarks"
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(folder / "support"))
    monkeypatch.syspath_prepend(str(folder))

    def load(name):
        (file,) = folder.rglob(f"{name}.py")
        spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield load
    for name in set(sys.modules) - before:
        if folder in Path(getattr(sys.modules[name], "__file__", None) or "/").parents:
            del sys.modules[name]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = [name for name in ("row", "types", "option") if name in metafunc.fixturenames]
    if "row" not in names:
        return
    params = []
    for row in jaxgemm.kernels():
        marks = [pytest.mark.gpu] if row.platform == "cuda" else []
        types = cases.covering(row.types) if "types" in names else [None]
        options = [None]
        if "option" in names:
            options = [(k, v) for k, vs in row.options.items() for v in vs or cases.FREE_OPTION_VALUES]
        for t in types:
            for option in options:
                values = [row, *([t] if "types" in names else []), *([option] if "option" in names else [])]
                parts = [row.name, *(["x".join(t[:2]) + "-" + t[2]] if t else [])]
                parts += [f"{option[0]}={option[1]}"] if option else []
                params.append(pytest.param(*values, marks=marks, id="-".join(parts)))
    metafunc.parametrize(names, params)


#: Files whose tests read sources, documents, stored figures or machine code, and call nothing of JAX's. What they say
#: is the same by every JAX, so that ``.ci/run`` leaves them out of its second run.
ANY_JAX = {
    *(f"kernels/test_{name}.py" for name in ("recall", "static")),
    *(f"tools/test_{name}.py" for name in ("builds", "fit", "gpu_record", "machine_code", "modules", "performance")),
    *(f"tools/test_{name}.py" for name in ("readme", "records", "roofline", "sanitize", "sizes", "subset")),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=gpu_record.part, help="one part of the suite, as 1/2: every second test, or third")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if part := config.getoption("--part"):
        items[:] = part.of(items)
    for item in items:
        if item.path.relative_to(Path(__file__).parent).as_posix() in ANY_JAX:
            item.add_marker(pytest.mark.any_jax)
        if item.get_closest_marker("gpu"):
            row = _row(item)
            if reason := _refusal(row) if row else _cuda_missing():
                item.add_marker(pytest.mark.skip(reason=f"gpu: {reason}"))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object:
    """A test of every kernel skips what `wgmma_tma` refuses by name; test_ladder.py tests that it refuses no more."""
    try:
        return (yield)
    except jaxgemm.UnsupportedError as error:
        row = _row(pyfuncitem)
        if row and row.name == "wgmma_tma" and "copies rows that begin at multiples of 16 bytes" in str(error):
            pytest.skip(str(error))
        raise


def _row(item: pytest.Item) -> jaxgemm.Kernel | None:
    """The kernel that a test is for, given as ``row`` or by name as ``kernel``."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    by_name = {row.name: row for row in jaxgemm.kernels()}
    return params.get("row") or by_name.get(params.get("kernel"))


@pytest.fixture(autouse=True)
def _device(request: pytest.FixtureRequest):
    """A test runs on its kernel's platform, and one of no kernel's on the CPU unless it is marked ``gpu``."""
    row = _row(request.node)
    platform = row.platform if row else "cuda" if request.node.get_closest_marker("gpu") else "cpu"
    jax.config.update("jax_default_device", jax.devices(platform)[0])  # for threads that the test starts as well
    yield
    jax.config.update("jax_default_device", None)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[cubins.Function]:
    """Every CUDA kernel of the library, as it was compiled."""
    if missing := cubins.missing():
        pytest.skip(missing)
    return cubins.functions(cubins.LIBRARY, tmp_path_factory.mktemp("cubins"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that depend on the test, not on the order of the tests."""
    return np.random.default_rng(list(request.node.nodeid.encode()))


@pytest.fixture
def x(rng: np.random.Generator) -> jax.Array:
    """What the functions that override is tested with multiply."""
    return array(rng.standard_normal((5, 8)))


@pytest.fixture
def w(rng: np.random.Generator) -> jax.Array:
    """Their weights."""
    return array(rng.standard_normal((8, 8)) / 4)


_GPU_SKIPS = "gpu skipped"


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    # A category of their own keeps the list of skips short.
    if report.skipped and "gpu" in getattr(report, "keywords", ()) and "gpu: " in str(report.longrepr):
        return _GPU_SKIPS, "s", "SKIPPED (gpu)"
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get(_GPU_SKIPS, [])
    if skipped:
        reasons = sorted({report.longrepr[2].partition("gpu: ")[2] for report in skipped})
        terminalreporter.write_line(f"gpu: {len(skipped)} tests skipped, {', '.join(reasons)}")
    for record in (gpu_record, sanitize):
        if stale := record.staleness():
            terminalreporter.write_line(f"warning: {stale}")
