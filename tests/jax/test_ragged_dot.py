"""ragged_dot and ragged_dot_general: each group's rows by its own weights, whatever sizes say and neighbours hold."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from jax import export, lax
from jax.test_util import check_grads

import jaxgemm
from jaxgemm.choice import xla_times
from jaxgemm.ragged import groups

M, K, N, GROUPS = 37, 16, 24, 5
#: Sizes of five groups of 37 rows: all of them, some, too many, none, and numbers that count as 0.
SIZES = {
    "all": [5, 0, 20, 3, 9],
    "fewer": [1, 2, 3, 4, 5],
    "more": [50, 1, 1, 1, 1],
    "none": [0, 0, 0, 0, 0],
    "negative": [-3, 5, -1, 0, 7],
    "one": [0, 0, 37, 0, 0],
}


def parts(sizes, rows):
    """Where each group begins and ends."""
    ends = np.minimum(np.cumsum(np.clip(np.asarray(sizes, np.int64), 0, None)), rows)
    return list(zip([0, *ends[:-1]], ends, strict=True))


def by_rows(x, w, sizes, offset=0):
    """In float64."""
    out = np.zeros((x.shape[0], w.shape[2]))
    for group, (begin, end) in enumerate(parts(sizes, x.shape[0])):
        if 0 <= group - offset < w.shape[0]:
            out[begin:end] = np.asarray(x[begin:end], np.float64) @ np.asarray(w[group - offset], np.float64)
    return out


def by_sums(x, y, sizes):
    """In float64: the sum over each group's rows."""
    pairs = [(np.asarray(x[b:e], np.float64), np.asarray(y[b:e], np.float64)) for b, e in parts(sizes, x.shape[0])]
    return np.stack([p.T @ q for p, q in pairs])


def close(got, want, rtol=2e-5):
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=rtol, atol=rtol * max(np.abs(want).max(), 1e-30))


def operands(rng, dtype=np.float32, held=GROUPS):
    x, w = rng.standard_normal((M, K)), rng.standard_normal((held, K, N))
    return array(x, dtype), array(w, dtype)


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_groups(sizes, dtype, rng):
    x, w = operands(rng, dtype)
    got = jax.jit(jaxgemm.ragged_dot)(x, w, array(sizes))
    assert got.dtype == x.dtype
    close(got, by_rows(x, w, sizes), 2e-2 if got.dtype.itemsize == 2 else 2e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_sizes_of_any_integer_type(dtype, rng):
    x, w = operands(rng)
    most = np.iinfo(dtype).max
    sizes = array([3, most, 1, most, 2], dtype)
    close(jaxgemm.ragged_dot(x, w, sizes), by_rows(x, w, [3, 34, 0, 0, 0]))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_symbolic_rows_and_sizes_of_any_integer_type(dtype, rng):
    x, w = operands(rng)
    sizes = array([3, np.iinfo(dtype).max, 1, 5, 2], dtype)
    rows = jax.ShapeDtypeStruct((*export.symbolic_shape("m"), K), x.dtype)
    structs = [rows, *(jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (w, sizes))]
    exported = export.export(jax.jit(jaxgemm.ragged_dot), platforms=["cpu"])(*structs)
    close(exported.call(x, w, sizes), by_rows(x, w, [3, 34, 0, 0, 0]))


def test_a_symbolic_number_of_groups_is_refused():
    structs = [jax.ShapeDtypeStruct(export.symbolic_shape(s), jnp.float32) for s in ("8, 4", "g, 4, 6", "g")]
    structs[2] = jax.ShapeDtypeStruct(structs[1].shape[:1], jnp.int32)
    with pytest.raises(TypeError, match="ragged_dot: the number of groups must be known, got the symbol g"):
        export.export(jax.jit(jaxgemm.ragged_dot), platforms=["cpu"])(*structs)


def test_ends_of_more_rows_than_half_of_what_32_bits_count():
    rows = 1610612736
    sizes = array([1503238553, 1503238553, 5, -7], groups.SIZES)
    np.testing.assert_array_equal(groups.ends(sizes, rows), [1503238553, rows, rows, rows])


@pytest.mark.parametrize(("held", "offset"), [(1, 0), (2, 1), (2, 4), (2, -1), (5, 0), (5, 7)])
def test_weights_of_some_groups(offset, held, rng):
    x, w = operands(rng, held=held)
    sizes = SIZES["all"]
    product = jax.jit(lambda x, w, s, o: jaxgemm.ragged_dot(x, w, s, group_offset=o))
    close(product(x, w, array(sizes), array([offset])), by_rows(x, w, sizes, offset))
    _, pull = jax.vjp(lambda w: product(x, w, jnp.asarray(sizes), jnp.asarray([offset])), w)
    ct = rng.standard_normal((M, N)).astype(np.float32)
    want = np.zeros((held, K, N))
    for group, value in enumerate(by_sums(x, ct, sizes)):
        if 0 <= group - offset < held:
            want[group - offset] = value
    close(pull(ct)[0], want)


@pytest.mark.parametrize("offset", [2**32, 2**32 + 1, -(2**32), 2**63 - 1])
def test_an_offset_that_32_bits_cannot_hold_is_beyond_all_groups(offset, rng):
    x, w = operands(rng)
    got = jaxgemm.ragged_dot(x, w, array(SIZES["all"]), group_offset=array([offset]))
    np.testing.assert_array_equal(got, 0)


@pytest.mark.parametrize(
    ("activation", "with_bias"), [(None, True), ("relu", False), ("gelu", True), ("sigmoid", True)]
)
def test_epilogue(activation, with_bias, rng):
    """Rows of no group have zeros, not an activation's value at 0."""
    x, w = operands(rng)
    bias = rng.standard_normal((GROUPS, N)).astype(np.float32) if with_bias else None
    sizes = SIZES["fewer"]

    def product(x, w, bias):
        return jaxgemm.ragged_dot(x, w, jnp.asarray(sizes), bias=bias, activation=activation)

    function = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "sigmoid": jax.nn.sigmoid, None: lambda z: z}[activation]

    def plain(x, w, bias):
        rows = [x[b:e] @ w[g] + (0 if bias is None else bias[g]) for g, (b, e) in enumerate(parts(sizes, M))]
        rest = jnp.zeros((M - sum(len(r) for r in rows), N), x.dtype)
        return jnp.concatenate([*map(function, rows), rest])

    wide = [None if v is None else array(v, np.float64) for v in (x, w, bias)]
    close(jax.jit(product)(x, w, bias), np.asarray(plain(*wide)))
    which = (0, 1, 2) if with_bias else (0, 1)
    weights = array(rng.standard_normal((M, N)))
    got = jax.jit(jax.grad(lambda *a: jnp.sum(product(*a) * weights), which))(x, w, bias)
    want = jax.grad(lambda *a: jnp.sum(plain(*a) * weights), which)(*wide)
    for one, other in zip(got, want, strict=True):
        close(one, np.asarray(other), 1e-4)


