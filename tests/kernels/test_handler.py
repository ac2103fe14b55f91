"""The handler called directly, with everything that Python would not send: an error each, never a crash."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls import ATTRIBUTES, K, M, N, array, call, ints, result

import jaxgemm
from jaxgemm.choice import resolve
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device
from jaxgemm.problem import Matrix, Problem

KERNELS = ", ".join(row.name for row in jaxgemm.kernels())
CUDA = next(row.name for row in jaxgemm.kernels() if row.platform == "cuda")


def test_a_sound_call():
    np.testing.assert_array_equal(call()[0], np.full((M, N), K))


def test_a_call_is_not_taken_for_another_that_was_sound():
    """What is known of a call is remembered by everything in it."""
    half = {"alpha": np.float64(0.5)}
    for changed in ({}, half, {}, {"kernel": "host"}, half):
        np.testing.assert_array_equal(call(**changed)[0], K * float(changed.get("alpha", 1)))
    for without, changed in (("alpha", {"alphb": np.float64(1)}), ("activation", {"activatioN": "none"})):
        with pytest.raises(Exception, match=f"attribute '{without}'"):
            call(without=(without,), **changed)
    with pytest.raises(Exception, match="attribute 'alpha'"):
        call(alpha=ints(1))
    with pytest.raises(Exception, match="in the arithmetic 'plain', got 'tf32'"):
        call(arithmetic="tf32")
    for count in (3, 20, 1000):
        with pytest.raises(Exception, match=f"got {count} values"):
            call(config=ints(*[0] * count))
    np.testing.assert_array_equal(call()[0], K)


def test_only_the_number_of_elements_counts():
    np.testing.assert_array_equal(call((array(M * K), array(N, K)), result(M * N))[0], K)


def test_operands_larger_than_needed():
    np.testing.assert_array_equal(call((array(1000), array(1000)))[0], K)


def test_c_and_bias():
    c, bias = array(M, N), array(N)
    d = call((array(M, K), array(K, N), c, bias), beta=np.float64(2), has_bias=np.bool_(True))[0]
    np.testing.assert_array_equal(d, K + 2 + 1)


def test_a_workspace_that_is_not_needed():
    outputs = call(results=[*result(M, N), jax.ShapeDtypeStruct((256,), np.uint8)])
    np.testing.assert_array_equal(outputs[0], K)


def test_empty_products_touch_no_memory():
    d = call((array(0), array(0)), result(M, N), dims=ints(M, N, 0, 1, 1), a=ints(0, 1, 0, 0))[0]
    np.testing.assert_array_equal(d, 0)
    assert call((array(0), array(K, N)), result(0, N), dims=ints(0, N, K, 1, 1))[0].shape == (0, N)
    assert call((array(M, K), array(0)), result(M, 0), dims=ints(M, 0, K, 1, 1))[0].shape == (M, 0)
    assert call((array(0), array(0)), result(0), dims=ints(M, N, K, 0, 1))[0].shape == (0,)
    huge = ints(1 << 29, 1 << 29, 0, 0, 1)
    assert call((array(0), array(0)), result(0), dims=huge, b=ints(0, 1 << 29, 0, 0))[0].shape == (0,)


BIG = 1 << 62

ERRORS = {
    # Operands and results.
    "no operands": ({"operands": ()}, "expected 2 operands (a, b), got 0"),
    "one operand": ({"operands": (array(M, K),)}, "expected 2 operands (a, b), got 1"),
    "an operand too many": ({"operands": (array(M, K), array(K, N), array(M, N))}, "expected 2 operands (a, b), got 3"),
    "c is missing": ({"beta": np.float64(1)}, "expected 3 operands (a, b, c), got 2"),
    "bias is missing": ({"has_bias": np.bool_(True)}, "expected 3 operands (a, b, bias), got 2"),
    "c or bias is missing": (
        {"operands": (array(M, K), array(K, N), array(M, N)), "beta": np.float64(1), "has_bias": np.bool_(True)},
        "expected 4 operands (a, b, c, bias), got 3",
    ),
    "no results": ({"results": []}, "expected 1 or 2 results (d, workspace), got 0"),
    "three results": ({"results": result(M, N) * 3}, "expected 1 or 2 results (d, workspace), got 3"),
    "a is too small": (
        {"operands": (array(M, K - 1), array(K, N))},
        f"argument 'a' has {M * (K - 1)} elements, the attributes need {M * K}",
    ),
    "a is empty": ({"operands": (array(0), array(K, N))}, f"argument 'a' has 0 elements, the attributes need {M * K}"),
    "b is too small": (
        {"operands": (array(M, K), array(K, N - 1))},
        f"argument 'b' has {K * (N - 1)} elements, the attributes need {K * N}",
    ),
    "d is too small": (
        {"results": result(M, N - 1)},
        f"result 'd' has {M * (N - 1)} elements, the attributes need {M * N}",
    ),
    "d is too large": (
        {"results": result(M, N + 1)},
        f"result 'd' has {M * (N + 1)} elements, the attributes need {M * N}",
    ),
    "c is too small": (
        {"operands": (array(M, K), array(K, N), array(N)), "beta": np.float64(1)},
        f"argument 'c' has {N} elements, expected {M * N}",
    ),
    "bias is too large": (
        {"operands": (array(M, K), array(K, N), array(M, N)), "has_bias": np.bool_(True)},
        f"argument 'bias' has {M * N} elements, expected {N}",
    ),
    # Element types.
    "a is complex": (
        {"operands": (array(M, K, dtype=np.complex64), array(K, N))},
        "argument 'a' has an element type that no kernel takes",
    ),
    "b is bool": (
        {"operands": (array(M, K), array(K, N, dtype=bool))},
        "argument 'b' has an element type that no kernel takes",
    ),
    "d is uint32": ({"results": result(M, N, dtype=np.uint32)}, "result 'd' has an element type that no kernel writes"),
    "types of no kernel": (
        {"operands": (array(M, K), array(K, N, dtype=jnp.bfloat16))},
        "kernel 'host' got float32 x bfloat16 -> float32; it supports float32 x float32 -> float32",
    ),
    "an arithmetic that there is not": (
        {"arithmetic": "tf16"},
        "attribute 'arithmetic': got 'tf16', expected one of plain, tf32, bf16, bf16_x3, bf16_x6, bf16_x9, f16_x3",
    ),
    "an arithmetic of other kernels": (
        {"arithmetic": "tf32"},
        "kernel 'host' multiplies float32 x float32 -> float32 in the arithmetic 'plain', got 'tf32'",
    ),
    "int32 operands": (
        {
            "operands": (array(M, K, dtype=np.int32), array(K, N, dtype=np.int32)),
            "results": result(M, N, dtype=np.int32),
        },
        "kernel 'host' got int32 x int32 -> int32; it supports",
    ),
    "c of another type": (
        {"operands": (array(M, K), array(K, N), array(M, N, dtype=np.float64)), "beta": np.float64(1)},
        "argument 'c' has type float64, kernel 'host' takes float32 for float32 x float32 -> float32",
    ),
    "bias of another type": (
        {"operands": (array(M, K), array(K, N), array(N, dtype=jnp.float16)), "has_bias": np.bool_(True)},
        "argument 'bias' has type float16, kernel 'host' takes float32 for float32 x float32 -> float32",
    ),
    # Extents.
    "four dims": (
        {"dims": ints(M, N, K, 1)},
        "attribute 'dims': expected 5 integers (m, n, k, outer batch, inner batch), got 4",
    ),
    "no dims": ({"dims": ints()}, "attribute 'dims': expected 5 integers"),
    "negative m": ({"dims": ints(-1, N, K, 1, 1)}, "attribute 'dims': m must not be negative, got -1"),
    "negative k": ({"dims": ints(M, N, -K, 1, 1)}, f"attribute 'dims': k must not be negative, got -{K}"),
    "negative batch": ({"dims": ints(M, N, K, 1, -2)}, "attribute 'dims': inner batch must not be negative, got -2"),
    "the least integer": ({"dims": ints(M, -(1 << 63), K, 1, 1)}, "attribute 'dims': n must not be negative"),
    "huge m": ({"dims": ints(BIG, N, K, 1, 1)}, f"attribute 'dims': an extent of m = {BIG}, n = {N}"),
    "huge m and n": (
        {"dims": ints(1 << 32, 1 << 32, K, 1, 1), "b": ints(0, 1 << 32, 0, 0)},
        "passes 2^60 elements",
    ),
    "huge batches": ({"dims": ints(M, N, K, 1 << 40, 1 << 40)}, "passes 2^60 elements"),
    "huge k": ({"dims": ints(M, N, BIG, 1, 1), "a": ints(0, BIG, 0, 0)}, "passes 2^60 elements"),
    "a batch past the operands": (
        {"dims": ints(M, N, K, 2, 1), "a": ints(0, K, M * K, 0), "results": result(2, M, N)},
        f"argument 'a' has {M * K} elements, the attributes need {2 * M * K}",
    ),
    "a batch past the result": ({"dims": ints(M, N, K, 3, 1)}, f"result 'd' has {M * N} elements"),
    # Layouts.
    "three integers for a": (
        {"a": ints(0, K, 0)},
        "attribute 'a': expected 4 integers (transposed, ld, outer batch stride, inner batch stride), got 3",
    ),
    "transposed is 2": ({"b": ints(2, N, 0, 0)}, "attribute 'b': transposed must be 0 or 1, got 2"),
    "transposed is -1": ({"a": ints(-1, K, 0, 0)}, "attribute 'a': transposed must be 0 or 1, got -1"),
    "ld is too small": (
        {"a": ints(0, K - 1, 0, 0)},
        f"attribute 'a': leading dimension {K - 1} is less than {K}, the length of a stored line",
    ),
    "ld is too small, transposed": (
        {"a": ints(1, M - 1, 0, 0)},
        f"attribute 'a': leading dimension {M - 1} is less than {M}, the length of a stored line",
    ),
    "ld is negative": ({"b": ints(0, -N, 0, 0)}, f"attribute 'b': leading dimension -{N} is less than {N}"),
    "ld leaves the operand": (
        {"a": ints(0, K + 1, 0, 0)},
        f"argument 'a' has {M * K} elements, the attributes need {(M - 1) * (K + 1) + K}",
    ),
    "ld overflows": ({"a": ints(0, BIG, 0, 0)}, "the strides reach past 2^60 elements"),
    "ld overflows, transposed": ({"b": ints(1, BIG, 0, 0)}, "the strides reach past 2^60 elements"),
    "ld overflows by little": ({"a": ints(0, 1 << 58, 0, 0)}, "the strides reach past 2^60 elements"),
    "batch stride is negative": (
        {"a": ints(0, K, -1, 0)},
        "attribute 'a': batch strides must not be negative, got -1 and 0",
    ),
    "batch stride leaves the operand": (
        {"dims": ints(M, N, K, 1, 2), "a": ints(0, K, 0, 7), "results": result(2, M, N)},
        f"argument 'a' has {M * K} elements, the attributes need {M * K + 7}",
    ),
    "batch stride overflows": (
        {"dims": ints(M, N, K, 1 << 20, 1), "b": ints(0, N, 1 << 50, 0)},
        "the strides reach past 2^60 elements",
    ),
    # Names and values.
    "kernel": ({"kernel": "cublas"}, f"attribute 'kernel': no kernel is named 'cublas'; there are {KERNELS}"),
    "no kernel": ({"kernel": ""}, "attribute 'kernel': no kernel is named ''; there are"),
    "a kernel of the other platform": (
        {"kernel": CUDA},
        f"kernel '{CUDA}' runs on CUDA, the call was placed elsewhere",
    ),
    "activation": (
        {"activation": "swish"},
        # Two tables: of ffi/activation.h and of jaxgemm/epilogue.py.
        f"attribute 'activation': got 'swish', expected one of {', '.join(('none', *cases.ACTIVATIONS))}",
    ),
    "options of a kernel without": (
        {"config": ints(1)},
        "attribute 'config': kernel 'host' has 0 options, got 1 values",
    ),
}

INTEGERS = {
    "operands": (array(M, K, dtype=np.int8), array(K, N, dtype=np.int8)),
    "results": result(M, N, dtype=np.int32),
}
ERRORS |= {
    "fractional alpha of integers": (
        dict(**INTEGERS, alpha=np.float64(0.5)),
        "kernel 'host' computes in int32 and needs integer alpha and beta, got 0.5",
    ),
    "NaN alpha of integers": (dict(**INTEGERS, alpha=np.float64("nan")), "needs integer alpha and beta, got nan"),
    "large alpha of integers": (dict(**INTEGERS, alpha=np.float64(2.0**31)), "needs integer alpha and beta"),
    "activation of integers": (
        dict(**INTEGERS, activation="gelu"),
        "kernel 'host' computes in int32, where the only activation is relu",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(name):
    changes, text = ERRORS[name]
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        call(**changes)
    message = str(caught.value)
    assert message.startswith("INVALID_ARGUMENT: jaxgemm: ")
    assert text in message


def test_options_of_every_kernel_are_checked():
    """By the check behind both the handler and the lowering, so that no CUDA device is needed."""

    def check(row, config):
        matrix = Matrix(False, 64, (0, 0))
        problem = Problem(64, 64, 64, (1, 1), matrix, matrix, row.types[0][:3], Epilogue())
        return resolve.check(row, config, problem, Device(row.platform, "any", row.min_arch, 100))[0]

    for row in jaxgemm.kernels():
        defaults = tuple(values[0] if values else 0 for values in row.options.values())
        text = f"attribute 'config': kernel '{row.name}' has {len(defaults)} options, got {len(defaults) + 1} values"
        assert text in check(row, (*defaults, 0))
        for i, (name, allowed) in enumerate(row.options.items()):
            wrong = max(allowed) + 1 if allowed else -1
            expected = "one of" if allowed else "0 or more"
            text = f"option '{name}' of kernel '{row.name}': got {wrong}, expected {expected}"
            assert text in check(row, (*defaults[:i], wrong, *defaults[i + 1 :]))


def _needing_workspace():
    """Calls of CUDA kernels that ask for a workspace, by kernel."""
    out = {}
    for row in jaxgemm.kernels():
        for types in row.types if row.built and row.platform == "cuda" else ():
            shapes = jax.ShapeDtypeStruct((65, 4097), types[0]), jax.ShapeDtypeStruct((4097, 67), types[1])
            f = lambda a, b, row=row, types=types: jaxgemm.gemm(a, b, out_dtype=types[2], kernel=row.name)  # noqa: E731
            try:
                choice = jaxgemm.explain(f, *shapes, platform="cuda").products[0].decision.choice
            except jaxgemm.UnsupportedError:
                continue
            if choice.workspace:
                out[row.name] = types, choice.workspace, choice.arithmetic
    return out


@pytest.mark.gpu
def test_a_workspace_that_is_too_small():
    for name, (types, need, arithmetic) in _needing_workspace().items():
        a, b = (jnp.ones(s, t) for s, t in (((65, 4097), types[0]), ((4097, 67), types[1])))
        d = jax.ShapeDtypeStruct((65, 67), types[2])
        attributes = {**ATTRIBUTES, "kernel": name, "dims": ints(65, 67, 4097, 1, 1), "arithmetic": arithmetic}
        attributes |= {"a": ints(0, 4097, 0, 0), "b": ints(0, 67, 0, 0)}
        for results in ([d], [d, jax.ShapeDtypeStruct((need - 1,), np.uint8)]):
            with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*workspace.*'{name}' needs {need}"):
                jax.block_until_ready(jax.ffi.ffi_call("jaxgemm_gemm", results)(a, b, **attributes))


@pytest.mark.gpu
def test_the_cuda_handler_checks_too():
    a, b = jnp.ones((M, K)), jnp.ones((K, N))
    results = jax.ShapeDtypeStruct((M, N), jnp.float64)
    run = jax.ffi.ffi_call("jaxgemm_gemm", results)
    for changed, text in (
        ({"kernel": "host"}, "kernel 'host' runs on the CPU, the call was placed elsewhere"),
        ({"kernel": CUDA, "dims": ints(M, N, K + 1, 1, 1)}, "leading dimension"),
        ({"kernel": CUDA, "a": ints(0, K + 1, 0, 0)}, "argument 'a' has"),
        ({"kernel": CUDA, "activation": "swish"}, "attribute 'activation'"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT.*{text}"):
            jax.block_until_ready(run(a, b, **{**ATTRIBUTES, **changed}))
