"""What a ``precision`` argument promises, and which of our kernels keep that promise."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm import dtypes

Precision = Any  # None, str, lax.Precision, a pair of either, lax.DotAlgorithmPreset, or lax.DotAlgorithm

#: Presets that fp32-accumulating (or fp64, or exact integer) kernels satisfy, by operand type.
_KEPT = {
    "float32": {lax.DotAlgorithmPreset.F32_F32_F32},
    "float64": {lax.DotAlgorithmPreset.F64_F64_F64},
    "float16": {lax.DotAlgorithmPreset.F16_F16_F32},
    "bfloat16": {lax.DotAlgorithmPreset.BF16_BF16_F32},
    "int8": set(),
    "uint8": set(),
}


#: By name, as ffi/dtype.h has them: what a kernel does to operands before it multiplies them; empty: nothing.
ARITHMETICS = {
    "plain": "",
    "tf32": "rounds float32 operands to TF32",
    "bf16": "rounds float32 operands to bfloat16",
    "bf16_x3": "multiplies float32 operands as sums of two bfloat16 parts, by 3 products",
    "bf16_x6": "multiplies float32 operands as sums of three bfloat16 parts, by 6 products",
    "bf16_x9": "multiplies float32 operands as sums of three bfloat16 parts, by 9 products",
    "f16_x3": "scales float32 operands and multiplies them as sums of two float16 parts, by 3 products, or, where that "
    "would lose small numbers, as bf16_x6 does",
    "promoted": "adds up sums of 128 products of 8-bit floats in float32",
}

#: Those in which the bits of a row follow from other rows too.
OF_OTHER_ROWS = frozenset({"f16_x3"})

#: Of float32 operands: the arithmetic that an algorithm's name asks for.
_EMULATED = {
    lax.DotAlgorithmPreset.TF32_TF32_F32: "tf32",
    lax.DotAlgorithmPreset.BF16_BF16_F32: "bf16",
    lax.DotAlgorithmPreset.BF16_BF16_F32_X3: "bf16_x3",
    lax.DotAlgorithmPreset.BF16_BF16_F32_X6: "bf16_x6",
    lax.DotAlgorithmPreset.BF16_BF16_F32_X9: "bf16_x9",
    lax.DotAlgorithmPreset.TF32_TF32_F32_X3: "f16_x3",
}
#: The names of those that multiply parts of 16 bits.
BY_PARTS = tuple(preset.name for preset, arithmetic in _EMULATED.items() if "16" in arithmetic)


def canonical(precision: Precision) -> Precision:
    """A hashable precision: None, a pair of ``lax.Precision``, a ``lax.DotAlgorithmPreset`` or a ``lax.DotAlgorithm``.

    None takes ``jax_default_matmul_precision``. ValueError for a name that JAX does not know, TypeError for an
    algorithm with an element type that does not exist.
    """
    if precision is None:
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        if precision is None:
            return None
    if isinstance(precision, str) and precision in lax.DotAlgorithmPreset.__members__:
        precision = lax.DotAlgorithmPreset[precision]
    if precision is lax.DotAlgorithmPreset.DEFAULT:  # not None: it was asked for, whatever jax's configuration says
        return lax.Precision.DEFAULT, lax.Precision.DEFAULT
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision
    if isinstance(precision, lax.DotAlgorithm):  # a named tuple, so it must come before pairs
        types = ("lhs_precision_type", "rhs_precision_type", "accumulation_type")
        return precision._replace(**{name: np.dtype(getattr(precision, name)) for name in types})
    if isinstance(precision, (tuple, list)):
        if len(precision) != 2:
            raise ValueError(f"precision: a pair names both operands, got {len(precision)} entries")
        return _one(precision[0]), _one(precision[1])
    one = _one(precision, *lax.DotAlgorithmPreset.__members__)
    return one, one


def _one(value: Any, *others: str) -> lax.Precision:
    """A value's precision; ``others`` are what else an error names."""
    try:
        return lax.Precision(value)
    except ValueError:
        names = ["default", "high", "highest", *others]
        raise ValueError(f"precision: got {value!r}, expected one of {', '.join(names)}") from None


def is_algorithm(precision: Precision) -> bool:
    """Whether a precision names one algorithm, which then decides the types that operands are multiplied in."""
    return isinstance(precision, (lax.DotAlgorithm, lax.DotAlgorithmPreset))


def wants_full_fp32(precision: Precision) -> bool:
    """Whether fp32 operands must be multiplied at fp32 accuracy."""
    if is_algorithm(precision):
        return _is_ours(precision, np.dtype(np.float32))
    return precision is not None and lax.Precision.HIGHEST in precision


def _is_ours(algorithm: lax.DotAlgorithm | lax.DotAlgorithmPreset, operand: np.dtype) -> bool:
    """Whether our kernels' products of this type are that algorithm's."""
    if isinstance(algorithm, lax.DotAlgorithmPreset):
        return algorithm in _KEPT.get(operand.name, set())
    ours = lax.DotAlgorithm(operand, operand, dtypes.accumulator(operand))
    # Imprecise sums are allowed by it, not asked for.
    return algorithm._replace(allow_imprecise_accumulation=False) == ours


def emulated(precision: Precision, operand: np.dtype) -> str:
    """The arithmetic, other than "plain", that an algorithm's name asks for; empty if it asks for none of ours."""
    if operand != np.float32 or not is_algorithm(precision):
        return ""
    if isinstance(precision, lax.DotAlgorithmPreset):
        return _EMULATED.get(precision, "")
    bf16, products = np.dtype(jnp.bfloat16), precision.num_primitive_operations
    asked = lax.DotAlgorithm(bf16, bf16, np.dtype(np.float32), num_primitive_operations=products)
    alike = precision._replace(allow_imprecise_accumulation=False) == asked
    named = "bf16" if products == 1 else f"bf16_x{products}"
    return named if alike and named in ARITHMETICS else ""


