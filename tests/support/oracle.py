"""The reference: float64, or exact integers, with bounds on how far a correct kernel may be from it.

The elementwise bound is the textbook one for a sum in any order, so that a correct kernel cannot fail it.
For a long sum it is loose; there the Frobenius norm, in which random errors add up like sqrt(k), says more.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from arrays import array
from scipy import special

import jaxgemm
from jaxgemm import precision
from jaxgemm.kernels import find_kernel

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    # (1 + tanh(u)) / 2, but exact where that is nearly 0.
    "gelu": lambda x: x * special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
    "gelu_erf": lambda x: 0.5 * x * (1 + special.erf(x / np.sqrt(2))),
    "silu": lambda x: x * special.expit(x),
    "tanh": np.tanh,
    "sigmoid": special.expit,
}

#: No activation is steeper.
STEEPEST = 1.2


#: How far a kernel rounds float32 operands, by what it does to them before it multiplies them.
_ROUNDING = {"tf32": 2.0**-11, "bf16": 2.0**-8, "bf16_x3": 2.0**-15, "bf16_x6": 2.0**-23, "f16_x3": 2.0**-20}


def operand_eps(kernel: str, dtype: str, asked: Any = None) -> float:
    """How far a kernel rounds operands of this type before it multiplies them, at the precision that is asked for."""
    if dtype != "float32" or kernel not in {row.name for row in jaxgemm.kernels()}:
        return 0.0
    known = find_kernel(kernel).arithmetics(("float32", "float32"))
    allowed = precision.arithmetics(precision.canonical(asked), np.dtype(np.float32))
    return _ROUNDING.get(next((x for x in allowed if x in known), "plain"), 0.0)


def sum_eps(dtype: str, k: int) -> float:
    """How far, of Σ|a||b|, a sum of k products of this type may be off where a tensor core adds them up: of fp8 it adds
    32 at a time, and keeps about 13 bits of the sum.
    """
    return 2.0**-13 * (1 + -(-k // 32)) if dtype.startswith("float8") else 0.0


def dtype_of(name: str) -> np.dtype:
    return np.dtype(jnp.dtype(name))


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Normal numbers, or integers over the type's whole range."""
    kind = dtype_of(dtype)
    if np.issubdtype(kind, np.integer):
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    return rng.standard_normal(shape).astype(kind)


