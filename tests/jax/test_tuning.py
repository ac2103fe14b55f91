"""What auto chooses by measurement, and the script that measures."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

import jaxgemm
from jaxgemm import precision, tuning
from jaxgemm.choice import rules, select
from jaxgemm.choice.resolve import resolve
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device, find_kernel
from jaxgemm.problem import plan

HOPPER = Device("cuda", "NVIDIA H200", 90, 132)


def key_of(m, n, k, batch, layout, dtype):
    return tuning.Key(m, n, k, batch, layout, *(dtype,) * 3)


KEY = key_of(640, 488, 2051, 1, "NN", "bfloat16")


def problem(dtype="bfloat16", m=640, n=488, k=2051, out=None, epilogue=Epilogue()):  # noqa: B008
    view = plan((m, k), (k, n), (((1,), (0,)), ((), ())))
    return view.problem((dtype, dtype, out or dtype), epilogue)


def built(kernel):
    return jaxgemm.kernels()[[row.name for row in jaxgemm.kernels()].index(kernel)].built


cuda = pytest.mark.skipif(not built("sm90"), reason="this build has no CUDA kernels")


@cuda
@pytest.mark.parametrize(("n", "k", "blocks", "reduction"), [(9728, 4096, 2, 1), (2048, 4096, 1, 2)])
def test_how_few_rows_fill_the_machine(n, k, blocks, reduction):
    """With some more tiles than multiprocessors two share one; with far fewer, the blocks of clusters share sums."""
    chosen = resolve("sm90", (), problem(m=16, n=n, k=k), HOPPER)
    options = dict(zip(chosen.kernel.options, chosen.config, strict=True))
    assert (options["blocks"], options["reduction"]) == (blocks, reduction)


@cuda
def test_a_measurement_comes_before_the_model(monkeypatch):
    held = {KEY: tuning.Override("sm80", (("tile", 2), ("split_k", 1)), 5.0, 7.5)}
    monkeypatch.setattr(tuning, "overrides", lambda name: held if name == HOPPER.name else {})
    for epilogue in (Epilogue(), Epilogue(activation="relu")):
        choice = select.select(problem(epilogue=epilogue), HOPPER)
        assert (choice.kernel.name, choice.config) == ("sm80", (2, 1))
        assert choice.why == "measured on NVIDIA H200: 5.0 us, otherwise 7.5 us"
    assert select.select(problem(m=641), HOPPER).kernel.name == "sm90"
    held[KEY] = tuning.Override("xla", (), 5.0, 7.5)
    assert select.select(problem(), HOPPER).kernel is None
    assert "measured" in select.select(problem(), HOPPER).why


@cuda
def test_a_measurement_of_one_16_bit_type_holds_for_the_other(monkeypatch):
    held = {KEY: tuning.Override("sm80", (("tile", 2), ("split_k", 1)), 5.0, 7.5)}
    monkeypatch.setattr(tuning, "overrides", lambda _: held)
    choice = select.select(problem("float16"), HOPPER)
    assert (choice.kernel.name, choice.config) == ("sm80", (2, 1))
    assert choice.why == "measured on NVIDIA H200 for bfloat16: 5.0 us, otherwise 7.5 us"
    for other in (problem("float16", out="float32"), problem("float32")):
        assert "measured" not in select.select(other, HOPPER).why
    held[KEY.alike()] = tuning.Override("xla", (), 5.0, 7.5)
    assert select.select(problem("float16"), HOPPER).kernel is None
    assert select.select(problem(), HOPPER).kernel.name == "sm80"


def test_a_measurement_is_of_operands_and_arithmetic():
    """Whatever the kernel: float32 that may be rounded to TF32 is another product than one that may not."""
    full, default = (tuning.Key.of(problem("float32"), precision.canonical(x)) for x in ("highest", "default"))
    assert (full.arithmetic, default.arithmetic) == ("plain", "tf32")
    assert full == key_of(640, 488, 2051, 1, "NN", "float32")
    named = [tuning.Key.of(problem("float32"), precision.canonical(x)).arithmetic for x in precision.BY_PARTS]
    assert named == ["bf16", "bf16_x3", "bf16_x6", "bf16_x9", "f16_x3"]
    assert tuning.Key.of(problem(), None) == tuning.Key.of(problem(), precision.canonical("highest")) == KEY
    assert KEY.alike() == key_of(640, 488, 2051, 1, "NN", "float16")
    for other in (replace(KEY, b="float16"), replace(KEY, d="float32"), full):
        assert other.alike() is None
    assert replace(KEY, b="float32").bytes - KEY.bytes == 2 * KEY.k * KEY.n


@cuda
def test_what_auto_leaves_to_xla_is_left_whole(monkeypatch):
    """Its fp32 form, with the conversion after it, is another product, which is not in question then."""
    held = {KEY: tuning.Override("xla", (), 5.0, 7.5)}
    monkeypatch.setattr(tuning, "overrides", lambda _: held)
    operands = [jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((KEY.m, KEY.k), (KEY.k, KEY.n))]
    (product,) = jaxgemm.explain(jaxgemm.gemm, *operands, platform="cuda").products
    assert product.kernel == "xla"
    assert product.decision.problem.dtypes[2] == "bfloat16"


@cuda
def test_a_measured_configuration_that_does_not_fit_is_passed_over(monkeypatch):
    held = {KEY: tuning.Override("wmma_tf32", (), 5.0, 7.5)}
    monkeypatch.setattr(tuning, "overrides", lambda _: held)
    assert select.select(problem(), HOPPER).kernel.name == "sm90"


H100 = Device("cuda", "NVIDIA H100 80GB HBM3", 90, 132)


def test_a_device_of_the_same_chip_lends_what_memory_does_not_decide(monkeypatch):
    key = key_of(1000, 1000, 1000, 1, "NN", "bfloat16")
    streamed = key_of(128, 8192, 28672, 1, "NN", "float16")
    entry, own = tuning.Override("xla", (), 7.0, 8.2), tuning.Override("xla", (), 6.0, 9.0)
    held = {"NVIDIA H200": {key: entry, streamed: tuning.Override("xla", (), 115.0, 120.0)}}
    monkeypatch.setattr(tuning, "overrides", lambda name: held.get(name, {}))
    assert tuning.find("NVIDIA H100 80GB HBM3", key) == tuning.Found(entry, key, "NVIDIA H200")
    assert tuning.find("NVIDIA H100 80GB HBM3", key.alike()) == tuning.Found(entry, key, "NVIDIA H200")
    assert tuning.find("NVIDIA H100 80GB HBM3", streamed) is None
    assert tuning.find("NVIDIA H100 PCIe", key) is None
    assert tuning.find("NVIDIA H200", streamed) is not None
    choice = select.select(problem(m=1000, n=1000, k=1000), H100)
    assert choice.kernel is None
    assert choice.why == "measured on NVIDIA H200: 7.0 us, otherwise 8.2 us"
    held["NVIDIA H100 80GB HBM3"] = {key: own}
    assert tuning.find("NVIDIA H100 80GB HBM3", key) == tuning.Found(own, key, "NVIDIA H100 80GB HBM3")


def test_a_thousand_cubed_is_left_to_xla_on_both():
    for device in (HOPPER, H100):
        assert select.select(problem(m=1000, n=1000, k=1000), device).kernel is None


def test_files_say_what_was_written():
    other = key_of(1, 2, 3, 7, "TN", "float32")
    entries = {
        KEY: tuning.Override("sm90", (("tile_m", 128), ("split_k", 2)), 5.25, 7.5),
        other: tuning.Override("xla", (), 1.0, 2.0),
    }
    text = tuning.to_json("NVIDIA H200", entries, date="2026-01-01")
    assert tuning.from_json(text) == entries
    assert json.loads(text)["date"] == "2026-01-01"
    assert [row["m"] for row in json.loads(text)["products"]] == [1, 640]
    assert tuning.from_json(tuning.to_json("NVIDIA H200", {})) == {}
    assert tuning.overrides("a device without a file") == {}


@pytest.mark.parametrize("file", sorted(Path(tuning.__file__).parent.glob("*.json")), ids=lambda f: f.name)
def test_entries_are_sound(file):
    content = json.loads(file.read_text())
    assert tuning.slug(content["device"]) == file.stem
    for key, entry in tuning.from_json(file.read_text()).items():
        assert entry.us < entry.instead_us, key
        if entry.kernel != "xla":
            row = find_kernel(entry.kernel)
            assert [name for name, _ in entry.options] == list(row.options), key


def changed(**fields):
    def change(text):
        content = json.loads(text)
        content["products"][0] |= fields
        return json.dumps(content)

    return change


WRONG = {
    "cut short": (lambda text: text[:200], "Unterminated string"),
    "empty": (lambda _: "", "Expecting value"),
    "a list": (lambda _: "[]", "expected an object with a list"),
    "an entry that is none": (lambda _: '{"products": [7]}', "expected an object of m, n, k"),
    "a field too many": (changed(more=1), "expected an object of m, n, k"),
    "an extent": (changed(m="640"), "wrong m, in"),
    "a time": (changed(us=None, instead_us=[]), "wrong us, instead_us, in"),
    "a type": (changed(a="bfloat17"), "wrong a, in"),
    "a layout": (changed(layout=["NN"]), "wrong layout, in"),
    "options that are none": (changed(options=[1]), "wrong options, in"),
    "a kernel": (changed(kernel="fastest"), "got 'fastest', expected one of"),
    "an option": (changed(options={"tile_q": 1}), "'sm90' has no option tile_q"),
}
if built("sm90"):
    WRONG |= {
        "a value of an option": (changed(options={"tile_n": 17}), "'tile_n' of kernel 'sm90': got 17"),
        "a configuration": (changed(options={"tile_m": 192, "tile_n": 256}), "no tile configuration matches"),
        "types of a kernel": (changed(kernel="wmma_tf32", options={}), "'wmma_tf32' got bfloat16"),
    }


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_passed_over_with_one_warning(name, monkeypatch, tmp_path):
    change, says = WRONG[name]
    text = tuning.to_json(HOPPER.name, {KEY: tuning.Override("sm90", (("tile_m", 128),), 5.0, 7.5)})
    file = tmp_path / f"{tuning.slug(HOPPER.name)}.json"
    monkeypatch.setattr(tuning, "_FOLDER", tmp_path)
    tuning.overrides.cache_clear()
    expected = select.select(problem(), HOPPER)
    file.write_text(change(text))
    tuning.overrides.cache_clear()
    try:
        with pytest.warns(RuntimeWarning) as warned:
            found = [select.select(problem(m=m), device) for m in (640, 641) for device in (HOPPER, H100)]
    finally:
        tuning.overrides.cache_clear()
    assert found[0] == expected
    assert not any("measured" in choice.why for choice in found)
    (warning,) = warned
    assert str(file) in str(warning.message)
    assert says in str(warning.message)


@pytest.fixture
def script(benchmark_script):
    return benchmark_script("tune")


def run(script, monkeypatch, folder, *arguments):
    monkeypatch.setattr(sys, "argv", ["tune.py", *arguments, "--repeats", "3", "--output", str(folder)])
    return script.main()


def of(dtype):
    return {(dtype, dtype, "plain"): rules.Contenders(0, 0, ("host",))}


@pytest.mark.parametrize(("margin", "entries"), [("1e9", 0), ("-0.999", 1)])
def test_tuning_keeps_what_is_faster_by_the_margin(script, monkeypatch, tmp_path, capsys, margin, entries):
    monkeypatch.setattr(rules, "CONTENDERS", of("float32"))
    if jax.devices()[0].platform != "cpu":
        pytest.skip("the script measures on JAX's default device")
    assert run(script, monkeypatch, tmp_path, "--shapes", "16x24x8", "--dtype", "f32", "--margin", margin) == 0
    (file,) = tmp_path.glob("*.json")
    held = tuning.from_json(file.read_text())
    assert len(held) == entries
    assert set(held) <= {key_of(16, 24, 8, 1, "NN", "float32")}
    assert "16x24x8 NN f32" in capsys.readouterr().out


@pytest.mark.parametrize(("borrowed", "instead"), [("host", 5.0), ("xla", None)])
def test_tuning_compares_with_what_the_other_16_bit_type_lends(script, monkeypatch, borrowed, instead):
    """XLA is the faster here: worth an entry only where the other type's says something else."""
    monkeypatch.setattr(rules, "CONTENDERS", of("float16"))
    if jax.devices()[0].platform != "cpu":
        pytest.skip("the script measures on JAX's default device")
    path = SimpleNamespace(timing=SimpleNamespace(us=3.0))
    rows = [SimpleNamespace(kernel="host", us=5.0, xla={"default": path})]
    key = key_of(16, 24, 8, 1, "NN", "float16")
    entries = {key.alike(): tuning.Override(borrowed, (), 1.0, 2.0)}
    script._tune(script.Case(16, 24, 8, "float16"), SimpleNamespace(measure=lambda *_: rows), entries, 1, 0.5)
    assert entries.get(key) == (instead and tuning.Override("xla", (), 3.0, instead))


def test_tuning_says_what_no_kernel_covers(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(rules, "CONTENDERS", {})
    assert run(script, monkeypatch, tmp_path, "--shapes", "16x24x8", "--dtype", "f32") == 0
    assert "no kernel" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [(), ("--shapes", "16x24"), ("--suite", "nothing")])
def test_tuning_refuses_nonsense(script, monkeypatch, tmp_path, capsys, arguments):
    with pytest.raises(SystemExit, match="2"):
        run(script, monkeypatch, tmp_path, *arguments)
    assert "usage" in capsys.readouterr().err
