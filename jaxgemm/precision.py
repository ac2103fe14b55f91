"""What a ``precision`` argument promises, and which of our kernels keep that promise."""

from __future__ import annotations

from typing import Any

import jax
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
ARITHMETICS = {"plain": "", "tf32": "rounds float32 operands to TF32"}


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


def arithmetics(precision: Precision, operand: np.dtype) -> tuple[str, ...]:
    """The ``ARITHMETICS`` that a precision allows for operands of this type, the least exact first.

    Kernels accumulate in fp32 (fp64 for float64, int32 for 8-bit integers), which is at least as accurate as any
    ``lax.Precision`` asks for. A preset, or a ``lax.DotAlgorithm``, names one algorithm, so only that algorithm
    satisfies it.
    """
    default = precision in (None, (lax.Precision.DEFAULT, lax.Precision.DEFAULT))
    allowed = {
        "tf32": operand == np.float32 and (default or precision is lax.DotAlgorithmPreset.TF32_TF32_F32),
        "plain": not is_algorithm(precision) or _is_ours(precision, operand),
    }
    return tuple(name for name, allows in allowed.items() if allows)


def refusal(precision: Precision, operand: np.dtype, arithmetic: str) -> str:
    """Why a kernel of this arithmetic does not satisfy this precision for operands of this type; empty if it does."""
    if arithmetic in arithmetics(precision, operand):
        return ""
    if does := ARITHMETICS[arithmetic]:
        return f"precision {precision}: the kernel {does}"
    return f"precision {precision} is not one that jaxgemm's kernels compute for {operand.name} operands"