def test_groups_are_isolated(rng):
    """NaN and infinity in a group's rows, in its weights and in rows of no group reach nobody else's results."""
    x, w = map(np.array, operands(rng))
    bias = rng.standard_normal((GROUPS, N)).astype(np.float32)
    sizes = SIZES["fewer"]
    clean = x.copy(), w.copy(), bias.copy()
    (begin, end), used = parts(sizes, M)[2], sum(sizes)
    x[begin:end], x[used:] = np.nan, np.inf
    w[3], bias[1] = np.inf, np.nan

    def loss(x, w, bias):
        out = jaxgemm.ragged_dot(x, w, jnp.asarray(sizes), bias=bias, activation="silu")
        return jnp.sum(jnp.where(jnp.arange(M)[:, None] < used, out, 0) ** 2), out

    def spoilt(group):
        return slice(*parts(sizes, M)[group])

    (dx, dw, db), got = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(x, w, bias)
    (dx0, dw0, db0), want = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*clean)
    for group in (0, 4):
        np.testing.assert_array_equal(got[spoilt(group)], want[spoilt(group)])
        np.testing.assert_array_equal(dx[spoilt(group)], dx0[spoilt(group)])
        np.testing.assert_array_equal(dw[group], dw0[group])
        np.testing.assert_array_equal(db[group], db0[group])
    np.testing.assert_array_equal(got[used:], 0)
    np.testing.assert_array_equal(dx[used:], 0)


def test_derivatives_of_every_order(rng):
    x, w = operands(rng, np.float64)
    check_grads(lambda x, w: jaxgemm.ragged_dot(x, w, jnp.asarray(SIZES["fewer"])), (x, w), 3)


