"""The corners of the contract: NaN and infinity, beta = 0, K = 0, empty results, integers, batch invariance."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from oracle import ACTIVATIONS, Product, check_all, dtype_of, operand_eps, random, run_all

import jaxgemm

SPECIAL = (np.nan, np.inf, -np.inf)


def floating(row):
    """The first floating types of a kernel; skips the test where it has none."""
    found = [t for t in row.types if t[2] != "int32"]
    if not found:
        pytest.skip(f"{row.name} is for integers")
    return found[0]


def integers(row):
    found = [t for t in row.types if t[2] == "int32"]
    if not found:
        pytest.skip(f"{row.name} takes no integers")
    return found


def reference(a, b, alpha=1.0):
    with np.errstate(invalid="ignore"):
        return alpha * np.matmul(a.astype(np.float64), b.astype(np.float64))


def assert_same_specials(got, expected):
    """NaN and infinities of both signs in the same places, finite numbers elsewhere."""
    got = np.asarray(got, np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.where(np.isinf(got), got, 0), np.where(np.isinf(expected), expected, 0))


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_specials_propagate(row, layout, rng):
    """One NaN or infinity in a reaches its row, one in b its column, and nothing else."""
    types = floating(row)
    products = []
    for shape in ((17, 33, 65), (130, 130, 40)):
        p = Product.random(rng, shape, types, layout)
        for value, (i, j) in itertools.product(SPECIAL, ((0, 0), (-1, -1), (3, 5))):
            p.operands[0][i, j] = value
            products.append(Product(p.a.copy(), p.b, layout, *types[2:]))
            p.operands[0][i, j] = 1
            p.operands[1][i, j] = value
            products.append(Product(p.a, p.b.copy(), layout, *types[2:]))
            p.operands[1][i, j] = 1
    arrays = [p.arrays for p in products]
    program = jax.jit(lambda xs: [p.call(x, row.name) for p, x in zip(products, xs, strict=True)])
    for p, d in zip(products, program(arrays), strict=True):
        assert_same_specials(d, reference(*p.operands))


def test_inf_minus_inf_and_inf_times_zero_are_nan(row):
    types = floating(row)
    a, b = np.ones((20, 40), dtype_of(types[0])), np.ones((40, 24), dtype_of(types[1]))
    a[3, 5], a[3, 30] = np.inf, -np.inf
    a[7, 7], b[7, :12] = np.inf, 0
    d = jaxgemm.gemm(a, b, out_dtype=types[2], kernel=row.name)
    assert_same_specials(d, reference(a, b))
    assert np.isnan(np.asarray(d, np.float64)[3]).all()
    assert np.isnan(np.asarray(d, np.float64)[7, :12]).all()


def test_specials_in_c_and_bias(row, rng):
    types = floating(row)
    plain = Product.random(rng, (17, 33, 12), types, beta=0.5, bias=True)
    plain.c[2, 3:6] = SPECIAL
    plain.bias[7:10] = SPECIAL
    products = [replace(plain, activation=activation) for activation in (None, *cases.ACTIVATIONS)]
    c, bias = (x.astype(np.float64) for x in (plain.c, plain.bias))
    z = reference(*plain.operands) + 0.5 * c + bias
    for p, result in zip(products, run_all(products, row.name), strict=True):
        d, expected = result.astype(np.float64), z
        if p.activation:
            with np.errstate(invalid="ignore"):
                expected = ACTIVATIONS[p.activation](z)
            # x * sigmoid(x) and its like are 0 at -inf by their limit, and NaN by their formula: both will do.
            either = np.isneginf(z)
            if np.isnan(expected[either]).any():
                assert np.all(np.isnan(d[either]) | (d[either] == 0)), p.activation
                d[either] = expected[either] = 0
        assert_same_specials(d, expected)


def test_c_is_not_read_when_beta_is_zero(row, types, rng):
    p = Product.random(rng, (33, 65, 17), types)
    c = np.full(p.shape, 77 if types[2] == "int32" else np.nan, dtype_of(p.out))

    def program(a, b, c):
        return [jaxgemm.gemm(a, b, c, beta=beta, out_dtype=p.out, kernel=row.name) for beta in (0, 0.0)]

    for d in jax.jit(program)(p.a, p.b, c):
        p.check(np.asarray(d), row.name)


def scaled_by(row, *scalings):
    """Results of a product of 36 and a c of 0.5 for each (alpha, beta)."""
    types = floating(row)
    a, b = np.full((5, 6), 2, dtype_of(types[0])), np.full((6, 7), 3, dtype_of(types[1]))
    c = np.full((5, 7), 0.5, dtype_of(types[2]))

    def program(*arrays):
        return [jaxgemm.gemm(*arrays, alpha=x, beta=y, out_dtype=types[2], kernel=row.name) for x, y in scalings]

    return [np.asarray(d, np.float64) for d in jax.jit(program)(a, b, c)]


def test_infinite_and_nan_scalings(row):
    inf, nan = np.inf, np.nan
    scalings = (inf, 0.0), (-inf, 1.0), (nan, 0.0), (1.0, inf), (1.0, nan), (inf, -inf)
    for d, expected in zip(scaled_by(row, *scalings), (inf, -inf, nan, inf, nan, nan), strict=True):
        assert_same_specials(d, np.full((5, 7), expected))


def test_subnormal_scalings(row):
    """XLA's threads may take subnormal numbers for zero, but c was passed all the same."""
    of_c, of_product = scaled_by(row, (1.0, 1e-310), (1e-310, 1.0))
    np.testing.assert_array_equal(of_c, 36)
    np.testing.assert_array_equal(of_product, 0.5)