@dataclass(frozen=True)
class Product:
    """One call of ``gemm``: its operands as they are stored, and its keywords."""

    a: np.ndarray
    b: np.ndarray
    layout: str = "NN"
    out: str = "float32"
    accumulator: str = "float32"
    alpha: float = 1.0
    beta: float = 0.0
    c: np.ndarray | None = None
    bias: np.ndarray | None = None
    activation: str | None = None
    precision: Any = None
    a_scale: np.ndarray | None = None
    b_scale: np.ndarray | None = None
    options: dict[str, int] = field(default_factory=dict)
    label: str = ""

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        shape: tuple[int, int, int],
        types: tuple[str, str, str, str],
        layout: str = "NN",
        batches: tuple[tuple[int, ...], tuple[int, ...]] = ((), ()),
        *,
        bias: bool = False,
        **keywords: Any,
    ) -> Product:
        """Random operands; ``types`` is a row of the kernel table: a, b, d, accumulator."""
        m, n, k = shape
        a = random(rng, (*batches[0], *((k, m) if layout[0] == "T" else (m, k))), types[0])
        b = random(rng, (*batches[1], *((n, k) if layout[1] == "T" else (k, n))), types[1])
        out = (*np.broadcast_shapes(*batches), m, n)
        c = random(rng, out, types[2]) if keywords.get("beta", 0) else None
        row = random(rng, (n,), types[2]) if bias else None
        text = [f"{m}x{n}x{k}", layout, f"batches {batches}" if any(batches) else ""]
        text += [key if isinstance(value, np.ndarray) else f"{key} {value}" for key, value in keywords.items()]
        text += ["bias"] * bias
        label = " ".join(filter(None, text))
        return cls(a, b, layout, types[2], types[3], c=c, bias=row, label=label, **keywords)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        named = {name: getattr(self, name) for name in ("a", "b", "c", "bias", "a_scale", "b_scale")}
        return {name: x for name, x in named.items() if x is not None}

    @property
    def keywords(self) -> dict[str, Any]:
        return {
            "alpha": self.alpha,
            "beta": self.beta,
            "transpose_a": self.layout[0] == "T",
            "transpose_b": self.layout[1] == "T",
            "activation": self.activation,
            "out_dtype": self.out,
            "precision": self.precision,
        }

    @property
    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        """op(a) and op(b)."""
        a = np.swapaxes(self.a, -1, -2) if self.layout[0] == "T" else self.a
        b = np.swapaxes(self.b, -1, -2) if self.layout[1] == "T" else self.b
        return a, b

    @property
    def shape(self) -> tuple[int, ...]:
        a, b = self.operands
        return (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])

    def call(self, arrays: dict[str, Any], kernel: str, **options: int) -> jax.Array:
        return jaxgemm.gemm(**arrays, **{**self.keywords, **self.options, **options}, kernel=kernel)

    def run(self, kernel: str, **options: int) -> np.ndarray:
        """The result, computed eagerly into recycled memory."""
        arrays = {name: array(x) for name, x in self.arrays.items()}
        poison([self.shape], self.out)
        return np.asarray(self.call(arrays, kernel, **options))

    def check(self, result: np.ndarray, kernel: str = "") -> None:
        """AssertionError if ``result`` is not this product."""
        assert result.shape == self.shape, f"{self.label}: shape {result.shape}, expected {self.shape}"
        assert result.dtype == dtype_of(self.out), f"{self.label}: type {result.dtype}, expected {self.out}"
        if np.issubdtype(result.dtype, np.integer):
            expected = self.integers()
            wrong = np.argwhere(result != expected)
            assert not len(wrong), (
                f"{self.label}: {len(wrong)} of {result.size} elements differ, first at {wrong[0]}: "
                f"got {result[tuple(wrong[0])]}, expected {expected[tuple(wrong[0])]}"
            )
            return
        expected, bound, norm_bound = self.reference(kernel)
        got = result.astype(np.float64)
        error = np.abs(got - expected)
        wrong = np.argwhere(~(error <= bound))  # NaN is wrong too
        if len(wrong):
            at = tuple(wrong[0])
            raise AssertionError(
                f"{self.label}: {len(wrong)} of {result.size} elements are off, first at {at}: got {got[at]!r}, "
                f"expected {expected[at]!r} within {bound[at]:.3g}"
            )
        norm = np.linalg.norm(error)
        assert norm <= norm_bound, f"{self.label}: error {norm:.3g} in the Frobenius norm, bound {norm_bound:.3g}"

    def integers(self) -> np.ndarray:
        """The exact result, wrapped to int32."""
        a, b = self.operands
        # Exact in float64: products are below 2^16, and sums of them below 2^53.
        z = int(self.alpha) * np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
        z = z.astype(np.int32)
        if self.c is not None and self.beta:
            z = (z + int(self.beta) * self.c.astype(np.int64)).astype(np.int32)
        if self.bias is not None:
            z = (z + self.bias.astype(np.int64)).astype(np.int32)
        return z if self.activation is None else ACTIVATIONS[self.activation](z)

    def reference(self, kernel: str = "") -> tuple[np.ndarray, np.ndarray, float]:
        """The result in float64, the elementwise bound on its error, and the bound on the error's norm."""
        a, b = (x.astype(np.float64) for x in self.operands)
        k = a.shape[-1]
        eps, eps_out = (float(ml_dtypes.finfo(dtype_of(t)).eps) for t in (self.accumulator, self.out))
        eps_operand = operand_eps(kernel, self.a.dtype.name, self.precision)
        scaled = [self.alpha, *(x.astype(np.float64) for x in (self.a_scale, self.b_scale) if x is not None)]
        factor = reduce(np.multiply, scaled)
        terms = [(factor * np.matmul(a, b), abs(factor) * np.matmul(abs(a), abs(b)))]
        if self.c is not None and self.beta:
            c = self.beta * self.c.astype(np.float64)
            terms.append((c, abs(c)))
        if self.bias is not None:
            bias = np.broadcast_to(self.bias.astype(np.float64), self.shape)
            terms.append((bias, abs(bias)))
        z = sum(x for x, _ in terms)
        summed = sum_eps(self.a.dtype.name, k) * terms[0][1]
        bound = ((k + 16) * eps + 2 * eps_operand) * sum(x for _, x in terms) + summed
        # Rounding errors scale with what is added up: many random terms have their sum's norm, but the sum of a
        # single element may come out small by chance.
        added = np.sqrt((factor**2 * np.matmul(a**2, b**2)).sum())
        scale = added + sum(np.linalg.norm(x) for x, _ in terms[1:])
        rounding_out = eps_out * max(scale, np.linalg.norm(z))  # sums of one sign are larger than random ones
        norm_bound = (4 * eps * np.sqrt(k + 16) + 2 * eps_operand) * scale + rounding_out + np.linalg.norm(summed)
        result = z
        if self.activation is not None:
            result = ACTIVATIONS[self.activation](z)
            rounding = 16 * eps * (abs(z) + abs(result))
            bound = STEEPEST * bound + rounding
            norm_bound = STEEPEST * norm_bound + np.linalg.norm(rounding) + eps_out * np.linalg.norm(result)
        info = ml_dtypes.finfo(dtype_of(self.out))
        # Numbers below the normal ones may be flushed, but not float16's, which are well within float32.
        tiny = float(info.smallest_subnormal if self.out == "float16" else info.smallest_normal)
        return result, bound + eps_out * abs(result) + tiny, norm_bound + np.sqrt(z.size) * tiny


