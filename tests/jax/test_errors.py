"""Every error in what a caller passes: its type, and a message that says what was given and what was wanted."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxgemm
from jaxgemm.epilogue import ACTIVATIONS

A, B = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
I8 = np.ones((4, 4), np.int8)
BOOL = np.ones((4, 4), bool)
C64 = np.ones((4, 4), np.complex64)
KEYS = jax.random.split(jax.random.key(0), (4, 4))

NAMES = ", ".join(["auto", *(row.name for row in jaxgemm.kernels())])
OF_BOOLEANS = "gemm: a product of booleans is a boolean, and takes no alpha, beta, c, bias or activation"


def gemm(*args, **keywords):
    return lambda: jaxgemm.gemm(*args, **keywords)


def matmul(*args, **keywords):
    return lambda: jaxgemm.matmul(*args, **keywords)


def dot(*args, **keywords):
    return lambda: jaxgemm.dot_general(*args, **keywords)


PLAIN = (((1,), (0,)), ((), ()))

ERRORS = {
    # name: (call, exception, text)
    "a is a vector": (
        gemm(A[0], B),
        ValueError,
        "gemm: a needs at least 2 axes, got shape (4,); see jaxgemm.matmul for vectors",
    ),
    "b is a scalar": (gemm(A, 2.0), ValueError, "gemm: b needs at least 2 axes, got shape ()"),
    "inner dimensions": (
        gemm(A, A),
        ValueError,
        "gemm: inner dimensions differ: op(a) of shape (3, 4) has k = 4, op(b) of shape (3, 4) has k = 3",
    ),
    "inner dimensions, transposed": (
        gemm(A, B, transpose_a=True),
        ValueError,
        "gemm: inner dimensions differ: op(a) of shape (4, 3) has k = 3, op(b) of shape (4, 5) has k = 4",
    ),
    "batches": (
        gemm(np.ones((2, 3, 4)), np.ones((3, 4, 5))),
        ValueError,
        "batch dimensions do not broadcast: a has (2,), b has (3,)",
    ),
    "transpose is a string": (gemm(A, B, transpose_a="T"), TypeError, "gemm: transpose_a must be a bool, got str"),
    "transpose is a number": (gemm(A, B, transpose_b=1), TypeError, "gemm: transpose_b must be a bool, got int"),
    "a is a string": (gemm("text", B), TypeError, "a: expected an array, got str"),
    "b is None": (gemm(A, None), TypeError, "b: expected an array, got NoneType"),
    "neither numbers nor booleans": (
        gemm(KEYS, KEYS),
        TypeError,
        "a and b: expected numbers or booleans, got key<fry> and key<fry>",
    ),
    "booleans with alpha": (gemm(BOOL, BOOL, alpha=2.0), TypeError, OF_BOOLEANS),
    "booleans with an array alpha": (
        gemm(BOOL, BOOL, alpha=jnp.asarray(True)),
        TypeError,
        "gemm: alpha must be a real",
    ),
    "booleans with c": (gemm(BOOL, BOOL, BOOL), TypeError, OF_BOOLEANS),
    "booleans with beta": (gemm(BOOL, BOOL, BOOL, beta=2.0), TypeError, OF_BOOLEANS),
    "booleans with a bias": (gemm(BOOL, BOOL, bias=BOOL[0]), TypeError, OF_BOOLEANS),
    "booleans with an activation": (gemm(BOOL, BOOL, activation="relu"), TypeError, OF_BOOLEANS),
    "booleans as integers": (
        gemm(BOOL, BOOL, out_dtype=jnp.int32),
        TypeError,
        "gemm: out_dtype int32 for bool operands; both must be of one kind",
    ),
    "numbers as booleans": (
        gemm(A, B, out_dtype=bool),
        TypeError,
        "gemm: out_dtype bool for float32 operands; both must be of one kind",
    ),
    "out_dtype of another kind": (
        gemm(A, B, out_dtype=jnp.int32),
        TypeError,
        "gemm: out_dtype int32 for float32 operands; both must be of one kind",
    ),
    "out_dtype of integers": (
        gemm(I8, I8, out_dtype=jnp.float32),
        TypeError,
        "gemm: out_dtype float32 for int8 operands; both must be of one kind",
    ),
    "out_dtype is no type": (gemm(A, B, out_dtype="float31"), TypeError, "float31"),
    "beta without c": (gemm(A, B, beta=2.0), ValueError, "gemm: beta is 2.0, but c is missing"),
    "array beta without c": (gemm(A, B, beta=jnp.ones(())), ValueError, "but c is missing"),
    "c of another shape": (
        gemm(A, B, np.ones((3, 4), np.float32)),
        ValueError,
        "gemm: c of shape (3, 4) does not broadcast to the result's (3, 5)",
    ),
    "c with more axes": (
        gemm(A, B, np.ones((2, 3, 5), np.float32)),
        ValueError,
        "gemm: c of shape (2, 3, 5) does not broadcast to the result's (3, 5)",
    ),
    "bias of another length": (
        gemm(A, B, bias=np.ones(3, np.float32)),
        ValueError,
        "gemm: bias must have shape (5,), one element a column, got (3,)",
    ),
    "bias is a matrix": (
        gemm(A, B, bias=np.ones((1, 5), np.float32)),
        ValueError,
        "gemm: bias must have shape (5,), one element a column, got (1, 5)",
    ),
    "activation": (
        gemm(A, B, activation="swish"),
        ValueError,
        f"gemm: activation: got 'swish', expected None or one of {', '.join(ACTIVATIONS)}",
    ),
    "activation of integers": (
        gemm(I8, I8, activation="gelu"),
        ValueError,
        "gemm: activation 'gelu' of an integer product; integers take relu only",
    ),
    "alpha is a string": (
        gemm(A, B, alpha="2"),
        TypeError,
        "gemm: alpha must be a real number or a scalar array, got '2'",
    ),
    "alpha is a bool": (
        gemm(A, B, alpha=True),
        TypeError,
        "gemm: alpha must be a real number or a scalar array, got True",
    ),
    "alpha is complex": (
        gemm(A, B, alpha=1j),
        TypeError,
        "gemm: alpha complex128 for a result of float32; both must be of one kind",
    ),
    "alpha is None": (
        gemm(A, B, alpha=None),
        TypeError,
        "gemm: alpha must be a real number or a scalar array, got None",
    ),
    "alpha is a vector": (
        gemm(A, B, alpha=np.ones(3)),
        TypeError,
        "gemm: alpha must be a real number or a scalar array, got float64(3,)",
    ),
    "beta is a vector": (
        gemm(A, B, np.ones((3, 5)), beta=jnp.ones(2)),
        TypeError,
        "gemm: beta must be a real number or a scalar array, got float64(2,)",
    ),
    "fractional alpha of integers": (
        gemm(I8, I8, alpha=0.5),
        ValueError,
        "gemm: alpha is 0.5; an integer product takes an integer alpha",
    ),
    "infinite beta of integers": (
        gemm(I8, I8, np.ones((4, 4), np.int32), beta=float("inf")),
        ValueError,
        "gemm: beta is inf; an integer product takes an integer beta",
    ),
    "fractional array alpha of integers": (
        gemm(I8, I8, alpha=jnp.asarray(0.5)),
        TypeError,
        "gemm: alpha float64 for a result of int32; both must be of one kind",
    ),
    "alpha past int32": (gemm(I8, I8, alpha=2**40), ValueError, "gemm: alpha is 1099511627776"),
    "alpha past int32, host": (gemm(I8, I8, alpha=2**40, kernel="host"), ValueError, "gemm: alpha is 1099511627776"),
    "c is a string": (gemm(A, B, "text"), TypeError, "c: expected an array, got str"),
    "c of another kind": (
        gemm(I8, I8, np.full((4, 4), 0.75)),
        TypeError,
        "gemm: c float64 for a result of int32; both must be of one kind",
    ),
    "complex c": (
        gemm(A, B, np.full((3, 5), 1j)),
        TypeError,
        "gemm: c complex128 for a result of float32; both must be of one kind",
    ),
    "bias of another kind": (
        gemm(I8, I8, bias=np.full(4, 0.75)),
        TypeError,
        "gemm: bias float64 for a result of int32; both must be of one kind",
    ),
    "kernel": (gemm(A, B, kernel="cublas"), ValueError, f"kernel: got 'cublas', expected one of {NAMES}"),
    "kernel of matmul": (matmul(A, B, kernel="cublas"), ValueError, f"kernel: got 'cublas', expected one of {NAMES}"),
    "kernel of dot_general": (
        dot(A, B, PLAIN, kernel="cublas"),
        ValueError,
        f"kernel: got 'cublas', expected one of {NAMES}",
    ),
    "kernel is None": (gemm(A, B, kernel=None), ValueError, "kernel: got None, expected one of auto"),
    "options of auto": (
        gemm(A, B, split_k=2),
        ValueError,
        "gemm: options split_k need a kernel by name, got kernel='auto'",
    ),
    "options of xla": (
        gemm(A, B, kernel="xla", tile_m=1, tile_n=2),
        ValueError,
        "gemm: options tile_m, tile_n need a kernel by name, got kernel='xla'",
    ),
    "an option that there is not": (
        gemm(A, B, kernel="host", stages=3),
        ValueError,
        "kernel 'host' has no option stages; its options: none",
    ),
    "a tuple for an option that there is not": (
        gemm(A, B, kernel="host", tile=(16, 16)),
        ValueError,
        "gemm: option tile of kernel 'host' takes 0 values, got (16, 16)",
    ),
    "an option that is no integer": (
        gemm(A, B, kernel="simt", tile=2.5),
        TypeError,
        "gemm: option tile must be an integer, got 2.5",
    ),
    "an option that is a bool": (
        gemm(A, B, kernel="simt", tile=True),
        TypeError,
        "gemm: option tile must be an integer, got True",
    ),
    "precision": (gemm(A, B, precision="exact"), ValueError, "precision: got 'exact', expected one of default, high"),
    "precision of three": (
        gemm(A, B, precision=("high",) * 3),
        ValueError,
        "precision: a pair names both operands, got 3 entries",
    ),
    "precision that no kernel computes": (
        gemm(A, B, precision="TF32_TF32_F32", kernel="host"),
        jaxgemm.UnsupportedError,
        "precision TF32_TF32_F32 is not one that jaxgemm's kernels compute for float32 operands",
    ),
    "precision for another type": (
        gemm(A, B, precision=lax.DotAlgorithmPreset.F16_F16_F32, kernel="host"),
        jaxgemm.UnsupportedError,
        "is not one that jaxgemm's kernels compute for float32 operands",
    ),
    "complex with a named kernel": (
        gemm(C64, C64, kernel="host"),
        jaxgemm.UnsupportedError,
        "kernel 'host' got complex64 x complex64 -> complex64; it supports float32 x float32 -> float32, float64",
    ),
    "int16 with a named kernel": (
        gemm(I8.astype(np.int16), I8, kernel="host"),
        jaxgemm.UnsupportedError,
        "kernel 'host' got int16 x int16 -> int32; it supports float32 x float32 -> float32",
    ),
    "int32 with a named kernel": (
        gemm(I8.astype(np.int32), I8, kernel="host"),
        jaxgemm.UnsupportedError,
        "kernel 'host' got int32 x int32 -> int32; it supports float32 x float32 -> float32",
    ),
    "matmul of scalars": (
        matmul(2.0, B),
        ValueError,
        "matmul: operands need at least one axis, got shapes () and (4, 5)",
    ),
    "matmul of other inner dimensions": (
        matmul(A, A),
        ValueError,
        "matmul: inner dimensions differ: (3, 4) has k = 4, (3, 4) has k = 3",
    ),
    "matmul of neither numbers nor booleans": (
        matmul(KEYS, KEYS),
        TypeError,
        "a and b: expected numbers or booleans, got key<fry> and key<fry>",
    ),
    "booleans with a named kernel": (
        matmul(BOOL, BOOL, kernel="host"),
        jaxgemm.UnsupportedError,
        "kernel 'host' got bool x bool -> bool; it supports float32 x float32 -> float32",
    ),
    "matmul of other batches": (
        matmul(np.ones((2, 3, 4)), np.ones((3, 4, 5))),
        ValueError,
        "batch dimensions do not broadcast: a has (2,), b has (3,)",
    ),
    "matmul into no type": (matmul(A, B, preferred_element_type="float31"), TypeError, "float31"),
    "dot_general of other sizes": (dot(A, A, PLAIN), TypeError, "dot_general requires contracting dimensions"),
    "dot_general of axes there are not": (dot(A, B, (((2,), (0,)), ((), ()))), (TypeError, ValueError), "dimension"),
    "dot_general of other batches": (
        dot(np.ones((2, 4)), np.ones((3, 4)), (((1,), (1,)), ((0,), (0,)))),
        TypeError,
        "batch dimensions",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_message(name):
    call, exception, text = ERRORS[name]
    with pytest.raises(exception, match=re.escape(text)) as caught:
        call()
    if isinstance(exception, type):
        assert caught.type is exception


@pytest.mark.parametrize("name", ["inner dimensions", "kernel", "complex with a named kernel"])
def test_errors_come_while_tracing(name):
    """Under jit as well, and before anything runs."""
    call, exception, text = ERRORS[name]
    with pytest.raises(exception, match=re.escape(text)):
        jax.jit(lambda: call()).lower()
