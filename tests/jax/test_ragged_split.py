"""Products of float32 rows by bfloat16, as gradients of float32 results are, split into products of bfloat16."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped import by_rows, by_sums
from jax.sharding import PartitionSpec as P
from meshes import mesh, put

import jaxgemm
from jaxgemm.grouped import arguments, split
from jaxgemm.grouped.primitive import Form, grouped_p
from jaxgemm.kernels import find_kernel

M, K, N, GROUPS = 37, 16, 24, 5
SIZES = jnp.array([5, 0, 20, 3, 4], jnp.int32)
ROWS, SUMS = Form(False, False, GROUPS), Form(True, False, GROUPS)
#: Largest error over the largest result, by precision: of 16 bits of 24, and of all, with what sums of 60 terms lose.
ERRORS = {None: 2.0**-16, "highest": 2.0**-19}
built = pytest.mark.skipif(not find_kernel("sm90").built, reason="this build has no such kernel")


def params_of(form, precision=None, out="float32"):
    return arguments.parameters(precision=precision, out=np.dtype(out), kernel="auto") | {"form": form}


def operands(rng, form, wide):
    """bfloat16 but for the operand of that number, whose rows are of very different sizes."""
    shapes = [(M, K), (M, N) if form.sums else (GROUPS, K, N)]
    arrays = [jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in shapes]
    spread = np.exp(4 * rng.standard_normal((M, 1)))
    arrays[wide] = jnp.asarray(rng.standard_normal(shapes[wide]) * spread, jnp.float32)
    return arrays


def product(x, y, params, sizes=SIZES, offset=0):
    """As a kernel of bfloat16 would be called."""
    found = split.of((x, y), params)
    given = split.rows(found, [x, y, sizes, jnp.full(1, offset, jnp.int32)], params)
    assert [v.dtype for v in given[:2]] == [jnp.bfloat16] * 2
    shapes = split.types(found, [x, y, sizes, None], params)
    assert [v.shape for v in given[:2]] == [v.shape for v in shapes[:2]]
    return split.joined(found, grouped_p.bind(*given, **split.result_params(params)), params)


@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize(("form", "wide"), [(ROWS, 0), (SUMS, 0), (SUMS, 1)], ids=["rows", "sums", "other sums"])
def test_bits(form, wide, precision, rng):
    """XLA may keep more bits than a type has, and must not here: then what is left of a number would be 0."""
    x, y = operands(rng, form, wide)
    got = jax.jit(partial(product, params=params_of(form, precision)))(x, y)
    want = (by_sums if form.sums else by_rows)(x, y, SIZES)
    scale = np.abs(want).max(axis=-1, keepdims=True)
    assert np.max(np.abs(got - want) / np.where(scale == 0, 1, scale)) < ERRORS[precision]


def test_a_batch_and_sizes_of_any_sum(rng):
    x, y = operands(rng, SUMS, 1)
    sizes = jnp.array([[2**31 - 1, 3, 0, 0, 0], [-5, 10, 1, 0, 7]], jnp.int32)
    xs, ys = jnp.stack([x, x[::-1]]), jnp.stack([y, y + 1])
    got = jax.vmap(lambda x, y, s: product(x, y, params_of(SUMS), s, 1))(xs, ys, sizes)
    for i in range(2):
        want = by_sums(xs[i], ys[i], sizes[i])
        np.testing.assert_allclose(got[i][: GROUPS - 1], want[1:], rtol=1e-3, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_infinity_and_nan_stay_what_they_are(bad, rng):
    x, w = operands(rng, ROWS, 0)
    x = x.at[3, 2].set(bad)
    got = product(x, jnp.abs(w), params_of(ROWS))
    np.testing.assert_array_equal(got[3], np.full(N, bad))
    assert np.isfinite(got).sum() == got.size - N


def test_what_is_not_split(rng):
    x, w = operands(rng, ROWS, 0)
    x16, w32 = x.astype(jnp.bfloat16), w.astype(jnp.float32)
    for a, b, form in ((x16, w, ROWS), (x, w32, ROWS), (x16, w32, ROWS), (x.astype(jnp.float16), w, ROWS)):
        assert split.of((a, b), params_of(form)) is None
    assert split.of((x, w), params_of(ROWS)).parts == 2
    assert split.of((x, w), params_of(ROWS, jax.lax.DotAlgorithmPreset.F32_F32_F32)) is None


def loss(x, w, precision=None):
    z = jaxgemm.ragged_dot(x, w, SIZES, precision=precision, preferred_element_type=jnp.float32)
    return jnp.sum(jnp.sin(z))


@pytest.mark.parametrize("platform", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_gradients(platform, rng):
    """Of both operands, and of these again, within bfloat16's rounding of a result."""
    x, w = (jnp.asarray(rng.standard_normal(s) * 0.3, jnp.bfloat16) for s in ((M, K), (GROUPS, K, N)))
    wide = [v.astype(jnp.float64) for v in (x, w)]

    def exact(x, w):
        return jnp.sum(jnp.sin(by_rows(x, w, SIZES)))

    def second(function, x, w):
        return jax.grad(lambda x: jnp.sum(jax.grad(function, 1)(x, w).astype(x.dtype) ** 2))(x)

    with jax.default_device(jax.devices(platform)[0]):
        for got, want in (
            (jax.jit(jax.grad(loss, (0, 1)))(x, w), jax.grad(exact, (0, 1))(*wide)),
            ([jax.jit(partial(second, loss))(x, w)], [second(exact, *wide)]),
        ):
            for a, b in zip(got, want, strict=True):
                assert a.dtype == jnp.bfloat16
                scale = float(jnp.abs(b).max())
                np.testing.assert_allclose(a.astype(jnp.float64), b, rtol=2**-6, atol=2**-7 * scale)


@pytest.mark.parametrize("types", ["Auto", "Explicit"])
def test_gradients_on_several_devices(types, rng):
    on = mesh(types=types)
    x, w = (jnp.asarray(rng.standard_normal(s), jnp.bfloat16) for s in ((32, K), (4, K, N)))
    sizes = jnp.array([5, 0, 20, 3], jnp.int32)

    def total(x, w, sizes, out=None):
        z = jaxgemm.ragged_dot(x, w, sizes, preferred_element_type=jnp.float32, out_sharding=out)
        return jnp.sum(jnp.sin(z))

    want = jax.jit(jax.grad(total, (0, 1)))(x, w, sizes)
    for over in (P("y"), P("x"), P(None, None, "x")):
        out = P("y") if types == "Explicit" and over == P("x") else None
        given = put(x, on, P("y")), put(w, on, over if over != P("y") else P()), put(sizes, on, P())
        with jax.set_mesh(on):
            got = jax.jit(jax.grad(partial(total, out=out), (0, 1)))(*given)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=2**-6, atol=2**-5)


@built
def test_kernels_compute_gradients_of_float32_results():
    structs = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((M, K), (GROUPS, K, N))]
    for precision, parts in ((None, 2), ("highest", 3)):
        gradient = jax.grad(partial(loss, precision=precision), (0, 1))
        text = jax.jit(gradient).trace(*structs).lower(lowering_platforms=("cuda",)).as_text()
        assert text.count("@jaxgemm_grouped_gemm") == 3
        assert "dot_general" not in text
        first, *derived = jaxgemm.explain(gradient, *structs, platform="cuda").products
        assert first.decision.choice.why == "one launch for all groups"
        for found in derived:
            assert found.kernel == "sm90"
            assert f"float32 rows as {parts} of bfloat16 each" in str(found)
            assert found.floor.unit == "16-bit tensor"