def arithmetics(precision: Precision, operand: np.dtype) -> tuple[str, ...]:
    """The ``ARITHMETICS`` that a precision allows for operands of this type, the least exact first.

    Kernels accumulate in fp32 (fp64 for float64, int32 for 8-bit integers), which is at least as accurate as any
    ``lax.Precision`` asks for. A preset, or a ``lax.DotAlgorithm``, names one algorithm, so only that algorithm
    satisfies it.
    """
    if is_algorithm(precision):
        named = emulated(precision, operand)
        if named == "f16_x3":  # whose bits follow from other rows, and which has more passes: bf16_x6 may be faster
            return "f16_x3", "bf16_x6"
        return (named,) if named else ("plain",) * _is_ours(precision, operand)
    if operand.name.startswith("float8"):  # of which a tensor core keeps few bits of a sum
        return ("promoted",) if precision and lax.Precision.HIGHEST in precision else ("plain",)
    if operand != np.float32:
        return ("plain",)
    asked = set(precision or (lax.Precision.DEFAULT,))
    if lax.Precision.HIGHEST in asked:
        return "bf16_x6", "plain"
    return ("bf16_x3", "plain") if lax.Precision.HIGH in asked else ("tf32", "bf16_x3", "plain")


def refusal(precision: Precision, operand: np.dtype, arithmetic: str) -> str:
    """Why a kernel of this arithmetic does not satisfy this precision for operands of this type; empty if it does."""
    if arithmetic in arithmetics(precision, operand):
        return ""
    if does := ARITHMETICS[arithmetic]:
        return f"precision {precision}: the kernel {does}"
    return f"precision {precision} is not one that jaxgemm's kernels compute for {operand.name} operands"


#: By arithmetic: (products of parts, what is left out of Σ|a||b|). A part in bfloat16 leaves 2^-8 of what it is of, one
#: in float16 2^-11. What is left out is what the last part leaves, and products of two parts that are not multiplied.
_PLANES = {
    "bf16": (1, 2 * 2**-8 + 2**-16),
    "bf16_x3": (3, 3 * 2**-16 + 2**-23),
    "bf16_x6": (6, 2 * 2**-24 + 2**-31),
    "bf16_x9": (9, 0.0),
    "f16_x3": (3, 3 * 2**-22 + 2**-32),
}
_ROUNDING = 2.0**-24
#: A tensor core adds 16 products to a sum at a time, and cuts 17 numbers off at 2^-25 of the largest and the sum at its
#: 24th bit. It adds up the products of one step; such sums are then added up, rounded. Single parts have one sum of
#: all steps.
_STEP_K = 64
_STEP_ERROR = _STEP_K / 16 * (17 * 2.0**-25 + 2.0**-23)
#: What products of the first parts add up to beside Σ|a||b|, at most.
_PARTS = (1 + 2.0**-8) ** 2


def error_bound(precision: Precision, k: int) -> float:
    """How far elements of our products of float32 matrices may be from exact ones: b in

        |error| ≤ b Σ|a||b| + 2^-147 Σ(|a| + |b|) + k 2^-145

    where sums are over the k products of an element, before alpha, C, bias and activation, and as long as Σ|a||b| is
    finite. It is what any order of additions keeps, so it holds for every element; errors are mostly far smaller.
    Of the smallest numbers bfloat16 has few bits: for 2^-147 read 2^-131 with one part of an operand, 2^-140 with two.
    TF32_TF32_F32_X3 may lose 2^-50 (max|a| Σ|b| + max|b| Σ|a|) more, of the element's row of A and column of B.

    Args:
        precision: "highest", "F32_F32_F32", "TF32_TF32_F32_X3", "BF16_BF16_F32", or that with _X3, _X6 or _X9, in any
            form that ``gemm`` takes.
        k: how many products an element is the sum of.

    Raises:
        ValueError: the precision promises no bound, as "default" does not, or k is negative.
    """
    if k < 0:
        raise ValueError(f"error_bound: k must be at least 0, got {k}")
    allowed = arithmetics(canonical(precision), np.dtype(np.float32))
    if not allowed or "tf32" in allowed:
        raise ValueError(f"error_bound: precision {precision} promises no bound for float32 operands")
    return max(bound_of(arithmetic, k) or 0.0 for arithmetic in allowed)


def products_of(arithmetic: str) -> int:
    """How many products of parts of 16 bits make one of float32; 0 for what is no arithmetic of parts."""
    return _PLANES[arithmetic][0] if arithmetic in _PLANES else 0


def floored(precision: Precision, operand: np.dtype) -> str:
    """What the least time of a product is that of, as jaxgemm/roofline.py takes it: an arithmetic of parts, "highest"
    for full fp32, or "default".
    """
    named = emulated(precision, operand)
    if products_of(named):
        return named
    return "highest" if wants_full_fp32(precision) else "default"


def bound_of(arithmetic: str, k: int) -> float | None:
    """``error_bound`` of one of the ``ARITHMETICS`` for float32 operands; None where it has none."""
    if arithmetic == "plain":
        return 1.01 * k * _ROUNDING
    if arithmetic not in _PLANES:
        return None
    products, left_out = _PLANES[arithmetic]
    steps = -(-k // _STEP_K)
    if products == 1:  # one sum for all steps, or one for each piece of k
        return left_out + _PARTS * steps * (_STEP_ERROR + _ROUNDING)
    # Each step is added once, and once more where k is split; products of later parts are small, and so are their sums.
    additions = 2 * steps * (1 + products / 2**8)
    return left_out + _PARTS * (_STEP_ERROR + additions * _ROUNDING)
