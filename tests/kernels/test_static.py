"""The compiled CUDA kernels, read without a GPU: no spills, the instructions that make each family what it is, and how
much there is of them.

A kernel that lost its 128-bit loads or its tensor cores still computes the right result, so no other test sees it. Nor
does any see that a tile or a type came to multiply the kernels that are built.
"""

import collections
import io
import sys
import zipfile
from pathlib import Path

import pytest
from cubins import LIBRARY, disassemble, has, schedule

import jaxgemm
from jaxgemm._runtime import ffi
from jaxgemm.kernels import find_kernel

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks/support"))

from ladder_budget import RUNGS

#: Kernels at most: of a family, those that copy or add for it included, for each chip, and of all for all chips.
KERNELS = {"sm90": 365, "direct": 110, "simt": 90}
ALL_KERNELS = 1129
#: Bytes at most: of the library as it is installed, and of all that is installed as a wheel compresses it.
LIBRARY_BYTES = 17_800_000
WHEEL_BYTES = 17_800_000

#: By kernel and operand type: what its code must show, a rung of the ladder's by the head of its source. Types that are
#: not named here are not looked at.
INSTRUCTIONS = {
    "gemv": {"float32": ("FFMA", "LDG.E.128"), "float16": ("HMMA", "LDG.E.128"), "bfloat16": ("HMMA", "LDG.E.128")},
    "direct": {"": ("HMMA", "LDG.E.128")},
    "simt": {"float32": ("FFMA", "LDS.128"), "float64": ("DFMA", "LDS.128")},
    "sm80": {"": ("HMMA", "LDSM", "LDGSTS")},
    "sm90": {"": ("HGMMA", "UTMALDG", "SYNCS")},
    **{name: rung.shows for name, rung in RUNGS.items()},
}

#: And of operands of 8 bits, by what they are.
NARROW = {"floats": ("QGMMA", "UTMALDG", "SYNCS"), "integers": ("IGMMA", "UTMALDG", "SYNCS")}

#: Functions disassembled for each entry above; disassembling all of them takes minutes.
SAMPLE = 2


