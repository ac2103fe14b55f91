"""The kernels' library and its binding: what each exports, and that they refuse a partner that does not fit."""

import importlib
import os
import re
import shutil
import struct
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import jaxgemm
from jaxgemm import _runtime, precision
from jaxgemm.dtypes import ELEMENT_TYPES

BINDING = Path(importlib.import_module("jaxgemm._ffi").__file__)
LIBRARY = BINDING.with_name(_runtime.LIBRARY)
SOURCES = Path(__file__).resolve().parents[2] / "ffi"

linux = pytest.mark.skipif(sys.platform != "linux", reason="these are no ELF files here")


def sections(image):
    """(type, offset, size, linked section, bytes an entry) of an ELF file's sections."""
    at, size, count = (*struct.unpack_from("<Q", image, 40), *struct.unpack_from("<HH", image, 58))
    found = [struct.unpack_from("<IIQQQQIIQQ", image, at + i * size) for i in range(count)]
    return [(kind, offset, extent, link, entry) for _, kind, _, _, offset, extent, link, _, _, entry in found]


def text(image, start):
    return image[start : image.index(0, start)].decode()


def exported(path):
    """The dynamic symbols that the file defines."""
    image, names = path.read_bytes(), []
    for kind, offset, extent, link, entry in sections(image):
        if kind == 11:  # dynamic symbols, whose names are in the linked section
            for symbol in range(offset, offset + extent, entry):
                name, _, _, defined_in = struct.unpack_from("<IBBH", image, symbol)
                names += [text(image, sections(image)[link][1] + name)] if defined_in else []
    return names


def dynamic(path, tag):
    """The strings that its dynamic section gives for a tag: 1 what it needs, 15 and 29 where that is looked for."""
    image, found = path.read_bytes(), []
    for kind, offset, extent, link, entry in sections(image):
        if kind == 6:
            for at in range(offset, offset + extent, entry):
                this, value = struct.unpack_from("<QQ", image, at)
                found += [text(image, sections(image)[link][1] + value)] if this == tag else []
    return found


@linux
@pytest.mark.parametrize(("path", "names"), [(BINDING, ["PyInit__ffi"]), (LIBRARY, ["jaxgemm_library"])])
def test_exports(path, names):
    """A C++ runtime that was linked in statically must not meet another one's: see ffi/toolchain/library.map."""
    assert exported(path) == names


@linux
def test_the_binding_finds_the_library_beside_it():
    assert _runtime.LIBRARY in dynamic(BINDING, 1)
    assert dynamic(BINDING, 15) + dynamic(BINDING, 29) == ["$ORIGIN"]


@linux
def test_the_library_knows_no_python_and_the_binding_no_cuda():
    assert b"PyObject" not in LIBRARY.read_bytes()
    assert b"cudaLaunchKernel" not in BINDING.read_bytes()


@linux
def test_what_is_needed_is_everywhere():
    """The runtimes of C and C++, which .ci/wheel finds in its policy, and nothing of CUDA, which JAX brings or not."""
    runtimes = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
    runtimes |= {"libdl.so.2", "librt.so.1", "libpthread.so.0"}  # of their own before glibc 2.34
    assert set(dynamic(LIBRARY, 1)) <= runtimes
    assert set(dynamic(BINDING, 1)) <= {*runtimes, _runtime.LIBRARY}


def test_no_package_is_needed_but_jax():
    needed = {re.split(r"[^\w-]", x)[0] for x in metadata.requires("jaxgemm") if "extra ==" not in x}
    assert needed == {"jax", "jaxlib", "numpy"}


def test_what_was_compiled_is_what_is_here():
    assert _runtime.ffi.source_digest() == _runtime.source_digest(SOURCES)


def test_both_tables_of_element_types_say_the_same():
    ours = [(t.name, t.bytes, t.accumulator) for t in ELEMENT_TYPES.values()]
    assert _runtime.ffi.element_types() == ours
    for row in jaxgemm.kernels():
        for a, b, _, sums in row.types:
            assert {ELEMENT_TYPES[a].accumulator, ELEMENT_TYPES[b].accumulator} == {sums}, row.name


def test_both_tables_of_arithmetics_say_the_same():
    assert _runtime.ffi.arithmetics() == [*precision.ARITHMETICS]
    rules = {row.name: row.rules for row in jaxgemm.kernels()}
    planes = {name for name in precision.ARITHMETICS if "16" in name}
    assert {rule.arithmetic for rule in rules["wmma_tf32"]} == {"tf32"}
    assert {rule.arithmetic for rule in rules["sm90"] if rule.a == "float32"} == planes
    of_fp8 = [rule.arithmetic for rule in rules["sm90"] if rule.a.startswith("float8")]
    assert set(of_fp8) == {"plain", "promoted"}
    for name, rule in ((name, rule) for name, of in rules.items() if name != "wmma_tf32" for rule in of):
        own = {"wmma": {"tf32"}, "sm90": planes}.get(name, {"plain"}) if rule.a == "float32" else {"plain"}
        own = own | {"promoted"} if (name, rule.a[:6]) == ("sm90", "float8") else own
        assert rule.arithmetic in own, (name, rule)
        assert (rule.c, rule.bias) == (rule.d, rule.d)


def test_the_digest_follows_the_sources(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/x.cu").write_text("1")
    (tmp_path / "b.cc").write_text("2")
    before = _runtime.source_digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/c.pyc").write_text("3")
    assert _runtime.source_digest(tmp_path) == before
    (tmp_path / "b.cc").rename(tmp_path / "c.cc")
    renamed = _runtime.source_digest(tmp_path)
    (tmp_path / "c.cc").write_text("3")
    assert len({before, renamed, _runtime.source_digest(tmp_path)}) == 3


@pytest.fixture
def package(tmp_path):
    """A copy of the package as it is installed."""
    shutil.copytree(Path(_runtime.__file__).parent, tmp_path / "jaxgemm", ignore=shutil.ignore_patterns("*.so"))
    for path in (BINDING, LIBRARY):
        shutil.copy(path, tmp_path / "jaxgemm")
    return tmp_path / "jaxgemm"


def import_error(package):
    code = "try:\n import jaxgemm\nexcept ImportError as error:\n print(error.name, error, sep='|')"
    path = os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_copy_of_the_package_loads(package):
    assert import_error(package) == ""


def test_a_binding_for_another_python_is_named(package):
    binding = package / "_ffi.cpython-310-x86_64-linux-gnu.so"
    (package / BINDING.name).rename(binding)
    message = import_error(package)
    assert f"the compiled module in {package} is for another Python: {binding.name}. This is Python 3." in message


@linux
def test_a_missing_library_is_named(package):
    (package / _runtime.LIBRARY).unlink()
    name, _, message = import_error(package).partition("|")
    assert name == _runtime.LIBRARY
    assert message.startswith(f"jaxgemm: {_runtime.LIBRARY}, which holds the kernels, is missing beside")


def test_a_library_of_other_sources_is_refused(package):
    digest = _runtime.ffi.source_digest()
    other = digest[::-1]
    image = (package / _runtime.LIBRARY).read_bytes()
    assert image.count(digest.encode()) == 1
    (package / _runtime.LIBRARY).write_bytes(image.replace(digest.encode(), other.encode()))
    message = import_error(package)
    assert f"libjaxgemm.so was built from other sources (digest {other}) than the binding" in message