@dataclass(frozen=True)
class Gated:
    """Operands of ``gated_gemm``, and what its result must be; beside ``oracle.Product``."""

    arrays: dict[str, np.ndarray]
    activation: str | None
    out: str
    accumulator: str

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.arrays["x"].shape[:-1], self.arrays["gate"].shape[-1])

    def reference(self, kernel: str) -> tuple[np.ndarray, np.ndarray]:
        """The result in float64 and the bound on its error: that of one product, through the other."""
        x, gate, up = (self.arrays[name].astype(np.float64) for name in ("x", "gate", "up"))
        k = x.shape[-1]
        eps, eps_out = (float(ml_dtypes.finfo(dtype_of(t)).eps) for t in (self.accumulator, self.out))
        relative = (k + 16) * eps + 2 * operand_eps(kernel, self.arrays["x"].dtype.name)
        error, error_up = (relative * (abs(x) @ abs(w)) for w in (gate, up))
        z, z_up = x @ gate, x @ up
        if self.activation is not None:
            error = STEEPEST * error + 16 * eps * abs(z)
            z = ACTIVATIONS[self.activation](z)
        bound = error * abs(z_up) + error_up * abs(z) + error * error_up + (eps_out + 16 * eps) * abs(z * z_up)
        info = ml_dtypes.finfo(dtype_of(self.out))
        tiny = float(info.smallest_subnormal if self.out == "float16" else info.smallest_normal)
        return z * z_up, bound + tiny

    def check(self, result: np.ndarray, kernel: str = "") -> None:
        assert (result.shape, result.dtype) == (self.shape, dtype_of(self.out)), f"{kernel}: {result.dtype}"
        expected, bound = self.reference(kernel)
        compare(result, expected, bound)


def finite(x: np.ndarray) -> bool:
    return bool(np.isfinite(x.astype(np.float64)).all())


def coarser(*types: str) -> str:
    return max(types, key=lambda t: float(ml_dtypes.finfo(dtype_of(t)).eps))


