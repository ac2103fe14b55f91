"""A row of a batch-invariant product has the same bits in any company: compared over many numbers of rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from oracle import random

import jaxgemm
from jaxgemm.choice.invariant import INVARIANT
from jaxgemm.choice.select import select
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import CPU, H200, UnsupportedError
from jaxgemm.precision import canonical
from jaxgemm.problem import plan

#: Every kind of tile edge, and what a model serves.
ROWS = (1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 200, 255, 256, 257, 1000, 2048, 4096, 8192)
#: (n, k): ragged, aligned, and of few columns and long sums, where a split of K is tempting.
SHAPES = ((130, 520), (129, 131), (512, 1024), (64, 4096))
PLATFORMS = ("cpu", pytest.param("cuda", marks=pytest.mark.gpu))


def rows_agree(platform, dtype, n, k, rows, *, transpose_b=False, rng):
    most = max(rows)
    with jax.default_device(jax.devices(platform)[0]):
        a = array(random(rng, (most, k), dtype))
        b = array(random(rng, (n, k) if transpose_b else (k, n), dtype))
        bias = array(random(rng, (n,), dtype))

        def product(a, b, bias):
            return jaxgemm.gemm(a, b, bias=bias, activation="silu", transpose_b=transpose_b, batch_invariant=True)

        def first(m):  # the same rows in other places
            return (most - m) // 2

        whole = np.asarray(jax.jit(product)(a, b, bias))
        assert np.isfinite(whole.astype(np.float32)).all()
        for begin in range(0, len(rows), 64):  # one program for many numbers, as compiling is what takes long
            some = rows[begin : begin + 64]
            parts = jax.jit(lambda a, *rest, some=some: [product(a[first(m) :][:m], *rest) for m in some])(a, b, bias)
            for m, part in zip(some, parts, strict=True):
                expected = whole[first(m) :][:m].tobytes()
                assert np.asarray(part).tobytes() == expected, f"{m} rows of {dtype}, n {n}, k {k}"
        batched = jax.jit(jax.vmap(product, (0, None, None)))(a.reshape(4, most // 4, k), b, bias)
        assert np.asarray(batched).tobytes() == whole.tobytes()


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_rows_do_not_depend_on_their_number(platform, dtype, transpose_b, rng):
    most = 8192 if platform == "cuda" else 256
    for n, k in SHAPES if platform == "cuda" else SHAPES[:2]:
        rows_agree(platform, dtype, n, k, [m for m in ROWS if m <= most], transpose_b=transpose_b, rng=rng)


@pytest.mark.gpu
def test_every_number_of_rows(rng):
    rows_agree("cuda", "bfloat16", 256, 512, range(1, 513), rng=rng)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_matmul_and_dot_general(platform, rng):
    with jax.default_device(jax.devices(platform)[0]):
        a, b = (array(random(rng, shape, "float32")) for shape in ((64, 96), (96, 40)))
        whole = np.asarray(jaxgemm.matmul(a, b, batch_invariant=True))
        assert np.asarray(jaxgemm.matmul(a[5], b, batch_invariant=True)).tobytes() == whole[5].tobytes()
        dims = (((1,), (0,)), ((), ()))
        assert np.asarray(jaxgemm.dot_general(a, b, dims, batch_invariant=True)).tobytes() == whole.tobytes()


def problem(m, n, k, dtype, b_transposed=False, batch=()):
    shape = (*batch, m, k)
    view = plan(shape, (n, k) if b_transposed else (k, n), (((len(shape) - 1,), (int(b_transposed),)), ((), ())))
    return view.problem((dtype,) * 3, Epilogue())


def held(choice):
    """Its options but those that change no sum."""
    row = choice.kernel
    return tuple((name, x) for name, x in zip(row.options, choice.config, strict=False) if row.pins.get(name, 1))


@pytest.mark.parametrize("device", [CPU, H200], ids=["cpu", "H200"])
def test_the_choice_follows_n_and_k_alone(device):
    rows = {row.name: row for row in jaxgemm.kernels()}
    if device is H200 and not rows["simt"].built:
        pytest.skip("this build has no CUDA kernels")
    for dtype in ("bfloat16", "float32", "float64"):
        for n, k in SHAPES:
            choices = {
                (choice.kernel.name, held(choice))
                for m in ROWS
                for choice in [
                    select(problem(m, n, k, dtype), device, batch_invariant=True, precision=canonical("highest"))
                ]
            }
            assert len(choices) == 1, choices
            name, config = choices.pop()
            config = dict(config)
            for option, value in rows[name].pins.items():
                assert not value or config[option] == value


def test_kernels_that_promise_it_are_in_the_table():
    rows = {row.name: row for row in jaxgemm.kernels()}
    for name in INVARIANT:
        assert rows[name].batch_invariant or rows[name].pins
        assert set(rows[name].pins) <= set(rows[name].options)


def test_a_mapped_bias_is_added_before_the_result_is_rounded(rng):
    """What vmap composes in jnp has the bits that a kernel's own epilogue gives."""
    a, b, biases = (array(random(rng, shape, "bfloat16")) for shape in ((16, 96), (96, 40), (3, 40)))

    def product(bias):
        return jaxgemm.gemm(a, b, bias=bias, batch_invariant=True)

    alone = [product(bias) for bias in biases]
    np.testing.assert_array_equal(jax.vmap(product)(biases), jnp.stack(alone))


def test_refusals():
    a, b = jnp.ones((4, 8)), jnp.ones((8, 4))
    with pytest.raises(ValueError, match="XLA's product does not promise it"):
        jaxgemm.gemm(a, b, kernel="xla", batch_invariant=True)
    with pytest.raises(UnsupportedError, match="batch_invariant"):
        jaxgemm.matmul(a.astype(jnp.complex64), b.astype(jnp.complex64), batch_invariant=True)


def test_derivatives_exist():
    a, b = jnp.ones((4, 8)), jnp.ones((8, 4))
    gradient = jax.grad(lambda a: jnp.sum(jaxgemm.matmul(a, b, batch_invariant=True)))(a)
    np.testing.assert_allclose(gradient, np.full((4, 8), 4.0))
