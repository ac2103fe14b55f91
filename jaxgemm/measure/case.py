"""A product to be measured: its description, fresh operands for it, and its error against float64."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import jaxgemm
from jaxgemm.dtypes import ELEMENT_TYPES, OPERANDS
from jaxgemm.epilogue import ACTIVATIONS
from jaxgemm.measure.data import KINDS, Draw
from jaxgemm.precision import BY_PARTS

#: What ``--dtype`` takes, short and long.
DTYPES = {ELEMENT_TYPES[name].short: name for name in OPERANDS}
LAYOUTS = ("NN", "NT", "TN", "TT")
#: Algorithms for fp32 operands, by JAX's names.
ALGORITHMS = ("F32_F32_F32", *BY_PARTS)
PRECISIONS = ("default", "highest", *ALGORITHMS)

_SAMPLED_ROWS = 64
_DATA, _OUT = "data=", "->"


@dataclass(frozen=True)
class Case:
    """One product to be measured.

    Attributes:
        m, n, k: extents.
        dtype: type of both operands, by NumPy's name.
        layout: which operand is stored transposed, as in "NT".
        batch: leading batch dimension, or None for none.
        precision: one of PRECISIONS, which are for fp32 and mean nothing for other types.
        bias: whether a vector of n is added to every row.
        activation: what is applied last, a name that ``gemm`` takes, or None.
        data: what operands hold, one of ``jaxgemm.measure.data.KINDS`` for types with fractions; None: standard-normal
            numbers of the operands' own type, or those of an integer's whole range.
        out: type of the result, by NumPy's name; None: what ``gemm`` returns unless asked for another.
    """

    m: int
    n: int
    k: int
    dtype: str = "float32"
    layout: str = "NN"
    batch: int | None = None
    precision: str = "highest"
    bias: bool = False
    activation: str | None = None
    data: str | None = None
    out: str | None = None

    @property
    def out_dtype(self) -> str:
        """The result's type; unless it is given, 8-bit integers give int32, and 8-bit floats float32."""
        return self.out or ELEMENT_TYPES[self.dtype].result

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the operands as stored."""
        lead = () if self.batch is None else (self.batch,)
        a = (self.k, self.m) if self.layout[0] == "T" else (self.m, self.k)
        b = (self.n, self.k) if self.layout[1] == "T" else (self.k, self.n)
        return (*lead, *a), (*lead, *b)

    def to_json(self) -> dict[str, Any]:
        """Plain values, as rows of results have them."""
        precision = self.precision if self.dtype == "float32" else None
        given = {name: value for name, value in asdict(self).items() if name != "out"}
        return {"problem": str(self), **given, "out_dtype": self.out_dtype, "precision": precision}

    @property
    def plain(self) -> bool:
        """Whether it is a product and nothing else."""
        return not self.bias and self.activation is None

    @property
    def operands(self) -> list[jax.ShapeDtypeStruct]:
        """A, B, and the bias if there is one, as shapes and types."""
        a, b = (jax.ShapeDtypeStruct(shape, jnp.dtype(self.dtype)) for shape in self.shapes)
        return [a, b, *([jax.ShapeDtypeStruct((self.n,), jnp.dtype(self.out_dtype))] if self.bias else [])]

    @property
    def flops(self) -> int:
        """Operations: 2 m n k for each product."""
        return 2 * self.m * self.n * self.k * (1 if self.batch is None else self.batch)

    @property
    def operand_bytes(self) -> int:
        """Bytes of A and B."""
        a, b = self.shapes
        return (int(np.prod(a)) + int(np.prod(b))) * ELEMENT_TYPES[self.dtype].bytes

    @property
    def jax_precision(self) -> jax.lax.Precision | jax.lax.DotAlgorithmPreset | None:
        """The precision to ask for; None where the type leaves nothing to choose."""
        if self.dtype != "float32":
            return None
        if self.precision in ALGORITHMS:
            return jax.lax.DotAlgorithmPreset[self.precision]
        return jax.lax.Precision.HIGHEST if self.precision == "highest" else jax.lax.Precision.DEFAULT

    def __str__(self) -> str:
        """As in "1024x64x64@8 NT bf16 +bias gelu", "64x64x64 NN f32 BF16_BF16_F32_X6 data=softmax", or "8x8x8 NN e4m3
        ->bf16".
        """
        batch = "" if self.batch is None else f"@{self.batch}"
        short = ELEMENT_TYPES[self.dtype].short
        algorithm = f" {self.precision}" if self.dtype == "float32" and self.precision in ALGORITHMS else ""
        after = f"{' +bias' if self.bias else ''}{f' {self.activation}' if self.activation else ''}"
        after += f" {_DATA}{self.data.replace(' ', '-')}" if self.data else ""
        after += f" {_OUT}{ELEMENT_TYPES[self.out].short}" if self.out else ""
        return f"{self.m}x{self.n}x{self.k}{batch} {self.layout} {short}{algorithm}{after}"

    def ours(self, a: jax.Array, b: jax.Array, bias: jax.Array | None = None, **options: Any) -> jax.Array:
        """This product by jaxgemm; ``options`` name the kernel and set its options."""
        return jaxgemm.gemm(a, b, bias=bias, **self.gemm_options(), **options)

    def gemm_options(self) -> dict[str, Any]:
        """Keyword arguments of ``jaxgemm.gemm`` that ask for this product."""
        return {
            "activation": self.activation,
            "transpose_a": self.layout[0] == "T",
            "transpose_b": self.layout[1] == "T",
            "out_dtype": jnp.dtype(self.out_dtype),
            "precision": self.jax_precision,
        }

    def xla(self, a: jax.Array, b: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        """The same product by XLA alone, in the form that XLA gives its own fused epilogues."""
        first = 0 if self.batch is None else 1
        contract = ((first + (self.layout[0] == "N"),), (first + (self.layout[1] == "T"),))
        lead = tuple(range(first))
        product = jax.lax.dot_general(
            a,
            b,
            (contract, (lead, lead)),
            precision=self.jax_precision,
            preferred_element_type=jnp.dtype(self.out_dtype),
        )
        z = product if bias is None else product + bias
        return z if self.activation is None else ACTIVATIONS[self.activation](z)


def parse_dtype(text: str) -> str:
    """The full name of a type given by its short or full name."""
    name = DTYPES.get(text, text)
    if name not in DTYPES.values():
        raise ValueError(f"unknown dtype {text!r}: expected one of {', '.join(DTYPES)} (or a full name as float32)")
    return name


def parse_shapes(text: str) -> list[tuple[int, int, int, int | None]]:
    """(m, n, k, batch) of each "MxNxK" or "MxNxK@batch" in a list separated by commas."""
    shapes = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)x(\d+)x(\d+)(?:@(\d+))?\s*", item)
        if match is None:
            raise ValueError(f"malformed shape {item!r}: expected MxNxK or MxNxK@batch, as in 4096x4096x4096@8")
        m, n, k = (int(part) for part in match.groups()[:3])
        batch = int(match[4]) if match[4] else None
        if 0 in (m, n, k, batch):
            raise ValueError(f"malformed shape {item!r}: every extent must be at least 1 to be measured")
        shapes.append((m, n, k, batch))
    return shapes


def parse_case(text: str) -> Case:
    """The case that is written like this, as in "1024x64x64@8 NT bf16 +bias gelu"; fp32 at precision "highest" if
    no algorithm is named.
    """
    shape, layout, dtype, *after = [*text.split(), "", ""]  # so that there are three
    ((m, n, k, batch),) = parse_shapes(shape)
    algorithm = next((word for word in after if word in ALGORITHMS), "highest")
    named = next((word for word in after if word.startswith(_DATA)), "")
    data = next((name for name in KINDS if name.replace(" ", "-") == named.removeprefix(_DATA)), None)
    result = next((word for word in after if word.startswith(_OUT)), "")
    out = parse_dtype(result.removeprefix(_OUT)) if result else None
    activation = next((word for word in after if word not in ("", "+bias", algorithm, named, result)), None)
    case = Case(m, n, k, parse_dtype(dtype), layout, batch, algorithm, "+bias" in after, activation, data, out)
    if str(case) != text:
        raise ValueError(f"malformed product {text!r}: expected something like {case}")
    return case


def make_inputs(case: Case, copies: int, seed: int) -> list[tuple[jax.Array, ...]]:
    """Fresh operands of the case's data. Zeros would run faster than data.

    Raises:
        ValueError: the case names a kind of data, and its type is an integer's.
    """
    if case.data is not None:
        inputs = [_drawn(np.random.default_rng([seed, i]), case, KINDS[case.data]) for i in range(copies)]
    elif jax.default_backend() == "cpu":
        # NumPy is at hand; a program of JAX's would have to be compiled for each shape first.
        rng = np.random.default_rng(seed)
        inputs = [tuple(_on_host(rng, x) for x in case.operands) for _ in range(copies)]
    else:
        count = len(case.operands)
        generate = jax.jit(lambda key: tuple(map(_on_device, jax.random.split(key, count), case.operands)))
        inputs = [generate(key) for key in jax.random.split(jax.random.key(seed), copies)]
    jax.block_until_ready(inputs)
    return inputs


def _drawn(rng: np.random.Generator, case: Case, draw: Draw) -> tuple[jax.Array, ...]:
    """Operands of a kind of data, and a normal bias."""
    a, b, *bias = case.operands
    if jnp.issubdtype(a.dtype, jnp.integer):
        raise ValueError(f"data {case.data!r} has fractions, which {case.dtype} has not")
    pairs = [draw(rng, case.m, case.n, case.k) for _ in range(case.batch or 1)]
    sides = []
    for x, op, side in zip((a, b), zip(*pairs, strict=True), case.layout, strict=True):
        stored = [part.T if side == "T" else part for part in op]
        sides.append(jnp.asarray(np.reshape(stored, x.shape).astype(x.dtype)))
    return *sides, *(_on_host(rng, x) for x in bias)


def _on_host(rng: np.random.Generator, x: jax.ShapeDtypeStruct) -> jax.Array:
    if x.dtype.itemsize == 1 and jnp.issubdtype(x.dtype, jnp.integer):
        return jnp.asarray(rng.integers(256, size=x.shape, dtype=np.uint8).view(x.dtype))
    wide = np.float64 if x.dtype == np.float64 else np.float32
    return jnp.asarray(rng.standard_normal(x.shape, wide), x.dtype)


def _on_device(key: jax.Array, x: jax.ShapeDtypeStruct) -> jax.Array:
    if x.dtype.itemsize == 1 and jnp.issubdtype(x.dtype, jnp.integer):
        return jax.lax.bitcast_convert_type(jax.random.bits(key, x.shape, jnp.uint8), x.dtype)
    wide = jnp.float64 if x.dtype == np.float64 else jnp.float32
    return jnp.asarray(jax.random.normal(key, x.shape, wide), x.dtype)


Rows = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # batch index and row of each sampled row


def sample_rows(case: Case, seed: int) -> Rows:
    """Up to 64 different rows of D, anywhere in the batch: all of it where it is small."""
    total = case.m * (case.batch or 1)
    count = min(total, _SAMPLED_ROWS)
    picks = np.sort(np.random.default_rng(seed).choice(total, count, replace=False))
    return picks // case.m, picks % case.m


def take_rows(d: jax.Array, case: Case, rows: Rows) -> npt.NDArray[np.float64]:
    """Those rows of D, in float64."""
    picked = np.asarray(d).reshape(-1, case.n)[rows[0] * case.m + rows[1]]
    return np.asarray(picked, np.float64)


def reference_rows(
    case: Case, a: jax.Array, b: jax.Array, bias: jax.Array | None = None, *, rows: Rows
) -> npt.NDArray[np.float64]:
    """The same rows by NumPy in float64; exact for 8-bit integers, whose sums stay far below 2^53."""
    left = np.asarray(a).reshape(-1, *a.shape[-2:])
    right = np.asarray(b).reshape(-1, *b.shape[-2:])
    out = np.empty((len(rows[0]), case.n))
    for batch in np.unique(rows[0]):
        here = rows[0] == batch
        lines = left[batch][:, rows[1][here]].T if case.layout[0] == "T" else left[batch][rows[1][here]]
        matrix = right[batch].T if case.layout[1] == "T" else right[batch]
        # By blocks of columns: a float64 copy of a large B would not fit everywhere.
        for begin in range(0, case.n, 2048):
            block = slice(begin, begin + 2048)
            out[here, block] = lines.astype(np.float64) @ matrix[:, block].astype(np.float64)
    if bias is not None:
        out += np.asarray(bias, np.float64)
    return out if case.activation is None else _activated(case.activation, out)


def _activated(name: str, z: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    with jax.default_device(jax.devices("cpu")[0]), jax.enable_x64(True):
        return np.asarray(ACTIVATIONS[name](jnp.asarray(z)))


def relative_error(d: npt.NDArray[np.float64], reference: npt.NDArray[np.float64]) -> float:
    """Frobenius norm of the difference over that of the reference."""
    return float(np.linalg.norm(d - reference) / np.linalg.norm(reference))
