"""Compare the machine code of two builds, kernel by kernel: ``python tests/machine_code.py OLD NEW``.

OLD and NEW are libjaxgemm.so files. Two kernels are compared that have the same name, template arguments included.
Compared are the opcodes in their order, registers, spills and tensor core instructions; operands and constants are not,
so that parameters may lie elsewhere. What is the same here needs no timing.

    python tests/machine_code.py old.so new.so --kernel sm90
    python tests/machine_code.py old.so new.so --as 'Gated\\)1=Axis)2'     a name that has changed since
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "support"))

import cubins


@dataclass(frozen=True)
class Code:
    """What is compared of a kernel."""

    opcodes: tuple[str, ...]
    registers: int
    spilled: int

    @property
    def products(self):
        return sum(name.startswith(("HGMMA", "IGMMA", "QGMMA", "HMMA", "IMMA", "DMMA")) for name in self.opcodes)


def demangled(names):
    done = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def read(library, kernel, renames=()):
    """{(chip, name): code} of a library's kernels that have this word among their names."""
    with tempfile.TemporaryDirectory() as folder:
        found = [f for f in cubins.functions(library, Path(folder)) if not kernel or kernel in f.names]
        listings = cubins.opcodes(found)
        names = demangled([f.mangled for f in found])
    code = {}
    for f, name in zip(found, names, strict=True):
        name = re.sub(r"\b(?:\w+::)+", "", name)
        for pattern, replacement in renames:
            name = re.sub(pattern, replacement, name)
        code[f.arch, name] = Code(
            tuple(listings[f.cubin, f.mangled]), f.usage["REG"], f.usage["STACK"] + f.usage["LOCAL"]
        )
    return code


def difference(old, new):
    """What differs between a kernel's two codes, in a few words; empty where nothing does."""
    said = []
    if old.registers != new.registers:
        said.append(f"registers {old.registers} -> {new.registers}")
    if old.spilled != new.spilled:
        said.append(f"spilled bytes {old.spilled} -> {new.spilled}")
    if old.products != new.products:
        said.append(f"products {old.products} -> {new.products}")
    if old.opcodes != new.opcodes:
        more = collections.Counter(new.opcodes)
        more.subtract(collections.Counter(old.opcodes))
        changed = sorted(((name, n) for name, n in more.items() if n), key=lambda x: -abs(x[1]))
        counts = ", ".join(f"{n:+d} {name}" for name, n in changed[:6]) or "another order"
        said.append(f"{len(old.opcodes)} -> {len(new.opcodes)} instructions ({counts})")
    return "; ".join(said)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], epilog="Needs cuobjdump, nvdisasm and c++filt."
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--kernel", default="", help="only kernels that have this word among their names, as sm90")
    parser.add_argument("--as", dest="renames", action="append", default=[], metavar="PATTERN=REPLACEMENT")
    options = parser.parse_args(arguments)
    renames = [tuple(text.split("=", 1)) for text in options.renames]
    if any(len(pair) < 2 for pair in renames):
        parser.error("--as takes PATTERN=REPLACEMENT")
    old, new = read(options.old, options.kernel, renames), read(options.new, options.kernel)
    for what, names in (("gone", old.keys() - new.keys()), ("added", new.keys() - old.keys())):
        for arch, name in sorted(names):
            print(f"{what}: {name} for {arch}")
    same = 0
    for key in sorted(old.keys() & new.keys()):
        if said := difference(old[key], new[key]):
            print(f"{key[1]} for {key[0]}: {said}")
        else:
            same += 1
    print(f"{same} of {len(old)} kernels are the same")
    return 0 if same == len(old) == len(new) else 1


if __name__ == "__main__":
    sys.exit(main())
