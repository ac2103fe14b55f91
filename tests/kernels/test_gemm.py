"""Every kernel of the table against float64: shapes, layouts, batches, scalings, epilogues, options."""

import itertools
from dataclasses import replace

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array
from hypothesis import given
from hypothesis import strategies as st
from oracle import Product, check_all, random, run_all

import jaxgemm
from jaxgemm.choice.resolve import check
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import device_for
from jaxgemm.problem import plan


def integral(types):
    return types[2] == "int32"


def scalings(types):
    return cases.INTEGER_SCALINGS if integral(types) else cases.SCALINGS


def activations(types):
    return ("relu",) if integral(types) else cases.ACTIVATIONS


def test_shapes(row, types, rng):
    check_all([Product.random(rng, shape, types) for shape in cases.SHAPES], row.name)


def test_layouts(row, types, rng):
    # The whole epilogue at once, so that its indices are tested in each layout as well.
    alpha, beta = scalings(types)[4]
    products = [
        Product.random(rng, shape, types, layout, **epilogue)
        for shape, layout in itertools.product(cases.FEW_SHAPES, cases.LAYOUTS)
        for epilogue in ({}, {"alpha": alpha, "beta": beta, "bias": True})
    ]
    check_all(products, row.name)


@pytest.mark.parametrize("layout", cases.LAYOUTS)
def test_every_shape_in_every_layout(row, layout, rng):
    check_all([Product.random(rng, shape, row.types[0], layout) for shape in cases.SHAPES], row.name)


def test_batches(row, types, rng):
    products = [
        Product.random(rng, shape, types, layout, batches)
        for shape, layout in (((5, 9, 7), "NN"), ((33, 17, 40), "TT"))
        for batches in cases.BATCHES
    ]
    check_all(products, row.name)


def test_batches_with_an_epilogue(row, rng):
    alpha, beta = scalings(row.types[0])[4]
    products = [
        Product.random(rng, (7, 19, 12), row.types[0], "NT", batches, alpha=alpha, beta=beta, bias=True)
        for batches in cases.BATCHES
    ]
    check_all(products, row.name)


def test_scalings(row, types, rng):
    products = [
        Product.random(rng, shape, types, alpha=alpha, beta=beta)
        for shape in ((17, 33, 65), (128, 128, 64))
        for alpha, beta in scalings(types)
    ]
    check_all(products, row.name)


def test_activations(row, types, rng):
    beta = 1 if integral(types) else 0.5
    products = [
        Product.random(rng, shape, types, activation=activation, **epilogue)
        for shape in ((17, 33, 20), (128, 128, 16))
        for activation in activations(types)
        for epilogue in ({}, {"alpha": 1, "beta": beta, "bias": True})
    ]
    check_all(products, row.name)


def test_activations_where_they_saturate(row):
    # The argument runs over the whole useful range: a has one column, so the products are a's own values.
    types = row.types[0]
    if integral(types):
        pytest.skip("integers take relu only")
    extremes = np.array([0.0, -0.0, 1e-6, -1e-6, 0.5, -0.5, 3, -3, 9, -9, 20, -20, 89, -89, 105, -105, 800, -800, 3e4])
    a = np.concatenate([extremes, np.linspace(-12, 12, 400)]).reshape(-1, 1).astype(np.float32)
    products = []
    for t in cases.covering(row.types):
        if integral(t):
            continue
        x, b = a.astype(jnp.dtype(t[0])), np.ones((1, 8), jnp.dtype(t[1]))
        x = x[np.isfinite(x).all(axis=1)]  # those that the type holds
        products += [
            Product(x, b, "NN", t[2], t[3], activation=activation, label=f"{t} {activation}")
            for activation in cases.ACTIVATIONS
        ]
    check_all(products, row.name)