@pytest.mark.parametrize(
    "axes", [(0, 0, 0), (1, 0, None), (0, None, 0), (None, 1, 1), (None, None, 0), (1, None, None)]
)
def test_vmap(axes, rng):
    x, w = rng.standard_normal((3, M, K)), rng.standard_normal((3, GROUPS, K, N))
    sizes = np.asarray([SIZES["all"], SIZES["more"], SIZES["fewer"]])
    args = [v[0] if a is None else np.moveaxis(v, 0, a) for v, a in zip((x, w, sizes), axes, strict=True)]

    def each(i):
        return [v if a is None else np.moveaxis(v, a, 0)[i] for v, a in zip(args, axes, strict=True)]

    got = jax.jit(jax.vmap(jaxgemm.ragged_dot, axes))(*args)
    for i in range(3):
        close(got[i], by_rows(*each(i)), 1e-12)
    which = tuple(range(2))
    total = jax.jit(jax.grad(lambda *a: jnp.sum(jnp.sin(jax.vmap(jaxgemm.ragged_dot, axes)(*a, args[2]))), which))
    slow = jax.grad(lambda *a: sum(jnp.sum(jnp.sin(jaxgemm.ragged_dot(*b))) for b in pieces(a)), which)

    def pieces(a):
        given = [*a, args[2]]
        for i in range(3):
            pairs = zip(given, axes, strict=True)
            yield [v if ax is None else jnp.moveaxis(jnp.asarray(v), ax, 0)[i] for v, ax in pairs]

    for one, other in zip(total(*args[:2]), slow(*args[:2]), strict=True):
        close(one, np.asarray(other), 1e-10)


def test_vmap_of_vmap(rng):
    x, w = rng.standard_normal((2, M, K)), rng.standard_normal((3, GROUPS, K, N))
    sizes = array(SIZES["all"])
    got = jax.vmap(lambda x: jax.vmap(lambda w: jaxgemm.ragged_dot(x, w, sizes))(w))(x)
    for i, j in np.ndindex(2, 3):
        close(got[i, j], by_rows(x[i], w[j], SIZES["all"]), 1e-12)


Numbers = lax.RaggedDotDimensionNumbers
#: Shapes of lhs, rhs and sizes, and how they are multiplied.
GENERAL = {
    "plain": ((M, K), (GROUPS, K, N), (), Numbers((((1,), (1,)), ((), ())), [0], [0])),
    "weights transposed": ((M, K), (GROUPS, N, K), (), Numbers((((1,), (2,)), ((), ())), [0], [0])),
    "group last": ((M, K), (K, N, GROUPS), (), Numbers((((1,), (0,)), ((), ())), [0], [2])),
    "lhs transposed": ((K, M), (GROUPS, K, N), (), Numbers((((0,), (1,)), ((), ())), [1], [0])),
    "batch": ((3, M, K), (3, GROUPS, K, N), (), Numbers((((2,), (2,)), ((0,), (0,))), [1], [1])),
    "batch, sizes each": ((3, M, K), (3, GROUPS, K, N), (3,), Numbers((((2,), (2,)), ((0,), (0,))), [1], [1])),
    "free axes": ((2, M, 3, K), (GROUPS, K, 4, 6), (), Numbers((((3,), (1,)), ((), ())), [1], [0])),
    "free axes, sizes each": ((2, M, 3, K), (GROUPS, K, 4, 6), (2,), Numbers((((3,), (1,)), ((), ())), [1], [0])),
    "two contracted": ((M, 4, 5), (5, GROUPS, N, 4), (), Numbers((((1, 2), (3, 0)), ((), ())), [0], [1])),
    "sums": ((M, K), (M, N), (), Numbers((((0,), (0,)), ((), ())), [0], [])),
    "sums, ragged last": ((K, M), (N, M), (), Numbers((((1,), (1,)), ((), ())), [1], [])),
    "sums, batch": ((3, M, K), (3, M, N), (3,), Numbers((((1,), (1,)), ((0,), (0,))), [1], [])),
    "sums, two contracted": ((2, M, K), (M, N, 2), (), Numbers((((0, 1), (2, 0)), ((), ())), [1], [])),
    "sums, sizes each": ((2, M, K), (M, N, 2), (2,), Numbers((((0, 1), (2, 0)), ((), ())), [1], [])),
    "sums, contracted after": ((M, 2, K), (M, 2, N), (), Numbers((((0, 1), (0, 1)), ((), ())), [0], [])),
    "ragged batch": ((M, 6, K), (M, K, 4), (), Numbers((((2,), (1,)), ((0,), (0,))), [0], [])),
}