def sample(found):
    """A few, from the first to the last."""
    return found[:: max((len(found) - 1) // (SAMPLE - 1), 1)][:SAMPLE]


def kind(narrow):
    """Of operands of 8 bits, whether they are floats or integers; empty for wider ones."""
    return narrow and ("floats" if "M" in narrow else "integers")


def expectations(compiled):
    """(function, instructions) for a sample of each entry of the table."""
    out = []
    for kernel, by_type in INSTRUCTIONS.items():
        for dtype, wanted in by_type.items():
            for arch in sorted({f.arch for f in compiled}):
                found = [f for f in compiled if f.arch == arch and f.belongs(kernel) and f.operand(dtype)]
                out += [(f, wanted) for f in sample([f for f in found if not f.narrow])]
    for what, wanted in NARROW.items():
        out += [(f, wanted) for f in sample([f for f in compiled if kind(f.narrow) == what])]
    return out


def test_every_architecture_is_there(compiled):
    built = {name.partition("-")[0] for name in ffi.cuda_architectures() if not name.endswith("-virtual")}
    assert built <= {f.arch.removeprefix("sm_") for f in compiled}


def test_every_built_row_has_code(compiled):
    missing = [
        row.name
        for row in jaxgemm.kernels()
        if row.platform == "cuda" and row.built and not any(f.belongs(row.name) for f in compiled)
    ]
    assert not missing, f"no compiled function is named after, or lies in the namespace of, {missing}"


def test_nothing_spills(compiled):
    spilling = [f"{f}: {f.usage}" for f in compiled if f.usage["STACK"] or f.usage["LOCAL"]]
    assert not spilling, "\n".join(spilling)


def test_registers_and_shared_memory(compiled):
    for f in compiled:
        assert f.usage["REG"] <= 255, f
        # What a launch gets without asking, and the 1 KB that the system reserves.
        assert f.usage["SHARED"] <= 49152 + 1024, f


def test_instructions(compiled):
    expected = expectations(compiled)
    disassemble([f for f, _ in expected])
    problems = []
    for f, wanted in expected:
        assert f.instructions, f"no disassembly of {f}"
        missing = [x for x in wanted if not has(f, x)]
        if missing:
            problems.append(f"{f} lacks {', '.join(missing)}")
        if has(f, "LDL") or has(f, "STL"):
            problems.append(f"{f} uses local memory")
    assert not problems, "\n".join(problems)


def test_every_built_row_says_what_it_must_show(compiled):
    """A new CUDA kernel comes with an entry in the table above, and the entries find its code."""
    built = [row for row in jaxgemm.kernels() if row.platform == "cuda" and row.built]
    assert not {row.name for row in built} - set(INSTRUCTIONS)
    for row in built:
        for dtype in INSTRUCTIONS[row.name]:
            if not dtype or dtype in [types[0] for types in row.types]:
                assert any(f.belongs(row.name) and f.operand(dtype) for f in compiled), f"{row.name}, {dtype}"


@pytest.fixture(scope="module")
def by_tile(compiled):
    """One of sm90's functions for each of its tiles, of those of 8 bits for each pair of types, and its instructions.
    Those of two weights have others.
    """
    if not find_kernel("sm90").built:
        pytest.skip("this build has no such kernel")
    first = {}
    for f in compiled:
        if f.belongs("sm90") and f.tile and not f.tile["gated"]:
            first.setdefault((*f.tile.values(), f.narrow), f)
    assert first
    return [(f, schedule(f)) for f in first.values()]


def test_products_of_a_step_are_in_flight_together(by_tile):
    """Where anything else writes accumulators, the assembler has each product waited for, and only warns of it."""
    for f, code in by_tile:
        products = sum(x.name.startswith(("HGMMA.", "QGMMA.", "IGMMA.")) for x in code)
        waits = sum(x.name.startswith("WARPGROUP.DEPBAR") for x in code)
        # With x from registers the product before is waited for, whose registers take the next one's x.
        most = products + 1 if f.tile["turned"] else products / 2
        assert 0 < waits <= most, f"{f}: {products} products, {waits} waits"


def test_a_bias_is_not_waited_for_before_the_products(by_tile):
    """Loads in front of a tile's main loop: who uses them there has the tensor cores wait for memory, tile by tile."""
    for f, code in by_tile:
        if f.tile["tokens"] or f.tile["many"] or f.tile["planes"]:
            continue  # a grouped product reads where a tile lies; planes are of fp32, whose bias is added last
        if kind(f.narrow) == "integers":
            continue  # to which nothing is added
        products = next(i for i, x in enumerate(code) if x.name == "WARPGROUP.ARRIVE")
        loads = [i for i, x in enumerate(code[:products]) if x.name.startswith("LDG.")]
        assert loads, f"{f} loads no bias ahead"
        for i in loads:
            early = [x for x in code[i + 1 : products] if x.waits >> code[i].announces & 1]
            assert code[i].announces < 7, f
            assert not early, f"{f}: {early[0].name} waits for {code[i].name}"


@pytest.mark.parametrize("family", KERNELS)
def test_how_many_kernels_a_family_has(compiled, family):
    counts = collections.Counter(f.arch for f in compiled if family in f.names)
    most, built = KERNELS[family], find_kernel(family).built
    assert counts or not built, f"no compiled function lies in a namespace {family}"
    assert max(counts.values(), default=0) <= most, f"{family} has {dict(counts)} kernels, at most {most} for a chip"


def test_how_many_kernels_there_are(compiled):
    counts = collections.Counter(f.arch for f in compiled)
    assert len(compiled) <= ALL_KERNELS, f"{dict(counts)} are {len(compiled)} kernels, at most {ALL_KERNELS}"


def test_how_large_the_library_is():
    size = LIBRARY.stat().st_size
    assert size <= LIBRARY_BYTES, f"{LIBRARY} has {size} bytes, at most {LIBRARY_BYTES}"


def test_how_large_a_wheel_is():
    """Of all that is installed here but metadata, compressed as wheels are, whether or not it came in one."""
    installed = {path.name: path for path in (LIBRARY, Path(ffi.__file__))}
    package = Path(jaxgemm.__file__).parent
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
            installed[str(path.relative_to(package))] = path
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in installed.items():
            archive.write(path, f"jaxgemm/{name}")
    size = len(wheel.getvalue())
    assert size <= WHEEL_BYTES, f"a wheel of {len(installed)} files has {size} bytes, at most {WHEEL_BYTES}"
