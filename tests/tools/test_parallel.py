"""benchmarks/parallel.py on eight CPU devices: every form is right, and every figure is kept."""

import json
import sys

import jax
import meshes
import pytest

from jaxgemm.measure import provenance

SMALL = ["--tokens", "64", "--model", "16", "--hidden", "32", "--repeats", "3"]


@pytest.fixture
def script(benchmark_script, monkeypatch, tmp_path):
    """The script, to be run with arguments; what it wrote."""
    module = benchmark_script("parallel")
    monkeypatch.setattr(jax, "devices", lambda: on_cpu)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    on_cpu = jax.local_devices(backend="cpu")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["parallel.py", *arguments, "--results", str(tmp_path)])
        with jax.enable_x64(False):
            code = module.main()
        (file,) = tmp_path.glob("*/parallel.json")
        return code, json.loads(file.read_text())

    return run


def test_every_case(script, capsys):
    code, document = script(*SMALL, "--dtype", "f32")
    assert code == 0
    rows = document["rows"]
    (about,) = document["sources"].values()
    assert about["devices"] == meshes.COUNT
    assert set(provenance.KEYS) <= set(about)
    assert {row["source"] for row in rows} == {f"{meshes.COUNT} devices, 64 tokens, 16 -> 32 -> 16"}
    assert {row["case"] for row in rows} == {
        "tensor parallel",
        "data parallel",
        "fully sharded",
        "sequence parallel",
        "all_gather_matmul",
        "matmul_reduce_scatter",
    }
    for row in rows:
        assert row["us"] > 0
        assert row["is_part"] or (row["error"] < 1e-6 and row["difference"] < 1e-6 and row["ratio"] > 0)
    collectives = {(row["case"], row["form"]): row["collectives"] for row in rows}
    for case in ("tensor parallel", "data parallel", "sequence parallel"):
        assert collectives[case, "jaxgemm host"] == collectives[case, "jnp.dot"]
    # On CPUs XLA adds up the gradients of jnp.dot by an all-reduce of which each device keeps its part.
    ours, theirs = (collectives["fully sharded", form] for form in ("jaxgemm host", "jnp.dot"))
    assert set(ours) == {"all-gather", "reduce-scatter"}
    assert ours["all-gather"] == theirs["all-gather"]
    assert set(collectives["sequence parallel", "overlapped host"]) == {"collective-permute"}
    assert "the product alone, jaxgemm host" in capsys.readouterr().out


def test_a_form_that_fails_is_a_row(script, capsys):
    code, document = script(*SMALL, "--dtype", "bf16", "--devices", "2", "--case", "gather", "--xla", "no_such_flag=1")
    assert code == 1
    failed = {row["form"] for row in document["rows"] if row["message"]}
    assert failed == {"jnp.dot", "overlapped host"}
    assert all(row["xla"] == {"no_such_flag": 1} for row in document["rows"] if row["message"])
    assert "no_such_flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--devices", "9"), "there are 8 here, got 9"),
        (("--tokens", "12"), "8 devices do not divide 12"),
        (("--kernel", "fastest"), "unknown kernel 'fastest'"),
        (("--xla", "flag"), "malformed XLA options 'flag'"),
    ],
)
def test_wrong_arguments(script, capsys, arguments, message):
    with pytest.raises(SystemExit):
        script(*arguments)
    assert message in capsys.readouterr().err
