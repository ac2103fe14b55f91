"""Compiled CUDA kernels, read out of the library by cuobjdump: what each uses, and its instructions."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from jaxgemm._runtime import LIBRARY as LIBRARY_NAME
from jaxgemm._runtime import ffi

LIBRARY = Path(ffi.__file__).with_name(LIBRARY_NAME)

#: Element types by the numbers that mangled names give them.
TYPES = {name: number for number, (name, *_) in enumerate(ffi.element_types())}

#: In the names of kernels that accompany a product: they copy, split or add, and have no product's instructions.
_HELPERS = ("reduce", "repack", "split", "find_largest")

#: The fields of sm90's TileConfig (ffi/cuda/sm90/configs.h), whose values mangled names give in this order.
_TILE = (
    *("tile_m", "tile_n", "consumers", "schedule", "gated", "blocks", "realigns", "every_eighth", "tokens", "many"),
    *("staging_buffers", "planes", "turned"),
)

#: A line of a disassembly: the name of the instruction, behind its predicate.
_INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?\w+ )?([A-Z][\w.]*)")


def _tool(name):
    """The path of a CUDA binary utility, from its wheel or from PATH; None if there is none."""
    folders = [str(p) for entry in sys.path for p in Path(entry or ".").glob("nvidia/cu*/bin")]
    for folder in [*folders, *os.environ.get("PATH", "").split(os.pathsep)]:
        if (path := Path(folder) / name).is_file():
            return path
    return None


def _cuobjdump(*arguments, cwd=None):
    tool = _tool("cuobjdump")
    path = os.pathsep.join([str(tool.parent), os.environ.get("PATH", "")])  # it calls nvdisasm
    environment = {**os.environ, "PATH": path}
    done = subprocess.run([tool, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout


def missing():
    """Why there is nothing to read here; empty if there is."""
    if not ffi.cuda_architectures():
        return "this build has no CUDA kernels to read"
    if _tool("cuobjdump") is None or _tool("nvdisasm") is None:
        return "cuobjdump and nvdisasm are not there: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm"
    return ""


def _identifiers(mangled):
    """The nested names of a mangled function: ("jaxgemm", "cuda", "sm90", "gemm_sm90")."""
    names, rest = [], mangled.removeprefix("_ZN")
    while found := re.match(r"\d+", rest):
        start, length = found.end(), int(found[0])
        names.append(rest[start : start + length])
        rest = rest[start + length :]
    return tuple(names)


@dataclass
class Function:
    """One kernel as compiled for one architecture."""

    arch: str
    mangled: str
    cubin: Path
    usage: dict[str, int] = field(default_factory=dict)
    instructions: set[str] = field(default_factory=set)

    @property
    def names(self):
        return _identifiers(self.mangled)

    def belongs(self, kernel):
        """Whether this is the product of that row: its function, or one in its namespace."""
        helper = any(word in self.names[-1] for word in _HELPERS)
        return not helper and not {kernel, f"{kernel}_gemm"}.isdisjoint(self.names)

    def operand(self, dtype):
        """Whether the first type in its signature is this one."""
        return not dtype or re.search(rf"5DTypeE{TYPES[dtype]}E", self.mangled) is not None

    def product(self, types):
        """Whether the types in its signature are these: a, b and d of a row of the kernel table."""
        found = re.search(r"5DTypeE(\d)E" + r"LS\w*?_(\d)E" * 2, self.mangled)
        return found is not None and [int(x) for x in found.groups()] == [TYPES[x] for x in types[:3]]

    @property
    def narrow(self):
        """Of a function of sm90's, what multiplies operands of 8 bits, as their types are mangled; empty for wider."""
        found = re.search(r"7ProductI([ah]{2}i|NS_4E[45]M[23]E\w*?f)E", self.mangled)
        return found[1] if found else ""

    @property
    def tile(self):
        """The fields of the tile that a function of sm90's is compiled for, by name."""
        found = re.search(r"TileConfigE(\w+?)EEL", self.mangled)
        values = re.findall(r"L(?:[ib]|NS\w*?E|S[0-9A-Z]*_)(\d+)E", found[1] + "E") if found else []
        return dict(zip(_TILE, map(int, values), strict=True)) if values else {}

    @property
    def shared_bytes(self):
        """Shared memory that a block declares. On chips that keep 1 KB of it to themselves the listing counts that."""
        kept = 0 if self.arch.startswith("sm_8") else 1024
        return max(self.usage["SHARED"] - kept, 0)

    def __str__(self):
        return f"{self.names[-1]} for {self.arch} ({self.mangled})"


def functions(module, folder):
    """Every kernel of the module, with the registers and memory that it uses; its cubins go into the folder."""
    listed = _cuobjdump("--list-elf", module).split(".cubin")[:-1]
    _cuobjdump("--extract-elf", "all", module, cwd=folder)
    cubins = sorted(folder.glob("*.cubin"))
    # They are named after sources: of two sources with one name, one file would take the other's place.
    assert len(cubins) == len(listed), listed
    found = []
    for cubin in cubins:
        arch = cubin.name.split(".")[-2]  # name.sm_90a.cubin
        for line in _cuobjdump("--dump-resource-usage", cubin).splitlines():
            if match := re.match(r"\s*Function (\S+):", line):
                found.append(Function(arch, match[1], cubin))
            elif "REG:" in line:
                found[-1].usage = {key: int(n) for key, n in re.findall(r"(\w+):(\d+)", line)}
    return found


def disassemble(wanted):
    """Add the instructions of these functions to them."""
    listings = opcodes(wanted)
    for f in wanted:
        f.instructions |= set(listings[f.cubin, f.mangled])


def opcodes(wanted):
    """{(cubin, mangled name): the names of a function's instructions in their order}."""
    found = {}
    for cubin in sorted({f.cubin for f in wanted}):
        here = [f.mangled for f in wanted if f.cubin == cubin]
        current = None
        for line in _cuobjdump("--dump-sass", "--function", ",".join(here), cubin).splitlines():
            if match := re.search(r"Function : (\S+)", line):
                current = found.setdefault((cubin, match[1]), [])
            elif current is not None and (match := _INSTRUCTION.match(line)):
                current.append(match[1])
    return found


@dataclass
class Scheduled:
    """An instruction, the scoreboard on which it announces its result (7: none), and the mask of those it waits for."""

    name: str
    announces: int
    waits: int


def schedule(function):
    """The instructions of one function in the order of their addresses."""
    found = []
    for line in _cuobjdump("--dump-sass", "--function", function.mangled, function.cubin).splitlines():
        if match := _INSTRUCTION.match(line):
            found.append(Scheduled(match[1], 7, 0))
        elif found and (match := re.match(r"\s+/\* (0x[0-9a-f]{16}) \*/", line)):  # the upper half of its 128 bits
            found[-1].announces, found[-1].waits = int(match[1], 16) >> 46 & 7, int(match[1], 16) >> 52 & 63
    return found


def barriers_end(function):
    """Where the last barrier that a function initialises ends, in bytes from where its shared memory begins."""
    text = _cuobjdump("--dump-sass", "--function", function.mangled, function.cubin)
    return max(int(at, 16) for at in re.findall(r"SYNCS\.EXCH\.64 URZ, \[\w+\+(0x[0-9a-f]+)\]", text)) + 8


def has(function, instruction):
    """Whether the function has this instruction, with these modifiers in this order among others."""
    want = instruction.split(".")
    for name in function.instructions:
        parts = name.split(".")
        rest = iter(parts[1:])
        if parts[0] == want[0] and all(any(x == y for y in rest) for x in want[1:]):
            return True
    return False