@pytest.mark.parametrize("name", GENERAL)
def test_general(name, rng):
    """As lax.ragged_dot_general, in float64 and where every row has a group."""
    lhs, rhs, prefix, numbers = GENERAL[name]
    x, y = rng.standard_normal(lhs), rng.standard_normal(rhs)
    choices = np.asarray([SIZES["all"], SIZES["one"], [7, 10, 10, 10, 0]])
    sizes = array(choices[: prefix[0]] if prefix else choices[0])
    got = jax.jit(lambda *a: jaxgemm.ragged_dot_general(*a, numbers))(x, y, sizes)
    want = lax.ragged_dot_general(x, y, sizes, numbers)
    assert got.shape == want.shape
    close(got, np.asarray(want), 1e-12)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"lhs": np.ones((2, M, K))}, ValueError, r"expected lhs \(m, k\) and rhs \(groups, k, n\), got shapes"),
        ({"rhs": np.ones((GROUPS, K + 1, N))}, ValueError, r"inner dimensions differ.* k = 16,.* k = 17"),
        ({"group_sizes": np.ones(GROUPS)}, TypeError, "group_sizes: expected integers, got float"),
        (
            {"group_sizes": np.ones((1, GROUPS), int)},
            ValueError,
            r"group_sizes must have shape \(groups,\), got \(1, 5\)",
        ),
        ({"group_sizes": np.ones(4, int)}, ValueError, "4 group sizes for the weights of 5 groups"),
        ({"group_offset": np.ones(2, int)}, ValueError, r"group_offset: expected one integer, of shape \(1,\)"),
        ({"group_offset": np.ones(1)}, TypeError, "group_offset: expected integers"),
        ({"bias": np.ones(N)}, ValueError, r"bias must have shape \(5, 24\), a row for each group, got \(24,\)"),
        ({"bias": np.ones((GROUPS, N), complex)}, TypeError, "ragged_dot: bias complex128 for a result of float64"),
        (
            {"lhs": np.ones((M, K), bool), "rhs": np.ones((GROUPS, K, N), bool), "activation": "relu"},
            TypeError,
            "booleans",
        ),
        (
            {"lhs": np.ones((M, K), int), "rhs": np.ones((GROUPS, K, N), int), "activation": "silu"},
            ValueError,
            "ragged_dot: activation 'silu' of an integer product",
        ),
        ({"activation": "swish"}, ValueError, "activation: got 'swish', expected None or one of relu"),
        ({"kernel": "fast"}, ValueError, "kernel: got 'fast', expected one of"),
    ],
)
def test_errors(change, error, message):
    given = {"lhs": np.ones((M, K)), "rhs": np.ones((GROUPS, K, N)), "group_sizes": np.ones(GROUPS, int)} | change
    with pytest.raises(error, match=message):
        jaxgemm.ragged_dot(**given)


def test_errors_of_dimension_numbers():
    given = np.ones((M, K)), np.ones((GROUPS, K, N)), np.ones(GROUPS, int)
    with pytest.raises(
        TypeError, match=r"expected jax\.lax\.RaggedDotDimensionNumbers as dimension numbers, got tuple"
    ):
        jaxgemm.ragged_dot_general(*given, (((1,), (1,)), ((), ())))
    batch = np.ones((M, 6, K)), np.ones((M, K, 4)), np.ones(GROUPS, int), GENERAL["ragged batch"][3]
    with pytest.raises(ValueError, match="group_offset has no meaning where the ragged axis is a batch"):
        jaxgemm.ragged_dot_general(*batch, group_offset=0)
    with pytest.raises(TypeError, match="exactly one lhs ragged dimension"):
        jaxgemm.ragged_dot_general(*given, Numbers((((1,), (1,)), ((), ())), [0, 1], [0]))


@pytest.mark.parametrize("shape", [(0, K, N, GROUPS), (M, 0, N, GROUPS), (M, K, 0, GROUPS), (M, K, N, 0)])
def test_empty(shape):
    m, k, n, held = shape
    sizes = jnp.full(held, 3)
    got, pull = jax.vjp(lambda x, w: jaxgemm.ragged_dot(x, w, sizes), jnp.ones((m, k)), jnp.ones((held, k, n)))
    assert got.shape == (m, n)
    assert not np.any(got[15:])
    assert [x.shape for x in pull(got)] == [(m, k), (held, k, n)]


def test_a_kernel_by_name_is_refused():
    x, w, sizes = jnp.ones((M, K)), jnp.ones((GROUPS, K, N)), jnp.ones(GROUPS, jnp.int32)
    with pytest.raises(jaxgemm.UnsupportedError, match="kernel 'host' has no grouped form"):
        jaxgemm.ragged_dot(x, w, sizes, kernel="host")
    assert jaxgemm.ragged_dot(x, w, sizes, kernel="xla").shape == (M, N)