def test_alpha_zero_keeps_nan(row, rng):
    """As in jnp, 0 * NaN and 0 * inf are NaN."""
    types = floating(row)
    p = Product.random(rng, (17, 33, 20), types, alpha=0.0, beta=2.0)
    p.a[3, 4], p.a[5, 6], p.b[8, 9] = np.nan, np.inf, -np.inf
    expected = reference(p.a, p.b, 0.0) + 2 * p.c.astype(np.float64)
    got = p.run(row.name)
    assert_same_specials(got, expected)
    finite = np.isfinite(expected)
    np.testing.assert_allclose(got.astype(np.float64)[finite], expected[finite], rtol=2e-2)


def test_no_sum_leaves_the_rest_of_the_epilogue(row, types, rng):
    """K = 0 gives act(beta * c + bias)."""
    beta = 3 if types[2] == "int32" else 1.5
    products = [
        Product.random(rng, (m, n, 0), types, layout, batches, **epilogue)
        for m, n, layout, batches in (
            (17, 33, "NN", ((), ())),
            (1, 1, "TT", ((), ())),
            (128, 128, "NT", ((2,), (2,))),
            (5, 7, "TN", ((2, 1), (1, 3))),
        )
        for epilogue in ({}, {"beta": beta}, {"beta": beta, "bias": True, "activation": "relu"}, {"bias": True})
    ]
    check_all(products, row.name)


def test_empty_results(row, types, rng):
    beta = 2
    products = [
        Product.random(rng, shape, types, layout, **epilogue)
        for shape in cases.EMPTY
        for layout in ("NN", "TT")
        for epilogue in ({}, {"beta": beta, "bias": True, "activation": "relu"})
    ]
    products += [Product.random(rng, (5, 7, 3), types, "NT", batches, beta=beta) for batches in cases.EMPTY_BATCHES]
    check_all(products, row.name)


def test_integers_wrap(row):
    """Sums past 2^31 wrap, as XLA's do."""
    products = []
    for types in integers(row):
        k = 140_000
        extremes = [int(np.iinfo(t).min or np.iinfo(t).max) for t in types[:2]]
        a, b = (np.full(s, x, t) for s, x, t in zip(((2, k), (k, 3)), extremes, types[:2], strict=True))
        assert k * abs(extremes[0] * extremes[1]) > 2**31
        wrapping = Product(a, b, "NN", types[2], types[3], label="a long sum")
        scaled = Product(a[:, :5000], b[:5000], "NN", types[2], types[3], alpha=2**20 + 1, label="a large alpha")
        c = np.array([[2**31 - 1, -(2**31), 5]] * 2, np.int32)
        added = Product(a[:, :4], b[:4], "NN", types[2], types[3], beta=1, c=c, bias=c[0], label="large c and bias")
        products += [wrapping, scaled, added]
    check_all(products, row.name)