def configurations(row, types, name, value, at_most=3):
    """Settings of all options that go with this value of one, for operands of these types: a few of them."""
    values = [[value] if option == name else vs or (0,) for option, vs in row.options.items()]
    every = itertools.islice(itertools.product(*values), 500)
    view = plan((256, 128), (128, 256), (((1,), (0,)), ((), ())))
    problem = view.problem(types[:3], Epilogue())
    problem = replace(problem, arithmetic=row.arithmetics(types[:3])[0])
    good = [config for config in every if not check(row, config, problem, device_for(row.platform))[0]]
    step = max(len(good) // at_most, 1)
    return [dict(zip(row.options, config, strict=True)) for config in good[::step][:at_most]]


def test_options(row, option, rng):
    """Each documented value once: alone or with the values of other options that it needs. All in one program."""
    every = [(name, value) for name, values in row.options.items() for value in values or cases.FREE_OPTION_VALUES]
    products = []
    for types in cases.in_turn(row.types, every.index(option)):
        alpha, beta = scalings(types)[4]
        given = [
            Product.random(rng, shape, types, layout, **epilogue)
            for shape, layout in (((256, 256, 128), "NN"), ((127, 129, 131), "NT"), ((17, 33, 65), "TN"))
            for epilogue in ({}, {"alpha": alpha, "beta": beta, "bias": True})
        ]
        for options in configurations(row, types, *option):
            products += [replace(p, options=options, label=f"{p.label} {types} {options}") for p in given]
    assert products, f"no type takes {option[0]} = {option[1]}, whatever the other options"
    check_all([p for p in products if takes(p, row)], row.name)


def test_operands_of_other_types(row, rng):
    """c and bias need not have the result's type, nor the result the operands'."""
    a, b = random(rng, (17, 24), "float32"), random(rng, (24, 33), "float32")
    c, bias = random(rng, (33,), "float64"), random(rng, (33,), "float16")
    if ("float32",) * 4 not in row.types:
        pytest.skip("the kernel takes no float32")
    d = jax.jit(
        lambda a, b, c, bias: jaxgemm.gemm(
            a, b, c, bias=bias, out_dtype=jnp.float16, activation="tanh", kernel=row.name
        )
    )(a, b, c, bias)
    assert d.dtype == jnp.float16
    expected = np.tanh(a.astype(np.float64) @ b + c + bias)
    np.testing.assert_allclose(np.asarray(d, np.float64), expected, rtol=1e-2, atol=1e-2)


def test_array_scalings(row, rng):
    types = row.types[0]
    p = Product.random(rng, (17, 33, 24), types, alpha=2, beta=-3)
    alpha, beta = array(2, p.out), array(-3, p.out)

    def program(a, b, c, alpha, beta):
        return jaxgemm.gemm(a, b, c, alpha=alpha, beta=beta, out_dtype=p.out, kernel=row.name)

    p.check(np.asarray(jax.jit(program)(p.a, p.b, p.c, alpha, beta)), row.name)


def test_eager_and_jit_agree_bitwise(row, types, rng):
    products = [Product.random(rng, s, types, "NT", beta=1, bias=True) for s in ((127, 129, 131), (128, 128, 512))]
    for p, jitted in zip(products, run_all(products, row.name), strict=True):
        eager = p.run(row.name)
        p.check(eager, row.name)
        assert eager.tobytes() == jitted.tobytes()


def test_runs_agree_bitwise(row, types, rng):
    """A result that moves from run to run is a race, wherever the table promises the same bits."""
    if not row.deterministic:
        pytest.skip(f"{row.name} does not promise the same bits")
    products = [Product.random(rng, shape, types) for shape in ((255, 257, 63), (64, 64, 20000), (512, 384, 256))]
    arrays = [{name: array(x) for name, x in p.arrays.items()} for p in products]
    run = jax.jit(lambda given: [p.call(x, row.name) for p, x in zip(products, given, strict=True)])
    first = [np.asarray(x).tobytes() for x in run(arrays)]
    for _ in range(4):
        for p, before, x in zip(products, first, run(arrays), strict=True):
            assert np.asarray(x).tobytes() == before, p.label


def takes(p, row):
    try:
        jaxgemm.explain(lambda x: p.call(x, row.name), p.arrays, platform=row.platform)
    except jaxgemm.UnsupportedError:
        return False
    return True


extents = st.sampled_from((0, 1, 2, 64, 128)) | st.integers(3, 70) | st.integers(120, 140)
scales = st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, -3.0])
batches = st.sampled_from([((), ()), *cases.BATCHES, *cases.EMPTY_BATCHES])


@given(data=st.data())
def test_any_product(row, data):
    types = data.draw(st.sampled_from(row.types), label="types")
    scale = scales.map(round) if integral(types) else scales
    p = Product.random(
        np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed")),
        data.draw(st.tuples(extents, extents, extents), label="shape"),
        types,
        data.draw(st.sampled_from(cases.LAYOUTS), label="layout"),
        data.draw(batches, label="batches"),
        alpha=data.draw(scale, label="alpha"),
        beta=data.draw(scale, label="beta"),
        bias=data.draw(st.booleans(), label="bias"),
        activation=data.draw(st.none() | st.sampled_from(activations(types)), label="activation"),
    )
    check_all([p], row.name)
