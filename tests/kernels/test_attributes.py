"""The attributes of a call: who writes them and who reads them agree, and what is missing, extra or of another type."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from calls import ATTRIBUTES, PROBLEM, K, M, N, array, call, ints, result

from jaxgemm import wire
from jaxgemm._runtime import ffi
from jaxgemm.choice.grouped import choose
from jaxgemm.choice.resolve import check
from jaxgemm.dtypes import ELEMENT_TYPES, accumulator, default_result
from jaxgemm.kernels import CPU, H200, UnsupportedError, find_kernel
from jaxgemm.ragged.form import Form
from jaxgemm.ragged.form import problem as grouped_problem


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_missing_attribute(name):
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"INVALID_ARGUMENT.*attribute '{name}'"):
        call(without=(name,))
    assert f"attribute '{name}'" in checked({key: x for key, x in ATTRIBUTES.items() if key != name})


def test_an_attribute_too_many():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"INVALID_ARGUMENT.*attributes"):
        call(beta2=np.float64(1))
    count = len(ATTRIBUTES)
    assert checked({**ATTRIBUTES, "beta2": np.float64(1)}) == f"expected {count} attributes, got {count + 1}"


def checked(attributes, dtypes=PROBLEM.dtypes):
    """What is wrong with a call of the CPU's handler, as the check says that is made while tracing."""
    return ffi.check(ffi.Call(attributes, list(dtypes), False), 0)[0]


def test_the_one_who_writes_attributes_writes_these():
    assert checked(ATTRIBUTES) == ""
    written = wire.attributes("host", (), PROBLEM)
    assert [*written] == [*ATTRIBUTES]
    for name, value in ATTRIBUTES.items():
        assert np.asarray(written[name]).dtype == np.asarray(value).dtype
        np.testing.assert_array_equal(written[name], value)


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_every_element_type_is_known(name):
    """By XLA's name for it in the handler, by NumPy's in the check: what they say of it is the same."""
    with jax.enable_x64(True):
        dtype = jnp.dtype(name)
        assert dtype.itemsize == ELEMENT_TYPES[name].bytes
        operands = array(M, K, dtype=dtype), array(K, N, dtype=dtype)
        for d in {dtype, accumulator(dtype), default_result(dtype)}:
            refusal = checked(ATTRIBUTES, (name, name, d.name))
            if refusal:
                assert refusal.startswith(f"kernel 'host' got {name} x {name} -> {d.name}; it supports")
                with pytest.raises(jax.errors.JaxRuntimeError, match=refusal):
                    call(operands, result(M, N, dtype=d))
            else:
                np.testing.assert_array_equal(call(operands, result(M, N, dtype=d))[0], K)


def test_a_type_of_no_kernel_is_none_for_the_check():
    with pytest.raises(ValueError, match="no kernel knows dtype complex64"):
        checked(ATTRIBUTES, ("complex64", "float32", "float32"))
    with pytest.raises(ValueError, match="expected the types of a, b and d"):
        checked(ATTRIBUTES, ("float32", "float32"))
    with pytest.raises(ValueError, match="or of a, b, d, c and bias"):
        checked(ATTRIBUTES, ("float32",) * 4)