def test_integer_scalings_are_exact(row, rng):
    """Factors that float32 does not hold."""
    products = [
        Product.random(rng, (17, 33, 20), types, alpha=alpha, beta=beta, bias=True)
        for types in integers(row)
        for alpha, beta in ((2**24 + 1, 1), (1, -(2**30) - 1), (-(2**31), 2**31 - 1))
    ]
    check_all(products, row.name)


def test_rows_do_not_depend_on_their_number(row, types, rng):
    """Where the table promises it, a row has the same bits alone and among others."""
    if not row.batch_invariant:
        pytest.skip(f"{row.name} does not promise it")
    n, k = 130, 520
    a, b = random(rng, (300, k), types[0]), random(rng, (k, n), types[1])
    counts = (1, 2, 3, 8, 17, 64, 127, 128, 200)

    def program(a, b):
        whole = jaxgemm.gemm(a, b, out_dtype=types[2], kernel=row.name)
        parts = [jaxgemm.gemm(a[:m], b, out_dtype=types[2], kernel=row.name) for m in counts]
        batched = jaxgemm.gemm(a.reshape(3, 100, k), b, out_dtype=types[2], kernel=row.name)
        return whole, parts, batched.reshape(300, n)

    whole, parts, batched = jax.tree.map(np.asarray, jax.jit(program)(a, b))
    for m, part in zip(counts, parts, strict=True):
        assert part.tobytes() == whole[:m].tobytes(), f"m = {m}"
    assert batched.tobytes() == whole.tobytes()


def test_results_do_not_alias_c(row, rng):
    """c is an operand, not the result's memory: it is unchanged afterwards."""
    types = row.types[0]
    p = Product.random(rng, (40, 50, 60), types, beta=2)
    arrays = {name: array(x) for name, x in p.arrays.items()}
    p.check(np.asarray(p.call(arrays, row.name)), row.name)
    for name, x in p.arrays.items():
        assert np.asarray(arrays[name]).tobytes() == x.tobytes(), name


def same_types(row):
    """Types whose result can be the next operand."""
    found = [t for t in row.types if t[0] == t[2]]
    if not found:
        pytest.skip(f"{row.name} has no result that is an operand")
    return found[0]


def test_chains(row, rng):
    """Products that feed each other, at fresh addresses every time: what command buffers and streams must get right."""
    dtype = same_types(row)[0]
    n, length = 72, 8
    w = (random(rng, (length, n, n), "float64") / np.sqrt(n)).astype(dtype_of(dtype))

    @jax.jit
    def chain(x, w):
        for i in range(length):
            x = jaxgemm.gemm(x, w[i], x, beta=0.5, kernel=row.name)
        return x

    keep = []
    for _ in range(4):
        x = random(rng, (n, n), dtype)
        expected = x.astype(np.float64)
        for i in range(length):
            expected = expected @ w[i].astype(np.float64) + 0.5 * expected
        keep.append(array(x))  # so that the next input lies elsewhere
        error = np.linalg.norm(np.asarray(chain(keep[-1], w), np.float64) - expected)
        eps = max(float(jnp.finfo(dtype).eps), 2 * operand_eps(row.name, dtype))
        assert error <= 4 * length * eps * np.linalg.norm(expected)


def test_threads(row, rng):
    """Handlers run on several threads at once."""
    types = row.types[0]
    products = [
        Product.random(rng, shape, types) for shape in ((65, 70, 33), (128, 128, 64), (1, 300, 500), (7, 3, 900))
    ]
    programs = [jax.jit(lambda x, p=p: p.call(x, row.name)) for p in products]
    arrays = [jax.tree.map(jnp.asarray, p.arrays) for p in products]

    def work(i):
        return [np.asarray(programs[i](arrays[i])) for _ in range(8)]

    with ThreadPoolExecutor(len(products)) as pool:
        for p, results in zip(products, pool.map(work, range(len(products))), strict=True):
            for d in results:
                p.check(d, row.name)
