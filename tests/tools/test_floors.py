"""benchmarks/floors.py: its kernel reads and writes as many bytes as a product does."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arrays import array

from jaxgemm.measure import bench
from jaxgemm.measure.case import Case


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("floors")


def test_it_measures_gpus_only(script, capsys):
    if jax.default_backend() == "gpu":
        pytest.skip("there is one here")
    with pytest.raises(SystemExit, match="2"):
        script.main([])
    assert "measures CUDA kernels" in capsys.readouterr().err


def test_its_results(script, monkeypatch, tmp_path, capsys):
    """What surrounds the kernel, with products on the CPU in its place."""
    runner = bench.on_default_device(repeats=3, budget_s=0.01)
    programs = dict.fromkeys(("move", "auto", "sm90", "xla default", "xla cublas"), jax.jit(jnp.matmul))
    monkeypatch.setattr(script, "parse", lambda *_: (None, tmp_path, runner))
    monkeypatch.setattr(script, "ready", lambda *_: None)
    monkeypatch.setattr(script, "programs", lambda *_: programs)
    monkeypatch.setattr(script, "CASES", (Case(3, 4, 5, "bfloat16"), Case(8, 8, 8, "bfloat16", batch=2)))
    assert script.main([]) == 0
    rows = json.loads((tmp_path / "floors.json").read_text())["rows"]
    assert [row["problem"] for row in rows] == ["3x4x5 NN bf16", "8x8x8@2 NN bf16"]
    for row in rows:
        least = min(row["us"]["xla default"], row["us"]["xla cublas"])
        ratios = {name: least / row["us"][name] for name in ("move", "auto", "sm90")}
        assert row["ratios"] == pytest.approx(ratios, rel=1e-6)
    assert "8x8x8@2 NN bf16" in capsys.readouterr().out


@pytest.mark.gpu
def test_every_vector_is_read_and_written(script, rng):
    """A vector of the result has bits of the vectors that its thread read, so that none can be left out."""
    target = script.ready(jax.devices("cuda")[0])
    a, b = (array(rng.integers(1, 2**32, shape, np.uint32)) for shape in ((33, 128), (128, 100)))
    result = jax.ShapeDtypeStruct((33, 100), jnp.uint32)
    d = jax.jit(jax.ffi.ffi_call(target, result))(a, b)
    read = np.concatenate([np.asarray(x).ravel() for x in (a, b)]).reshape(-1, 4)
    per_block = 4 * 256
    padded = np.zeros((-(-len(read) // per_block) * per_block, 4), np.uint32)
    padded[: len(read)] = read
    x = padded.reshape(-1, 4, 256, 4).transpose(0, 2, 1, 3).reshape(-1, 4, 4)  # of a thread: its vectors' words
    sums = np.bitwise_xor.reduce(x, axis=(1, 2))
    expected = np.stack([sums, x[:, 0, 0], x[:, 1, 1], x[:, 2, 2]], axis=1)
    written = np.asarray(d).reshape(-1, 4)
    of_thread = np.arange(len(written)) % len(expected)
    np.testing.assert_array_equal(written, expected[of_thread])