@pytest.mark.parametrize("most", [0, 1 << 24], ids=["loop", "batch"])
@pytest.mark.parametrize("form", ["rows", "transposed", "sums"])
def test_a_loop_over_groups_and_a_batch_of_products(form, most, monkeypatch, rng):
    """XLA's two ways give the same, and keep infinity and NaN to their group."""
    monkeypatch.setattr(xla_times, "_MOST_COPIES", most)
    x, w = operands(rng)
    x, w = x.at[6:10].set(np.inf), w.at[3].set(np.nan)  # rows of the third group in SIZES, and the fourth's weights
    y = array(rng.standard_normal((M, N)))
    numbers = {
        "rows": Numbers((((1,), (1,)), ((), ())), [0], [0]),
        "transposed": Numbers((((1,), (2,)), ((), ())), [0], [0]),
        "sums": Numbers((((0,), (0,)), ((), ())), [0], []),
    }[form]
    other = {"rows": w, "transposed": w.mT, "sums": y}[form]
    for given, offset in ((SIZES["all"], 0), (SIZES["fewer"], 0 if form == "sums" else 2), (SIZES["more"], 0)):

        def product(x, other, sizes, offset=offset):
            where = {"group_offset": array([offset])} if offset else {}
            return jaxgemm.ragged_dot_general(x, other, sizes, numbers, kernel="xla", **where)

        program = jax.jit(product).lower(x, other, array(given))
        assert ("while" in program.as_text()) == (most == 0)
        got = program.compile()(x, other, array(given))
        with np.errstate(invalid="ignore"):
            want = by_sums(x, y, given) if form == "sums" else by_rows(x, w, given, offset)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def temporaries(m, k, n, groups):
    x, w = jax.ShapeDtypeStruct((m, k), jnp.float32), jax.ShapeDtypeStruct((groups, k, n), jnp.float32)
    program = jax.jit(jaxgemm.ragged_dot).lower(x, w, jax.ShapeDtypeStruct((groups,), jnp.int32)).compile()
    return program.memory_analysis().temp_size_in_bytes


def test_temporaries_do_not_grow_with_the_groups():
    """No operand is repeated for every group where that would be much: of many rows, or of narrow weights."""
    assert temporaries(1 << 17, 64, 64, 64) <= temporaries(1 << 17, 64, 64, 4) + 512 * 64 * 4
    assert temporaries(2048, 4096, 16, 64) <= 4 * (2048 * 4096 + 64 * 4096 * 16)
    assert temporaries(512, 64, 64, 64) <= 4 << 24


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_no_transfer_is_hidden(dtype):
    """Eager calls bring nothing from the host: neither the first group's number nor limits of sizes."""
    x, w, sizes = jnp.ones((4, 4)), jnp.ones((2, 4, 4)), array([2, 1], dtype)
    offset = array([0], dtype)
    rows, sums = (
        lax.RaggedDotDimensionNumbers((contract, ((), ())), (0,), groups)
        for contract, groups in ((((1,), (1,)), (0,)), (((0,), (0,)), ()))
    )
    calls = [
        lambda: jaxgemm.ragged_dot(x, w, sizes),
        lambda: jaxgemm.ragged_dot(x, w, sizes, activation="relu"),
        lambda: jaxgemm.ragged_dot(x, w, sizes, group_offset=offset),
        lambda: jaxgemm.ragged_gated(x, w, w, sizes),
        lambda: jaxgemm.ragged_dot_general(x, w, sizes, rows),
        lambda: jaxgemm.ragged_dot_general(x, x, sizes, sums),
    ]
    with jax.transfer_guard("disallow"):
        results = [call() for call in calls]
    np.testing.assert_array_equal(results[0][:, 0], [4, 4, 4, 0])


def test_debug_nans_sees_what_is_read_alone():
    """Weights of a group without rows, and rows without a group, are in no result and in no gradient."""
    x, w = jnp.ones((4, 4)), jnp.ones((2, 4, 4))
    functions = [
        lambda x, w, sizes: jaxgemm.ragged_dot(x, w, sizes),
        lambda x, w, sizes: jaxgemm.ragged_dot(x, w, sizes, activation="gelu"),
        lambda x, w, sizes: jaxgemm.ragged_gated(x, w, w, sizes),
    ]
    operands = [(x, w.at[1].set(jnp.nan), [4, 0]), (x.at[3].set(jnp.nan), w, [2, 1])]
    for function in functions:
        for rows, weights, sizes in operands:
            loss = lambda x, w, f=function, s=sizes: f(x, w, jnp.array(s)).sum()  # noqa: E731
            with jax.debug_nans(True):
                got = jax.grad(loss, (0, 1))(rows, weights)
            for value, expected in zip(got, jax.grad(loss, (0, 1))(x, w), strict=True):
                np.testing.assert_array_equal(value, expected)