def test_c_and_bias_have_types_of_their_own():
    """Which a kernel's row says that it takes; today those of the result."""
    of_result = "kernel 'host' takes float32 for float32 x float32 -> float32"
    for c, bias, refusal in (
        ("float32", "float32", ""),
        ("float64", "float32", f"argument 'c' has type float64, {of_result}"),
        ("float32", "bfloat16", f"argument 'bias' has type bfloat16, {of_result}"),
    ):
        assert checked(ATTRIBUTES, (*("float32",) * 3, c, bias)) == refusal
        problem = replace(PROBLEM, dtypes=(*("float32",) * 3, c, bias))
        assert check(find_kernel("host"), (), problem, CPU)[0] == refusal


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("kernel", np.int64(1), "Wrong attribute type: expected string"),
        ("dims", np.array([M, N, K, 1, 1], np.int32), "Wrong array data type: expected S64 but got S32"),
        ("a", "0, 5, 0, 0", "Wrong attribute type: expected array but got string"),
        ("b", np.float64(1), "Wrong attribute type: expected array but got scalar"),
        ("activation", np.bool_(True), "Wrong attribute type: expected string"),
        ("config", np.array([], np.float64), "Wrong array data type: expected S64 but got F64"),
        ("alpha", "1", "Wrong attribute type: expected scalar but got string"),
        ("alpha", np.float32(7), "Wrong scalar data type: expected F64 but got F32"),
        ("beta", np.int64(7), "Wrong scalar data type: expected F64 but got S64"),
        ("arithmetic", ints(0), "Wrong attribute type: expected string but got array"),
        ("has_bias", np.int64(7), "Wrong scalar data type: expected PRED but got S64"),
        ("has_bias", ints(0), "Wrong attribute type: expected scalar but got array"),
    ],
)
def test_attribute_of_another_type(name, value, text):
    # Values that no sound call has: JAX would take an equal one of another type for the same program.
    with pytest.raises(jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT(.|\n)*{text}"):
        call(**{name: value})
    assert checked({**ATTRIBUTES, name: value}) == f"attribute '{name}': it has a wrong type"


# --- Of groups ------------------------------------------------------------------------------------------------


def of_groups(m, k, n, *, sums=False, held=3, sizes=3, batch=(), dtype="bfloat16"):
    """The problem of rows (m, k) with weights (held, k, n), or of the sums over rows (m, k) and (m, n)."""
    lhs, rhs = (*batch, m, k), (*batch, m, n) if sums else (held, k, n)
    given = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in (lhs, rhs)]
    sizes = jax.ShapeDtypeStruct((sizes,), jnp.int32)
    return grouped_problem(Form(sums, False, held), *given, sizes, dtype)


OF_ITS_OWN = "a grouped product's sums are of rows, and each of its groups has weights of its own"
OF_ROWS = "a grouped product's rows lie along k, and only the operand of weights has a matrix for each group"


@pytest.mark.parametrize(
    ("sums", "changes", "text"),
    [
        (False, {}, ""),
        (True, {}, ""),
        (False, {"b": ints(0, 24, 0, 0)}, OF_ITS_OWN),
        (True, {"b": ints(1, 40, 0, 0)}, OF_ITS_OWN),
        (False, {"a": ints(1, 40, 0, 0)}, OF_ROWS),
        (False, {"a": ints(0, 16, 0, 640)}, OF_ROWS),
        (True, {"a": ints(0, 40, 0, 0)}, OF_ROWS),
        (True, {"b": ints(0, 24, 0, 960)}, OF_ROWS),
        (True, {"activation": "relu"}, "a grouped product of the form 'sums' has no epilogue"),
        (True, {"has_bias": True}, "a grouped product of the form 'sums' has no epilogue"),
        (False, {"alpha": np.float64(2)}, "a grouped product takes no alpha or c"),
        (False, {"beta": np.float64(1)}, "a grouped product takes no alpha or c"),
        (False, {"groups": ints(1, 3)}, "expected 3 integers (form, sizes, sizes batched), got 2"),
        (False, {"groups": ints(3, 3, 0)}, "got form 3, 3 sizes, batched 0; expected a form of 1 or 2"),
        (False, {"groups": ints(1, -1, 0)}, "got form 1, -1 sizes, batched 0; expected a form of 1 or 2, sizes of at"),
    ],
)
def test_attributes_of_groups(sums, changes, text):
    written = wire.attributes("sm90", (), of_groups(40, 16, 24, sums=sums))
    found = checked({**written, **changes}, ("bfloat16",) * 3)
    if text:
        assert text in found
    else:
        assert found.startswith("kernel 'sm90'")  # of the chip, or of the build


@pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")
@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (of_groups(2**30, 8, 8), "has at most 1073741823 tokens, got 1073741824"),
        (of_groups(2**30, 8, 8, sums=True), "has at most 1073741823 tokens, got 1073741824"),
        (of_groups(8, 8, 8, sizes=2**18, batch=(4096,)), "has at most 1073741823 groups, got 1073745920"),
        (of_groups(8, 8, 8, sums=True, held=1, sizes=2**20 - 1, batch=(4096,)), "groups, got 4294967296"),
        (of_groups(8, 8, 2**20, held=2**16, sizes=2**16), "has at most 1073741823 tiles, got 1073758208"),
        (of_groups(8, 2**20, 2**20, sums=True), "has at most 536870911 tiles, got 805306368"),
    ],
)
def test_more_than_32_bits_count(problem, text):
    with pytest.raises(UnsupportedError) as refusal:
        choose(problem, H200, precision=None, kernel="sm90")
    assert text in str(refusal.value)
