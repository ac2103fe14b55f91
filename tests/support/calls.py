"""Calls of the handler as XLA makes them, without the Python that writes them."""

import jax
import numpy as np

from jaxgemm.epilogue import Epilogue
from jaxgemm.problem import Matrix, Problem

M, N, K = 6, 8, 5
F32 = np.float32


def ints(*values):
    return np.array(values, np.int64)


ATTRIBUTES = {
    "kernel": "host",
    "dims": ints(M, N, K, 1, 1),
    "a": ints(0, K, 0, 0),
    "b": ints(0, N, 0, 0),
    "alpha": np.float64(1),
    "beta": np.float64(0),
    "activation": "none",
    "config": ints(),
    "has_bias": False,
    "arithmetic": "plain",
}


PROBLEM = Problem(M, N, K, (1, 1), Matrix(False, K, (0, 0)), Matrix(False, N, (0, 0)), ("float32",) * 3, Epilogue())


def call(operands=None, results=None, without=(), **changed):
    """The handler's outputs for a sound call with these changes."""
    a, b = np.ones((M, K), F32), np.ones((K, N), F32)
    operands = (a, b) if operands is None else operands
    results = [jax.ShapeDtypeStruct((M, N), F32)] if results is None else results
    attributes = {name: x for name, x in {**ATTRIBUTES, **changed}.items() if name not in without}
    with jax.default_device(jax.devices("cpu")[0]):
        # With an effect, so that a call without results is not optimised away.
        run = jax.ffi.ffi_call("jaxgemm_gemm", results, has_side_effect=True)
        return [np.asarray(x) for x in run(*operands, **attributes)]


def array(*shape, dtype=F32):
    return np.ones(shape, dtype)


def result(*shape, dtype=F32):
    return [jax.ShapeDtypeStruct(shape, dtype)]
