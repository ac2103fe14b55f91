"""Result files: how they are written and read, and that those that are kept say what they were measured with."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import jax
import pytest

from jaxgemm import _runtime
from jaxgemm.kernels import find_kernel
from jaxgemm.measure import bench, configurations, provenance, report
from jaxgemm.measure.case import Case, parse_case
from jaxgemm.measure.configurations import Product, Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks/results"
FILES = sorted(path for path in RESULTS.rglob("*") if path.is_file())
#: Of all files together.
MOST, BYTES = 35, 1_800_000
#: Lines of the head, a product's line, and what JSON needs around them.
LONGEST = 5000


# --- What is kept ---


def test_few_files_and_few_bytes():
    assert len(FILES) <= MOST
    assert sum(path.stat().st_size for path in FILES) <= BYTES


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_a_kept_result_says_what_it_was_measured_with(file):
    content = report.load(file)
    sources = content.get("sources", {"": content})
    for about in sources.values():
        missing = [key for key in provenance.KEYS if key not in about]
        assert not missing
        for key in ("commit", "ffi_digest", "package_digest"):
            assert isinstance(about[key], str), key
        on_gpu = about["platform"] == "gpu"
        assert about["device"]
        assert (about["driver"] is not None) == on_gpu
        assert set(about["versions"]) >= {"jaxgemm", "jax", "jaxlib", "numpy", "python", "cuda"}
        script = about["script"].split()[0]
        assert script == provenance.UNKNOWN or (ROOT / script).is_file()
    named = (
        {row["source"] if isinstance(row, dict) else row[0] for row in content["rows"]}
        if "sources" in content
        else {""}
    )
    assert named == set(sources)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_a_kept_result_has_a_line_for_each_row(file):
    lines = file.read_text().splitlines()
    rows = json.loads(file.read_text())["rows"]
    first = lines.index(' "rows": [') + 1
    assert lines[first + len(rows) :] == [" ]", "}"]
    assert [json.loads(line.rstrip(",")) for line in lines[first : first + len(rows)]] == rows
    assert max(map(len, lines)) <= LONGEST


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.relative_to(RESULTS).as_posix())
def test_something_reads_a_kept_result(file):
    """A script, a test or a page names it, by its path in the folder or, where that is put together, its parts."""
    readers = [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("docs/*.md"), *ROOT.glob("tests/**/test_*.py")]
    path = file.relative_to(RESULTS).as_posix()
    assert any(path in text or f'"{file.name}"' in text for text in (reader.read_text() for reader in readers))


# --- What they were measured with ---


def test_a_record_is_of_what_runs():
    found = provenance.record(jax.devices("cpu")[0])
    assert set(found) == set(provenance.KEYS)
    assert found["ffi_digest"] == _runtime.ffi.source_digest()
    assert (found["platform"], found["driver"], found["clocks"]) == ("cpu", None, {})
    assert found["versions"]["cuda"] == _runtime.ffi.cuda_version()
    assert json.loads(json.dumps(found)) == found


def test_a_digest_of_a_package_is_of_its_own_files(tmp_path):
    for name, text in (("a.py", "1"), ("b.json", "{}"), ("c.so", "3")):
        (tmp_path / name).write_text(text)
    first = _runtime.source_digest(tmp_path, (".py", ".json"))
    (tmp_path / "c.so").write_text("4")
    assert _runtime.source_digest(tmp_path, (".py", ".json")) == first != _runtime.source_digest(tmp_path)
    (tmp_path / "b.json").write_text("[]")
    assert _runtime.source_digest(tmp_path, (".py", ".json")) != first


def test_a_commit_is_known_where_the_checkout_is_what_runs(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    for name in ("ffi/a.cc", "jaxgemm/b.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    assert provenance.commit(tmp_path) == ""  # no checkout
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "all")
    assert provenance.commit(tmp_path) == ""  # not what runs
    running = {"source_digest": staticmethod(lambda: _runtime.source_digest(tmp_path / "ffi"))}
    monkeypatch.setattr(provenance, "ffi", type("Ffi", (), running))
    monkeypatch.setattr(provenance, "_PACKAGE", tmp_path / "jaxgemm")
    assert provenance.commit(tmp_path / "jaxgemm") == git("rev-parse", "HEAD")
    (tmp_path / "ffi/a.cc").write_text("changed")
    assert provenance.commit(tmp_path) == git("rev-parse", "HEAD") + "+changes"


def test_a_script_is_told_without_folders(monkeypatch):
    monkeypatch.setattr("sys.argv", [str(ROOT / "benchmarks/run.py"), "bf16", "--results=/some/where", "/else/here"])
    assert provenance.script() == "benchmarks/run.py bf16 --results=where here"


# --- Files ---


def test_a_suite_is_read_as_it_was_measured(tmp_path):
    runner = bench.on_default_device(repeats=3, budget_s=0.01)
    cases = (
        Case(16, 24, 8),
        Case(16, 24, 8, precision="F32_F32_F32"),
        Case(3, 4, 5, "bfloat16", "NT", batch=2, data="uniform"),
        Case(8, 8, 8, bias=True, activation="relu"),
    )
    rows = [row.to_json() for case in cases for row in runner.measure(case, ("auto", "host"))]
    rows.append({**rows[0], "kernel": "naive", "chosen": "naive", "status": "unsupported", "message": "no", "us": None})
    rows[-1] |= dict.fromkeys(("device_us", "wall_us", "ratio", "tflops", "error", "roofline_fraction"))
    file = tmp_path / "a/suite.json"
    report.write(file, {"device": "some", "rows": report.by_product(rows)})
    assert len(json.loads(file.read_text())["rows"]) == len(cases)
    found = {(row["problem"], row["kernel"]): row for row in report.load(file)["rows"]}
    assert len(found) == len(rows)
    for row in rows:
        read = found[row["problem"], row["kernel"]]
        for name in set(row) - {"launches", "xla", "device_kernels", "calls", "compile_s", "temp_bytes"}:
            is_float = isinstance(row[name], float)
            assert read[name] == (pytest.approx(row[name], rel=0.06) if is_float else row[name]), name
        assert read["xla"]["default"]["wall_us"] == pytest.approx(row["xla"]["default"]["wall_us"], rel=1e-5)
    assert not list(tmp_path.rglob("*.part"))


def test_what_is_no_file_is_written_too():
    report.write(Path("/dev/null"), {"rows": [{"x": 1}]})
    assert not Path("/dev/null.part").exists()


def test_sources_of_a_file_are_renewed_one_by_one(tmp_path):
    file = tmp_path / "several.json"
    for source, value in (("a", 1), ("b", 2), ("a", 3)):
        report.write(file, report.renewed(file, source, {"date": value, "rows": []}, [{"x": value}]))
    content = report.load(file)
    assert content["sources"] == {"a": {"date": 3}, "b": {"date": 2}}
    assert content["rows"] == [{"source": "b", "x": 2}, {"source": "a", "x": 3}]


@pytest.mark.parametrize("text", ["[]", "{}", '{"rows": 1}', '{"rows": [{"kernels": {}}]}', "no"])
def test_what_is_no_result_is_refused(tmp_path, text):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"not a result file|Expecting value"):
        report.load(file)


@pytest.mark.parametrize(
    "text",
    [
        "1x2x3 NN f32",
        "1024x64x64@8 NT bf16 +bias gelu",
        "5x6x7 TN f16 +bias",
        "8x8x8 TT s8",
        "5x6x7 NN f64 relu",
        "5x6x7 NN f32 TF32_TF32_F32_X3 data=one-tiny-value",
        "5x6x7 NN bf16 +bias relu data=softmax",
    ],
)
def test_a_product_is_read_as_it_is_written(text):
    assert str(parse_case(text)) == text


@pytest.mark.parametrize(
    "text", ["1x2 NN f32", "1x2x3 NX", "1x2x3 NN f32 gelu +bias", "1x2x3 NN f32 data=dates", "1x2x3 NN f32 data="]
)
def test_what_is_no_product_is_refused(text):
    with pytest.raises(ValueError, match=r"malformed|unknown dtype"):
        parse_case(text)


# --- Configurations ---


def timed(*us):
    options = find_kernel("sm90").options
    configs = [{"tile_m": 64, "tile_n": 16 * i, "schedule": 2, "walk_height": 8 if i == 2 else 1} for i in range(1, 9)]
    made = [tuple(config.get(name, 1) for name in options) for config in configs]
    return tuple(zip(made, us, strict=False))


def test_configurations_are_read_as_they_were_written(tmp_path):
    file = configurations.default_file(tmp_path, "sm90")
    case = Case(64, 128, 8, "bfloat16", "TN", bias=True, activation="gelu")
    products = [Product("a", case, timed(2.5, None, 12345.678))]
    configurations.write(file, configurations.renewed(file, "sm90", "a", {"date": 1}, products))
    other = [Product("b", case, timed(3.0, 2.0))]
    configurations.write(file, configurations.renewed(file, "sm90", "b", {"date": 2}, other))
    table = configurations.load(file, "sm90")
    assert table == Table(
        "sm90", tuple(find_kernel("sm90").options), {"a": {"date": 1}, "b": {"date": 2}}, (*products, *other)
    )
    assert table.of("b") == other
    assert [product.loss for product in table.products] == [None, 1.5]
    configurations.write(file, configurations.renewed(file, "sm90", "b", {"date": 3}, products[:0]))
    assert configurations.load(file).of("a") == products
    with pytest.raises(ValueError, match="of kernel 'sm90', not of 'host'"):
        configurations.load(file, "host")


def test_options_that_a_table_does_not_know_are_1(tmp_path):
    file = tmp_path / "old.json"
    case = Case(64, 128, 8, "bfloat16")
    configurations.write(
        file, Table("sm90", ("tile_m", "tile_n"), {"a": {}}, (Product("a", case, (((64, 32), 1.0),)),))
    )
    ((config, _),) = configurations.renewed(file, "sm90", "b", {}, []).of("a")[0].timed
    assert config == (64, 32, *[1] * (len(find_kernel("sm90").options) - 2))


def test_the_kept_configurations_are_of_products_that_ran():
    table = configurations.load(configurations.default_file(RESULTS, "sm90"), "sm90")
    assert len(table.products) > 1000
    assert all(us is None or 0 < us < math.inf for product in table.products for _, us in product.timed)
