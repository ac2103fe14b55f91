"""Poison around a kernel's buffers: a sound kernel does not notice, and one that leaves its buffers is found out."""

from __future__ import annotations

import ctypes

import guards
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from oracle import dtype_of, random

import jaxgemm
from jaxgemm._runtime import SCALED_TARGET, TARGET

HOST = next(row for row in jaxgemm.kernels() if row.name == "host")
#: The host kernel's buffers, in the order in which they are looked at.
ORDER = ("a", "b", "bias", "d")


def product(rng, types=HOST.types[0], shape=(5, 7, 3), *, guard=True):
    m, n, k = shape
    given = random(rng, (m, k), types[0]), random(rng, (k, n), types[1]), random(rng, (n,), types[2])

    def program(a, b, bias):
        return jaxgemm.gemm(a, b, bias=bias, out_dtype=types[2], kernel="host")

    with guards.guarded() if guard else guards.counted() as called:
        compiled = jax.jit(program).lower(*map(jnp.asarray, given)).compile()
    assert called == ["host"]
    result = np.asarray(compiled(*map(jnp.asarray, given)))
    assert not guards.errors
    return result


@pytest.mark.parametrize("types", HOST.types, ids=lambda types: f"{types[0]}-{types[2]}")
def test_a_sound_kernel_does_not_notice(types):
    for shape in ((1, 1, 1), (33, 65, 17), (5, 7, 0), (0, 3, 2)):
        plain, guarded = (product(np.random.default_rng(1), types, shape, guard=guard) for guard in (False, True))
        assert (guarded.shape, guarded.dtype) == (plain.shape, dtype_of(types[2]))
        assert guarded.tobytes() == plain.tobytes()


@pytest.fixture
def leaving(monkeypatch):
    """Makes the kernel take one buffer to lie elsewhere, by so many bytes."""

    def plant(name, by):
        inner, seen = guards._inner, []

        def moved(at, kept):
            found = inner(at, kept)
            seen.append(found)
            if ORDER[(len(seen) - 1) % len(ORDER)] == name:
                guards._Buffer.from_address(found).data += by
            return found

        monkeypatch.setattr(guards, "_inner", moved)

    return plant


@pytest.mark.parametrize("by", [-4, 4], ids=["before", "after"])
@pytest.mark.parametrize("name", ORDER[:3])
def test_an_operand_that_is_left(leaving, name, by, rng):
    leaving(name, by)
    assert np.isnan(product(rng)).any()


@pytest.mark.parametrize("by", [-4, 4], ids=["before", "after"])
def test_a_result_that_is_left(leaving, by, rng):
    leaving("d", by)
    assert guards.wrote_outside(product(rng))


def test_integers_that_are_left(leaving):
    types = next(types for types in HOST.types if types[0] == "int8")
    sound = product(np.random.default_rng(1), types)
    leaving("a", 1)
    assert (product(np.random.default_rng(1), types) != sound).any()
    leaving("d", 4)
    assert guards.wrote_outside(product(np.random.default_rng(1), types))


def test_a_result_that_is_not_written(monkeypatch, rng):
    elsewhere, inner = ctypes.create_string_buffer(4 * 5 * 7), guards._inner

    def lost(at, kept):
        found = inner(at, kept)
        buffer = guards._Buffer.from_address(found)
        if buffer.dims[0] == 5 * 7:
            buffer.data = ctypes.addressof(elsewhere)
        return found

    monkeypatch.setattr(guards, "_inner", lost)
    assert np.isnan(product(rng)).all()


@pytest.mark.parametrize("write", [False, True])
def test_a_workspace_that_is_left(monkeypatch, write, rng):
    size, inner = 300, guards._inner

    def moved(at, kept):
        found = inner(at, kept)
        buffer = guards._Buffer.from_address(found)
        if write and buffer.dims[0] == size:
            ctypes.memset(buffer.data + size, 0, 1)
        return found

    monkeypatch.setattr(guards, "_inner", moved)
    a, b = (array(rng.standard_normal(s), np.float32) for s in ((6, 5), (5, 8)))
    results = [jax.ShapeDtypeStruct((6, 8), jnp.float32), jax.ShapeDtypeStruct((size,), jnp.uint8)]
    ints = {name: np.array(x, np.int64) for name, x in {"a": [0, 5, 0, 0], "b": [0, 8, 0, 0], "config": []}.items()}
    ints["dims"] = np.array([6, 8, 5, 1, 1], np.int64)
    rest = {
        "kernel": "host",
        "arithmetic": "plain",
        "alpha": np.float64(1),
        "beta": np.float64(0),
        "activation": "none",
    }

    def program(a, b):
        return jax.ffi.ffi_call(TARGET, results)(a, b, **ints, **rest, has_bias=np.bool_(False))[0]

    with guards.guarded():
        compiled = jax.jit(program).lower(a, b).compile()
    got = np.asarray(compiled(a, b))
    assert guards.wrote_outside(got) == write
    if not write:
        np.testing.assert_allclose(got, a @ b, rtol=1e-5)


def test_calls_are_what_they_were_afterwards():
    original = jax.ffi.ffi_call
    with guards.guarded():
        assert jax.ffi.ffi_call is not original
    assert jax.ffi.ffi_call is original


def test_every_type_has_poison():
    """Of what kernels take and write, and of scales."""
    types = {t for row in jaxgemm.kernels() for rule in row.types for t in rule[:3]}
    assert types <= guards._BITS.keys()
    for name in types:
        bits = guards._BITS[name]
        assert bits.itemsize == np.dtype(jnp.dtype(name)).itemsize
        if jnp.issubdtype(jnp.dtype(name), jnp.floating):
            assert np.isnan(bits.reshape(1).view(jnp.dtype(name)).astype(np.float64))
    assert {SCALED_TARGET, TARGET} <= set(guards.TARGETS)
