"""benchmarks/fits.py: its programs solve what they say, and its figures are those of what ran."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgemm.measure import provenance


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("fits")


@pytest.fixture
def fits(script):
    return script.FITS


def test_its_results(script, tmp_path, capsys):
    assert script.main(["--size", "32", "--only", "rotation,process", "--results", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("*/fits.json")
    content = json.loads(file.read_text())
    assert set(provenance.KEYS) <= set(content)
    found = {(x["fit"], x["precision"], x["side"]): x for x in content["rows"]}
    asked = [(script.FLOAT64, "XLA"), *((x, "XLA") for x in script.PRECISIONS)]
    asked += [(x, "jaxgemm") for x in script.OVERRIDDEN]
    assert list(found) == [(name, *form) for name in ("rotation", "process") for form in asked]
    assert len(content["rows"]) == len(found)
    printed = capsys.readouterr().out
    for (name, precision, side), row in found.items():
        assert row["size"] == 32
        if precision == "TF32_TF32_F32_X3":  # XLA has it on GPUs alone
            assert row["message"] in printed
            continue
        assert row["us"] > 0
        assert "message" not in row
        if precision == script.FLOAT64:
            assert "error" not in row
            assert row["residual"] < 1e-13
        else:
            assert 1e-9 < row["error"] < 1e-5
            assert 1e-9 < row["residual"] < 1e-5
        expected = {"XLA": {"rotation": 3, "process": 7}[name]} if side == "jaxgemm" else None
        assert row.get("products") == expected
        assert script.cells(row)[-1] == (f"{expected['XLA']} XLA" if expected else "")


def test_wrong_arguments(script, capsys):
    for arguments, says in (
        (["--size", "x"], "expected an even number"),
        (["--size", "33"], "expected an even number"),
        (["--only", "rotation,spin"], "no program spin; there are process, rotation, network"),
    ):
        with pytest.raises(SystemExit, match="2"):
            script.main(arguments)
        assert says in capsys.readouterr().err


def drawn(fit, size):
    return tuple(map(jnp.asarray, fit.draw(np.random.default_rng(3), size)))


def test_a_process_has_the_weights_of_a_direct_solver(fits):
    points, values = drawn(fits["process"], 24)
    distances = np.sum((points[:, None] - points) ** 2, 2)
    expected = np.linalg.solve(np.exp(-distances / 16) + np.eye(24), values)
    found = fits["process"].solve(points, values)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    compared, residual = fits["process"].judge(expected, points, values)
    np.testing.assert_array_equal(compared, expected)
    assert residual < 1e-13
    assert fits["process"].judge(2 * expected, points, values)[1] == pytest.approx(1)


def test_a_rotation_is_the_polar_factor(fits):
    source, target = drawn(fits["rotation"], 24)
    u, _, v = np.linalg.svd(source.T @ target)
    found = fits["rotation"].solve(source, target)
    np.testing.assert_allclose(found, u @ v, atol=1e-12)
    np.testing.assert_array_equal(fits["rotation"].judge(found, source, target)[0], found)
    assert fits["rotation"].judge(u @ v, source, target)[1] < 1e-13
    assert fits["rotation"].judge(2 * u @ v, source, target)[1] == pytest.approx(3)
    assert np.linalg.norm(source @ found - target) < 0.2 * np.linalg.norm(source - target)


def test_a_network_is_fitted(fits):
    x, values, *weights = drawn(fits["network"], 64)
    found = fits["network"].solve(x, values, *weights)
    fitted, residual = fits["network"].judge(found, x, values, *weights)
    assert residual == pytest.approx(np.linalg.norm(fitted - values) / np.linalg.norm(values))
    assert residual < 0.1 * fits["network"].judge(weights, x, values, *weights)[1]


def test_results_are_held_to_float64(script, fits):
    given = drawn(fits["rotation"], 8)
    judge = script.Judge(fits["rotation"], given, jnp.eye(8))
    assert judge.residual == 0
    figures = judge.figures(jnp.float32(1 + 2**-10) * jnp.eye(8, dtype=jnp.float32))
    assert figures["error"] == pytest.approx(2**-10)
    assert figures["residual"] == pytest.approx(2**-9 + 2**-20)
    assert judge.figures(jnp.full((8, 8), jnp.inf)) == {"message": "the result is not finite"}


def test_precisions_reach_the_products(script, fits):
    """By XLA as JAX's default; float64's computes in it, of float32 operands, though JAX does not keep float64."""
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((32, 16), (32, 16))]
    found = []
    with jax.enable_x64(False):
        for form in script.forms(["default"])[:2]:
            program = script.compiled(form, fits["rotation"].solve, operands, {})
            found.append(jax.tree.leaves(program.out_info)[0].dtype.name)
    assert found == ["float64", "float32"]

    asked = []

    def solve(x):
        asked.append(jax.config.jax_default_matmul_precision)
        return x @ x

    square = [jax.ShapeDtypeStruct((4, 4), jnp.float32)]
    for precision in ("default", "highest"):
        script.compiled(script.Form(precision, "XLA", "default"), solve, square, {})
    assert asked == ["default", "highest"]
    assert script.products(script.Form("highest", "jaxgemm"), solve, square) == {"XLA": 1}