def compare(result: np.ndarray, expected: np.ndarray, bound: np.ndarray) -> None:
    """As ``Product.check``, where NaN and infinity are expected in places."""
    got = result.astype(np.float64)
    with np.errstate(all="ignore"):
        right = (np.isnan(got) & np.isnan(expected)) | (got == expected) | (abs(got - expected) <= bound)
        right &= np.isfinite(got) == np.isfinite(expected)
    wrong = np.argwhere(~right)
    if len(wrong):
        at = tuple(wrong[0])
        raise AssertionError(
            f"{len(wrong)} of {got.size} elements are off, first at {tuple(map(int, at))}: got {got[at]}, "
            f"expected {expected[at]} within {bound[at]:.3g}"
        )


def with_options(products: list[Product], **options: int) -> list[Product]:
    """The same products by these options of a kernel, for a program that has them with several."""
    return [replace(p, options=options, label=f"{p.label} {options}") for p in products]


def run_all(products: list[Product], kernel: str, **options: int) -> list[np.ndarray]:
    """Every product by one compiled program (compiling is most of a small test's time)."""
    every = {id(x): x for p in products for x in p.arrays.values()}
    on_device = {key: array(x) for key, x in every.items()}  # once, whatever options it is multiplied with
    arrays = [{name: on_device[id(x)] for name, x in p.arrays.items()} for p in products]

    def program(arrays: list[dict[str, jax.Array]]) -> list[jax.Array]:
        return [p.call(x, kernel, **options) for p, x in zip(products, arrays, strict=True)]

    compiled = jax.jit(program).lower(arrays).compile()
    for out in {p.out for p in products}:
        poison([p.shape for p in products if p.out == out], out)
    return [np.asarray(x) for x in compiled(arrays)]


def refused_by_name(p: Product, kernel: str) -> bool:
    """Whether the product is not for this kernel: Hopper's copy engine finds rows at multiples of 16 bytes only."""
    if kernel != "wgmma_tma" or 0 in (*p.shape, p.operands[0].shape[-1]):
        return False
    for x in (p.a, p.b):
        batched, matrix = x.ndim > 2, x.shape[-2:]
        # A vector is one line, whichever its layout; then only products must begin there.
        pitch = matrix[1] if 1 not in matrix else max(matrix) if batched else 0
        if pitch * x.itemsize % 16:
            return True
    return False


def check_all(products: list[Product], kernel: str, **options: int) -> None:
    """Run and check every product. The contract is the same for all kernels: none may refuse one but by that rule."""
    products = [p for p in products if not refused_by_name(p, kernel)]
    for p, result in zip(products, run_all(products, kernel, **options), strict=True):
        p.check(result, kernel)


def check_special_values(
    rng: np.random.Generator, shape: tuple[int, int, int], types: Any, kernel: str, **options: int
) -> None:
    """A row of a with NaN and a column of b with infinities: they reach their row and column of D, and no others."""
    m, n, k = shape
    a, b = random(rng, (m, k), types[0]), random(rng, (k, n), types[1])
    a[7, :] = np.nan
    b[:, 11] = np.inf
    (d,) = run_all([Product(a, b, out=types[2])], kernel, **options)
    bad = ~np.isfinite(d.astype(np.float32))
    assert bad[7].all()
    assert bad[:, 11].all()
    bad[7], bad[:, 11] = False, False
    assert not bad.any()


def check_repeats(product: Product, kernel: str) -> None:
    """Eight runs give the same bits."""
    first, *others = (product.run(kernel) for _ in range(8))
    for other in others:
        assert first.tobytes() == other.tobytes()


def poison(shapes: list[tuple[int, ...]], dtype: str) -> None:
    """Fill memory of these sizes with NaN (or a pattern) and free it, so that unwritten results show."""
    kind = dtype_of(dtype)
    value = 0x5A5A5A5A if np.issubdtype(kind, np.integer) else np.nan
    sizes = [int(np.prod(shape)) for shape in shapes]
    poisoned = [jax.device_put(np.full(n, value, kind), may_alias=False) for n in sizes * 3 if n]
    jax.block_until_ready(poisoned)
    for x in poisoned:
        x.delete()
